"""Tiny models of all families with their tokenizers, and PyTorch's scores of sentences."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from core.config.corpus import CorpusConfig
from core.config.tokenizer import TokenizerConfig
from core.families import find_family
from core.tokenizer.loading import StudioTokenizer, load
from core.tokenizer.training import train
from core.workspace.workspace import Workspace
from tests.checkpoints import make_tokenizer, write_model_of, write_writer
from tests.texts import write_sentences

ENCODERS = ("roberta", "bert", "modernbert")
DECODERS = ("gpt2", "llama", "qwen3")
FAMILIES = (*ENCODERS, *DECODERS, "t5", "bart")
MOST_DIFFERENCE = 1e-3
LENGTH = 64


def write_models(workspace: Workspace, families: tuple[str, ...] = FAMILIES) -> None:
    """Writes a model of each family with random weights, named after the family."""
    tokenizers = {
        "roberta": make_tokenizer(workspace, "byte_level_bpe"),
        "bert": make_tokenizer(workspace, "unigram"),
        "t5": make_t5_tokenizer(workspace),
    }
    for family in families:
        tokenizer = tokenizers.get(family, tokenizers["roberta"])
        with workspace.new_artifact("model", family) as draft:
            if family in (*DECODERS, "bart"):
                write_writer(draft.folder, tokenizer, family, positions=LENGTH)
            else:
                write_model_of(draft.folder, tokenizer, _architecture(family, tokenizer))


def make_t5_tokenizer(workspace: Workspace) -> StudioTokenizer:
    """Trains a tokenizer with sentinels on a few hundred sentences."""
    corpus = CorpusConfig(source="files", path=str(write_sentences(workspace.root / "text.txt")))
    config = TokenizerConfig(name="t5", family="t5", vocab_size=230, corpus=corpus)
    return load(str(train(config, workspace).path))


def _architecture(family: str, tokenizer: StudioTokenizer) -> Any:
    pad = tokenizer.pad_id or 0
    more: dict[str, Any] = {}
    if family == "t5":
        more = {"num_decoder_layers": 2, "decoder_start_token_id": pad, "d_kv": 16}
    if family == "modernbert":
        more = {"local_attention": 8}
    return find_family(family).architecture(
        vocab_size=tokenizer.vocab_size,
        hidden_size=32,
        num_hidden_layers=2 if family != "modernbert" else 4,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=LENGTH + (pad + 1 if family == "roberta" else 0),
        pad_token_id=pad,
        bos_token_id=tokenizer.cls_id,
        eos_token_id=tokenizer.sep_id,
        **more,
    )


class Reference:
    """Scores sentences one by one with transformers on PyTorch, from the definitions alone."""

    def __init__(self, folder: Path) -> None:
        torch = pytest.importorskip("torch", reason="pip install torch==2.13.0")
        import transformers

        self._torch = torch
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        (name,) = json.loads((folder / "config.json").read_text())["architectures"]
        self._model = getattr(transformers, name).from_pretrained(folder).eval()
        self._family = self._model.config.model_type

    def score(self, sentence: str) -> list[float]:
        """Returns the log-probability of each token except special tokens."""
        ids = self._torch.tensor(self.tokenizer(sentence).input_ids)
        special = self.tokenizer.get_special_tokens_mask(
            ids.tolist(), already_has_special_tokens=True
        )
        known = ids == self.tokenizer.unk_token_id
        places = [p for p, mark in enumerate(special) if not mark or known[p]]
        with self._torch.no_grad():
            if self._family in DECODERS:
                logs = self._model(ids[None]).logits[0].log_softmax(-1)
                return [logs[place - 1, ids[place]].item() for place in places]
            return [self._score_masked(ids, place) for place in places]

    def _score_masked(self, ids: Any, place: int) -> float:
        source = ids.clone()
        if self._family != "t5":
            source[place] = self.tokenizer.mask_token_id
            labels = {"labels": ids[None]} if self._family == "bart" else {}
            logits = self._model(source[None], **labels).logits[0, place]
        else:
            sentinel = self.tokenizer.convert_tokens_to_ids("<extra_id_0>")
            source[place] = sentinel
            labels = self._torch.tensor([[sentinel, ids[place]]])
            logits = self._model(source[None], labels=labels).logits[0, 1]
        return float(logits.log_softmax(-1)[ids[place]].item())
