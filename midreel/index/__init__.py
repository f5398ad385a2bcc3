"""Indexes: store the tokens of videos, and find the videos that a query describes."""

from midreel.index.base import Index, Match
from midreel.index.embedded import EmbeddedIndex
from midreel.index.exact import ExactIndex

__all__ = ["EmbeddedIndex", "ExactIndex", "Index", "Match"]
