"""Training: plan, batches, step, loop and checkpoints."""
