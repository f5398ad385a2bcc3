"""Indexes: what keeps the tokens of videos and finds the ones that a query describes."""

from midreel.index.base import Index, Match, Window
from midreel.index.exact import ExactIndex

__all__ = ["ExactIndex", "Index", "Match", "Window"]
