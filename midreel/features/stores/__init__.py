"""Stores of features: our own, and the formats in which others publish theirs."""
