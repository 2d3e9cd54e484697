"""Runs trained models: fill-mask, generation and perplexity; importing it imports no backend."""

from core.earlier_names import members_of

__getattr__ = members_of(__name__)
