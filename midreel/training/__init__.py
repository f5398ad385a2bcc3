"""Training: the loop, its optimiser, and the run folder."""
