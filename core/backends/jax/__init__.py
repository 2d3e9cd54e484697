"""JAX: kernels, sharding, devices and the training step."""
