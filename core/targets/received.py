"""Turns a run's description in a mirror, which is untrusted, into a config for this workspace."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from core.config.base import StageConfig
from core.config.options import split_references
from core.errors import StudioError
from core.stages.registry import STAGES, parse_stage_config
from core.targets.errors import MirrorError
from core.targets.schema import DATA_FIELDS, INPUT_FIELDS, Input, RunSpec
from core.workspace.names import expand_path
from core.workspace.workspace import Workspace

# What they ask for is decided here: machines, publication, and files outside the workspace; also
# evaluations, which read such files.
_LOCAL_FIELDS = (
    "target",
    "mirror",
    "max_hours",
    "max_cost",
    "price_per_hour",
    "output",
    "checkpoint_words",
    "report_to",
    "project",
    "webhook",
    "webhook_format",
    "push_to_hub",
    "hub_model_id",
    "hub_private_repo",
    "num_processes",
    "process_id",
    "coordinator_address",
    "tpu_name",
    "tpu_zone",
    "gcp_project",
)
_HUB_NAME = re.compile(
    "(albert|bert|camembert|ctrl|distil|gpt2|openai|roberta|t5|transfo|xlm|xlnet)", re.IGNORECASE
)
_KINDS = {
    "shards": "shards", "mixture": "shards", "tokenizer": "tokenizer", "checkpoint": "model",
    "model": "model",
}  # fmt: skip
_PUBLIC_SCHEMES = ("gs", "gcs", "s3", "s3a", "az", "abfs", "abfss", "oci", "hf", "https")


def parse_received(spec: RunSpec) -> StageConfig:
    """Parses the config of a run without what only its own machine and user may decide.

    Raises MirrorError for a stage that has no mirror.
    """
    stage = STAGES.get(spec.stage)
    if stage is None or "mirror" not in stage.config.model_fields:
        raise _refused(f"a run of the stage {spec.stage}")
    fields = stage.config.model_fields
    evaluated = {name for name in fields if name.startswith("evaluate_")} - {"evaluate_only"}
    local = {name: fields[name].default for name in fields if name in {*_LOCAL_FIELDS, *evaluated}}
    return parse_stage_config(spec.stage, {**spec.config, **local})


def is_hub_name(name: str) -> bool:
    """Returns whether people may take an artifact's name for a model of the Hub without an owner.

    Those are of the Hub's first years; new ones can't be made.
    """
    return _HUB_NAME.match(name) is not None


def check_references(
    config: StageConfig, placed: Mapping[str, Any], spec: RunSpec, workspace: Workspace
) -> None:
    """Raises MirrorError if a config names files of this machine that the run didn't bring."""
    mixed = {run_input.name for run_input in spec.inputs if run_input.field == "mixture"}
    for name in INPUT_FIELDS:
        value = str(getattr(config, name, ""))
        values = set(split_references(value)) - mixed if name == "mixture" else {value} - {""}
        for reference in values if name not in placed else ():
            if _is_local(name, reference, workspace):
                raise _refused(f"{name}={reference}, a file or folder of this machine"[:300])


def check_brought(config: StageConfig, inputs: Sequence[Input]) -> None:
    """Raises MirrorError if a config names anything that the run didn't bring."""
    fields = [run_input.field for run_input in inputs if run_input.field != "mixture"]
    if twice := next((name for name in fields if fields.count(name) > 1), ""):
        raise _refused(f"two inputs for {twice}")
    mixed = {run_input.name for run_input in inputs if run_input.field == "mixture"}
    for name in INPUT_FIELDS:
        value = str(getattr(config, name, ""))
        given = set(split_references(value)) - mixed if name == "mixture" else {value} - {""}
        for reference in given if name not in fields else ():
            raise _refused(f"{name}={reference}, which is not in the mirror"[:300])


def _is_local(name: str, value: str, workspace: Workspace) -> bool:
    if name in DATA_FIELDS:  # Perhaps a pattern.
        return True
    if "://" in value or "::" in value:
        return "::" in value or urlsplit(value).scheme not in _PUBLIC_SCHEMES
    kind = _KINDS.get(name, "")
    try:
        place = expand_path(value, field=name)
    except StudioError:
        return True
    return place.exists() or bool(kind and (workspace.folder(kind) / Path(value)).exists())


def _refused(received: str) -> MirrorError:
    return MirrorError(
        "The run can't be executed or shown here",
        expected="a run with a mirror, and with the files that its description lists",
        received=received,
        fix="check the mirror's address; if it is right, ask who wrote there",
    )
