"""Code for TensorFlow, JAX or OpenVINO: step, optimizers, kernels, devices, precision."""
