"""Numbered parts of a corpus, and processes that work on them."""
