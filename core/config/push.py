"""Options of publication on the Hugging Face Hub."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import field_validator, model_validator

from core.config.base import StageConfig
from core.config.options import BRANCH_PATTERN, HUB_ID_PATTERN, LANGUAGE_PATTERN, LICENSES, option
from core.network.hub_ids import check_hub_id


class PushConfig(StageConfig):
    """Options for publishing; tokens are never options."""

    kind: Literal["model", "tokenizer", "shards"] = option(
        "model",
        "What to publish.",
        title="What",
        options={
            "model": ("Model", ""),
            "tokenizer": ("Tokenizer", ""),
            "shards": ("Shards", "Shards become a dataset repository"),
        },
        group="What",
        basic=True,
    )
    model: str = option(
        "",
        "Name in the workspace, or a checkpoint folder.",
        details="For a Space alone, also a Hub id.",
        group="Model",
        basic=True,
        artifact="model",
    )
    tokenizer: str = option(
        "",
        "Name in the workspace, or a folder.",
        group="Tokenizer",
        basic=True,
        artifact="tokenizer",
    )
    shards: str = option(
        "",
        "Name in the workspace, or a folder.",
        group="Shards",
        basic=True,
        artifact="shards",
    )
    repo_id: str = option(
        "",
        "Repository, as in owner/name; created if missing.",
        details="Without an owner it is yours. Empty: the name of the model, tokenizer or shards.",
        title="Hub id",
        group="Where",
        basic=True,
        pattern=HUB_ID_PATTERN,
    )
    private: bool = option(
        True,
        "Only you can see the repository; off makes it public.",
        group="Where",
        basic=True,
    )
    revision: str = option(
        "",
        "Branch to push to; empty means main. Created if missing.",
        title="Branch",
        group="Where",
        pattern=BRANCH_PATTERN,
    )
    commit_message: str = option(
        "", "Commit message; empty means a description of the push.", group="Where"
    )
    license: str = option(
        "",
        "Licence in the card, such as apache-2.0 or mit.",
        title="Licence",
        group="Card",
        basic=True,
        choices=LICENSES,
    )
    language: str = option(
        "",
        "Languages of the text as ISO codes, such as en or de, fr.",
        group="Card",
        basic=True,
        pattern=LANGUAGE_PATTERN,
    )
    description: str = option("", "First sentences of the card.", group="Card", basic=True)
    space: bool = option(
        False,
        "Also create a Space of the same name: a demo of the model.",
        title="Make a Space",
        group="Model",
        basic=True,
    )
    exports: bool = option(
        False,
        "Also send the model's exports, such as GGUF and ONNX files.",
        title="Add exports",
        group="Model",
        is_later=True,
    )
    dry_run: bool = option(
        False, "Only show the files and the card; nothing is sent.", group="Where"
    )

    @field_validator("repo_id")
    @classmethod
    def _check_hub_id(cls, repo_id: str) -> str:
        if repo_id:
            check_hub_id(repo_id, field="repo_id")
        return repo_id

    @model_validator(mode="before")
    @classmethod
    def _infer_kind(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        kinds = ("model", "tokenizer", "shards")
        named = [name for name in kinds if values.get(name)]
        if "kind" not in values:
            return {**values, "kind": named[0]} if len(named) == 1 else values
        others = [name for name in kinds if name != values["kind"]]
        return {name: value for name, value in values.items() if name not in others}
