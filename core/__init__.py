"""Pretrain Studio: train a language model from scratch.

Names load on first use, so `import core` imports no backend.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from core.earlier_names import find_earlier_names, imported_on_use

# ONNX Runtime would report its use to Microsoft as soon as any package imports it.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

if TYPE_CHECKING:
    from core.api import (
        build_shards,
        clean,
        evaluate,
        export,
        finetune,
        preflight,
        pretrain,
        push,
        quickstart,
        train,
        train_tokenizer,
    )
    from core.config.analyse import AnalyseConfig
    from core.config.clean import CleanConfig
    from core.config.corpus import CorpusConfig
    from core.config.evaluate import EvaluateConfig
    from core.config.export import ExportConfig
    from core.config.finetune import FinetuneConfig
    from core.config.named_source import NamedSource
    from core.config.preflight import PreflightConfig
    from core.config.pretrain import PretrainConfig
    from core.config.push import PushConfig
    from core.config.quickstart import QuickstartConfig
    from core.config.shards import ShardConfig
    from core.config.source_file import load_sources
    from core.config.tokenizer import TokenizerConfig
    from core.config.train import TrainConfig
    from core.corpus.cleaning.preview import preview_cleaning
    from core.corpus.statistics import analyse_corpus
    from core.errors import StudioError
    from core.inference.classification import classify, tag
    from core.inference.generation import generate, generate_stream
    from core.inference.masks import fill_mask
    from core.inference.scoring import perplexity
    from core.workspace.manifests import Artifact
    from core.workspace.workspace import Workspace

_HERE = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
# `python -m core` puts the current folder first, which may hold somebody else's modules.
if sys.argv[:1] == ["-m"] and not sys.flags.safe_path and os.path.realpath(sys.path[0]) != _HERE:
    del sys.path[0]

_HOMES = {
    "AnalyseConfig": "core.config.analyse",
    "Artifact": "core.workspace.manifests",
    "CleanConfig": "core.config.clean",
    "CorpusConfig": "core.config.corpus",
    "EvaluateConfig": "core.config.evaluate",
    "ExportConfig": "core.config.export",
    "FinetuneConfig": "core.config.finetune",
    "NamedSource": "core.config.named_source",
    "PreflightConfig": "core.config.preflight",
    "PretrainConfig": "core.config.pretrain",
    "PushConfig": "core.config.push",
    "QuickstartConfig": "core.config.quickstart",
    "ShardConfig": "core.config.shards",
    "StudioError": "core.errors",
    "TokenizerConfig": "core.config.tokenizer",
    "TrainConfig": "core.config.train",
    "Workspace": "core.workspace.workspace",
    "analyse_corpus": "core.corpus.statistics",
    "build_shards": "core.api",
    "classify": "core.inference.classification",
    "clean": "core.api",
    "evaluate": "core.api",
    "export": "core.api",
    "fill_mask": "core.inference.masks",
    "finetune": "core.api",
    "generate": "core.inference.generation",
    "generate_stream": "core.inference.generation",
    "load_sources": "core.config.source_file",
    "perplexity": "core.inference.scoring",
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
    "ExportConfig",
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
    "export",
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


find_earlier_names()
__getattr__ = imported_on_use(__name__, _HOMES)


def __dir__() -> list[str]:
    return __all__
