"""Code for TensorFlow, JAX or OpenVINO."""
