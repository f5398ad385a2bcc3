"""Training: a plain loop, its optimiser, its checkpoints, and the recipe that says it all."""
