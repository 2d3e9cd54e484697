"""Small checkpoints with random weights, written without a backend."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from core.architecture.architecture import Architecture, EncoderDecoderArchitecture
from core.config.corpus import CorpusConfig
from core.config.tokenizer import TokenizerConfig
from core.families import find_family
from core.families.roberta import RobertaArchitecture
from core.models import hf
from core.tokenizer.loading import StudioTokenizer, load
from core.tokenizer.training import train
from core.workspace.workspace import Workspace
from tests.texts import write_sentences

LENGTH = 32


def make_tokenizer(
    workspace: Workspace, algorithm: Literal["unigram", "byte_level_bpe"]
) -> StudioTokenizer:
    """Trains a tokenizer on a few hundred sentences and names it after its algorithm."""
    text = write_sentences(workspace.root / "text.txt")
    corpus = CorpusConfig(source="files", path=str(text))
    size = {"unigram": 120, "byte_level_bpe": 320}[algorithm]
    config = TokenizerConfig(name=algorithm, algorithm=algorithm, vocab_size=size, corpus=corpus)
    return load(str(train(config, workspace).path))


def write_checkpoint(folder: Path, tokenizer: StudioTokenizer, seed: int = 0) -> Path:
    """Writes a RoBERTa of two layers; large weights make its predictions distinct."""
    pad = tokenizer.pad_id or 0
    architecture = RobertaArchitecture(
        vocab_size=tokenizer.vocab_size,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=LENGTH + pad + 1,
        pad_token_id=pad,
        bos_token_id=tokenizer.cls_id,
        eos_token_id=tokenizer.sep_id,
    )
    return write_model_of(folder, tokenizer, architecture, seed)


def write_writer(
    folder: Path,
    tokenizer: StudioTokenizer,
    family: str,
    *,
    positions: int = LENGTH,
    ends: bool = True,
    size: float = 0,
) -> Path:
    """Writes a generator of two layers; large weights make its predictions distinct."""
    architecture_class = find_family(family).architecture
    halves = {"num_decoder_layers": 2, "decoder_start_token_id": tokenizer.cls_id}
    architecture = architecture_class(
        vocab_size=tokenizer.vocab_size,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=positions,
        pad_token_id=tokenizer.pad_id or 0,
        bos_token_id=tokenizer.cls_id,
        eos_token_id=tokenizer.sep_id if ends else None,
        **(halves if issubclass(architecture_class, EncoderDecoderArchitecture) else {}),
        **({"d_kv": 16} if family == "t5" else {}),
    )
    return write_model_of(folder, tokenizer, architecture, size=size)


def write_model_of(
    folder: Path,
    tokenizer: StudioTokenizer,
    architecture: Architecture,
    seed: int = 0,
    *,
    size: float = 0,
) -> Path:
    """Writes a model of any architecture; large weights make its predictions distinct.

    Args:
        folder: The folder to write to; created if it is missing.
        tokenizer: The tokenizer that is written beside the model.
        architecture: The model's dimensions.
        seed: The seed of the weights.
        size: The weights' standard deviation; 0: one that suits the family.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.copy_to(folder, ends=architecture.kind != "decoder")
    generator = np.random.default_rng(seed)
    size = size or (0.12 if architecture.model_type == "bart" else 0.3)
    weights = {
        tie.path: generator.normal(tie.path.endswith("scale"), size, tie.shape).astype(np.float32)
        for tie in hf.weight_mappings(architecture)
    }
    if architecture.model_type == "bart":
        _make_eloquent(weights)
    hf.write_weights(folder, weights, architecture)
    return folder


def _make_eloquent(weights: dict[str, NDArray[np.float32]]) -> None:
    """Gives all token embeddings one norm and reuses them as position embeddings.

    Otherwise the model would always predict the same token.
    """
    words = 0.2 * np.sign(weights["bart/words/table"])
    weights["bart/words/table"] = words
    places = weights["bart/decoder/embeddings/positions/table"]
    weights["bart/decoder/embeddings/positions/table"] = 1.5 * words[-places.shape[0] :]
