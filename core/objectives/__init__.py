"""What a model learns to predict: pure numpy, a batch a function of seed and step."""
