"""Indexes: what keeps the tokens of videos and finds the ones that a query describes."""

from midreel.index.base import Index, Match
from midreel.index.embedded import EmbeddedIndex
from midreel.index.exact import ExactIndex

__all__ = ["EmbeddedIndex", "ExactIndex", "Index", "Match"]
