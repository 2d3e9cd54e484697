"""Starts pretraining, here or in the queue."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from core.config.base import StageConfig
from core.config.pretrain import PretrainConfig
from core.families import find_family
from core.pretraining.reading import readable
from core.pretraining.stages import pretrain_stages
from core.runs.chain import reserved_names, submit_chain
from core.runs.local import run_here
from core.shards.examples import HOLE, example_sentences, with_hole
from core.workspace.manifests import Artifact
from core.workspace.workspace import Workspace

_BEGINNING_WORDS = 4
_ANY_SENTENCE = "This is the first sentence of a text."
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def config_of(text: str, **settings: Any) -> PretrainConfig:
    """Returns the config for a file, a folder, a pattern or a dataset on the Hub (owner/name).

    Raises:
        ConfigError: A setting is wrong.
    """
    return PretrainConfig.parse({"corpus": {**corpus_values(text)}, **settings})


def corpus_values(text: str) -> dict[str, str]:
    """Returns the options of the corpus that a text stands for."""
    if _HUB_ID.fullmatch(text) and not Path(text).exists():
        return {"source": "hub", "dataset_name": text}
    return {"source": "files", "path": text}


def stages_to_start(workspace: Workspace, config: PretrainConfig) -> list[tuple[str, StageConfig]]:
    """Returns the stages with free names, on files that are read as a look at them suggests.

    Raises:
        ConfigError, CorpusError: There is no readable text.
    """
    corpus, _ = readable(config.corpus, workspace)
    config = config.model_copy(update={"corpus": corpus})
    return pretrain_stages(config, workspace, reserved_names(workspace))


def submit_pretraining(workspace: Workspace, config: PretrainConfig) -> list[str]:
    """Queues the stages; returns their runs in order.

    Raises:
        ConfigError: A setting is wrong.
    """
    return submit_chain(workspace, stages_to_start(workspace, config))


def run_pretraining(workspace: Workspace, config: PretrainConfig) -> Artifact:
    """Runs the stages in this process; returns the model."""
    stages = stages_to_start(workspace, config)
    return [run_here(stage, stage_config, workspace) for stage, stage_config in stages][-1]


def try_command(model: str, workspace: Workspace) -> list[str]:
    """Returns the words of a command that tries a model on a sentence that it was measured on."""
    config = workspace.find("model", model).manifest.config
    is_encoder = find_family(str(config["family"])).kind == "encoder"
    cut = _with_mask if is_encoder else _beginning
    sentence = next(iter(example_sentences(str(config["shards"]), workspace, cut, 1)), "")
    command = "fill-mask" if is_encoder else "generate"
    return ["studio", command, model, sentence or cut(_ANY_SENTENCE)]


def _with_mask(sentence: str) -> str:
    return with_hole(sentence).replace(HOLE, "[MASK]")


def _beginning(sentence: str) -> str:
    words = sentence.split()
    # In a script without spaces, half of the letters.
    return " ".join(words[:_BEGINNING_WORDS]) if len(words) > 1 else sentence[: len(sentence) // 2]
