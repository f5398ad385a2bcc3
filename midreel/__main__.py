"""Run midreel's command line: python -m midreel."""

from midreel.cli import main

main()
