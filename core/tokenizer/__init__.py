"""Trains, loads and scores tokenizers: folders with a `tokenizer.json`."""

from core.earlier_names import members_of

__getattr__ = members_of(__name__)
