"""Training: the plan, the batches, the step on either engine, the loop, the checkpoints."""
