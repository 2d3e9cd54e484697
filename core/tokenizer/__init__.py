"""Trains tokenizers, loads them by name, folder or Hub id, and scores them.

A tokenizer is a folder with `tokenizer.json` (Hugging Face `tokenizers`) and two files that name
the special tokens for `transformers`.
"""

from core.tokenizer.loading import StudioTokenizer, load
from core.tokenizer.scoring import pieces, scorecard
from core.tokenizer.training import train

__all__ = ["StudioTokenizer", "load", "pieces", "scorecard", "train"]
