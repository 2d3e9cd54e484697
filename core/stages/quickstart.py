"""The quickstart: all stages on the built-in corpus."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from core.config.base import StageConfig
from core.config.corpus import CorpusConfig
from core.config.quickstart import QuickstartConfig
from core.config.shards import ShardConfig
from core.config.tokenizer import TokenizerConfig
from core.config.train import TrainConfig
from core.workspace.workspace import Workspace


def quickstart_stages(
    config: QuickstartConfig, workspace: Workspace, promised: Mapping[str, Collection[str]]
) -> list[tuple[str, StageConfig]]:
    """Returns the quickstart's stages, linked by name.

    They reach 3.4 nats below the unigram baseline (benchmarks/trials.md).
    """
    corpus = CorpusConfig(source="docs", limit=config.limit)
    tokenizer_name, shards_name, model_name = [
        workspace.free_name(kind, "quickstart", promised[kind])
        for kind in ("tokenizer", "shards", "model")
    ]
    return [
        (
            "tokenizer",
            TokenizerConfig(name=tokenizer_name, corpus=corpus, vocab_size=4096, preset="custom"),
        ),
        (
            "shards",
            ShardConfig(
                name=shards_name,
                corpus=corpus,
                tokenizer=tokenizer_name,
                max_seq_length=64,
                preset="custom",
            ),
        ),
        (
            "train",
            TrainConfig(
                name=model_name,
                shards=shards_name,
                size=config.size,
                num_train_steps=config.num_train_steps or 1500,
                eval_steps=100,
                sample_predictions=3,
                per_replica_batch_size=64,
                engine=config.engine,
                seed=config.seed,
            ),
        ),
    ]
