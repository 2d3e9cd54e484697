"""OpenVINO: encoders as a graph, for inference on a CPU."""
