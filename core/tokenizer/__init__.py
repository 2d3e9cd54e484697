"""Tokenizers: train one on a corpus, load one by name, folder or Hub id, and judge it.

A tokenizer is a folder with `tokenizer.json` (Hugging Face `tokenizers`) and the two files that
tell `transformers` which special tokens are which.
"""

from core.tokenizer.loading import StudioTokenizer, load
from core.tokenizer.scoring import pieces, scorecard
from core.tokenizer.training import train

__all__ = ["StudioTokenizer", "load", "pieces", "scorecard", "train"]
