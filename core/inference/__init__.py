"""Runs trained models: fill-mask, generation and perplexity; importing it imports no backend."""

from core.config import DTYPES, Dtype
from core.inference.generation import generate, generate_stream
from core.inference.masks import FillMask, fill_mask, fills_masks
from core.inference.models import force_cpu, read_out
from core.inference.scoring import perplexity, perplexity_stream
from core.inference.warming import prepare

__all__ = [
    "DTYPES",
    "Dtype",
    "FillMask",
    "fill_mask",
    "fills_masks",
    "force_cpu",
    "generate",
    "generate_stream",
    "perplexity",
    "perplexity_stream",
    "prepare",
    "read_out",
]
