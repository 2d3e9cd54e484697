"""Code for TensorFlow, JAX or OpenVINO: step, kernels, compilation, devices, precision."""
