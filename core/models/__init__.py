"""The models: plain Keras 3, with the names and formats of Hugging Face."""
