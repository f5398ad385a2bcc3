"""Experiments: train methods on a dataset, evaluate them, and compare the results."""
