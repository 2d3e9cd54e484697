"""Pretrain Studio: train a language model from scratch.

Names load on first use, so `import core` imports no backend.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from core.api import (
        build_shards,
        clean,
        evaluate,
        finetune,
        preflight,
        pretrain,
        push,
        quickstart,
        train,
        train_tokenizer,
    )
    from core.config import (
        AnalyseConfig,
        CleanConfig,
        CorpusConfig,
        EvaluateConfig,
        FinetuneConfig,
        NamedSource,
        PreflightConfig,
        PretrainConfig,
        PushConfig,
        QuickstartConfig,
        ShardConfig,
        TokenizerConfig,
        TrainConfig,
        load_sources,
    )
    from core.corpus.cleaning.preview import preview_cleaning
    from core.corpus.statistics import analyse_corpus
    from core.errors import StudioError
    from core.inference import fill_mask, generate, generate_stream, perplexity
    from core.inference.classification import classify, tag
    from core.workspace import Artifact, Workspace

_HERE = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
# `python -m core` puts the current folder first, which may hold somebody else's modules.
if sys.argv[:1] == ["-m"] and not sys.flags.safe_path and os.path.realpath(sys.path[0]) != _HERE:
    del sys.path[0]

_HOMES = {
    "AnalyseConfig": "core.config",
    "Artifact": "core.workspace",
    "CleanConfig": "core.config",
    "CorpusConfig": "core.config",
    "EvaluateConfig": "core.config",
    "FinetuneConfig": "core.config",
    "NamedSource": "core.config",
    "PreflightConfig": "core.config",
    "PretrainConfig": "core.config",
    "PushConfig": "core.config",
    "QuickstartConfig": "core.config",
    "ShardConfig": "core.config",
    "StudioError": "core.errors",
    "TokenizerConfig": "core.config",
    "TrainConfig": "core.config",
    "Workspace": "core.workspace",
    "analyse_corpus": "core.corpus.statistics",
    "build_shards": "core.api",
    "classify": "core.inference.classification",
    "clean": "core.api",
    "evaluate": "core.api",
    "fill_mask": "core.inference",
    "finetune": "core.api",
    "generate": "core.inference",
    "generate_stream": "core.inference",
    "load_sources": "core.config",
    "perplexity": "core.inference",
    "preflight": "core.api",
    "pretrain": "core.api",
    "preview_cleaning": "core.corpus.cleaning.preview",
    "push": "core.api",
    "quickstart": "core.api",
    "tag": "core.inference.classification",
    "train": "core.api",
    "train_tokenizer": "core.api",
}

__all__ = [
    "AnalyseConfig",
    "Artifact",
    "CleanConfig",
    "CorpusConfig",
    "EvaluateConfig",
    "FinetuneConfig",
    "NamedSource",
    "PreflightConfig",
    "PretrainConfig",
    "PushConfig",
    "QuickstartConfig",
    "ShardConfig",
    "StudioError",
    "TokenizerConfig",
    "TrainConfig",
    "Workspace",
    "analyse_corpus",
    "build_shards",
    "classify",
    "clean",
    "evaluate",
    "fill_mask",
    "finetune",
    "generate",
    "generate_stream",
    "load_sources",
    "perplexity",
    "preflight",
    "pretrain",
    "preview_cleaning",
    "push",
    "quickstart",
    "tag",
    "train",
    "train_tokenizer",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'core' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
