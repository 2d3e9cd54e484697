"""Finds models, tokenizers and checkpoints, and reads them."""
