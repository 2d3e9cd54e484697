"""Keras 3 models with Hugging Face names and file formats."""
