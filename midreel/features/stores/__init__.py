"""Feature stores: midreel's own format, and readers of published formats."""
