"""Command-line tools for developers: crash tests, fuzzers, the training of tiny-clip, and figures for the docs."""
