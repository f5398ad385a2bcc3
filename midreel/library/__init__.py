"""A library: the directory that midreel index writes and midreel search reads."""
