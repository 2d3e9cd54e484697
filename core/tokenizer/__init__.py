"""Trains, loads and scores tokenizers: folders with a `tokenizer.json`."""

from core.tokenizer.loading import StudioTokenizer, load
from core.tokenizer.scoring import pieces, scorecard
from core.tokenizer.training import train

__all__ = ["StudioTokenizer", "load", "pieces", "scorecard", "train"]
