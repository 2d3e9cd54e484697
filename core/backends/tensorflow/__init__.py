"""TensorFlow: kernels, devices and the training step."""
