"""Blocks that learn. They know shapes, not papers."""
