"""Benchmarks of extraction, training, search and serving. Run them with `make bench-…`."""
