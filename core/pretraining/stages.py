"""The stages of pretraining, linked by name; settings that aren't set follow from the text."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from pathlib import PurePath

from core.config.base import StageConfig
from core.config.clean import CleanConfig
from core.config.corpus import CorpusConfig
from core.config.pretrain import PretrainConfig
from core.config.shards import ShardConfig
from core.config.tokenizer import TokenizerConfig
from core.config.train import TrainConfig
from core.families import objectives_of_family
from core.targets.saved import price_of
from core.workspace.workspace import Workspace

_SAMPLES = 3
_LONGEST_NAME = 40
# Longer documents are cut, so that a text of few of them can be held out in part.
_PASSAGE_CHARACTERS = 2000


def pretrain_stages(
    config: PretrainConfig, workspace: Workspace, reserved: Mapping[str, Collection[str]]
) -> list[tuple[str, StageConfig]]:
    """Returns the stages: cleaning of exact copies, tokenizer, shards and training.

    Args:
        config: Its corpus is read as it is, see `readable`.
        reserved: Names that queued runs will take, by kind of artifact.
    """
    name = config.name or _name_of(config.corpus)
    names = {
        kind: workspace.free_name(kind, name, reserved.get(kind, ()))
        for kind in ("corpus", "tokenizer", "shards", "model")
    }
    stages: list[tuple[str, StageConfig]] = []
    corpus = config.corpus
    if corpus.max_document_characters is None:
        corpus = corpus.model_copy(update={"max_document_characters": _PASSAGE_CHARACTERS})
    if corpus.source != "corpus":
        cleaning = CleanConfig(
            name=names["corpus"],
            corpus=corpus,
            near_duplicates=False,
            unicode_form="none",
            fix_encoding=False,
        )
        stages.append(("clean", cleaning))
        corpus = CorpusConfig(source="corpus", corpus_name=names["corpus"])
    tokenizer = TokenizerConfig(name=names["tokenizer"], family=config.family, corpus=corpus)
    shards = ShardConfig.parse(
        {
            "name": names["shards"],
            "corpus": corpus,
            "tokenizer": names["tokenizer"],
            "objective": objectives_of_family(config.family)[0],
        }
    )
    training = TrainConfig(
        name=names["model"],
        shards=names["shards"],
        family=config.family,
        size=config.size,
        minutes=config.minutes,
        target=config.target,
        price_per_hour=price_of(workspace, config.target),
        sample_predictions=_SAMPLES,
        seed=config.seed,
    )
    return [*stages, ("tokenizer", tokenizer), ("shards", shards), ("train", training)]


def _name_of(corpus: CorpusConfig) -> str:
    """Derives a name from the text's file or dataset."""
    shown = {
        "files": PurePath(corpus.path.rstrip("/")).name.split(".")[0],
        "hub": corpus.dataset_name.rpartition("/")[2],
        "corpus": corpus.corpus_name,
    }.get(corpus.source, corpus.short_name)
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", shown).strip("-._")[:_LONGEST_NAME]
    return name or "my-text"
