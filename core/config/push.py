"""Options of publication on the Hugging Face Hub."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import field_validator, model_validator

from core.config.base import StageConfig
from core.config.options import BRANCH_PATTERN, HUB_ID_PATTERN, LANGUAGE_PATTERN, LICENSES, option


class PushConfig(StageConfig):
    """Options for publishing on the Hugging Face Hub.

    Access tokens are not options: they come from HF_TOKEN or the Hub's own login.
    """

    kind: Literal["model", "tokenizer", "shards"] = option(
        "model",
        "What to publish. Shards become a dataset repository.",
        title="What",
        group="What",
        basic=True,
    )
    model: str = option(
        "",
        "A model's name in the workspace, or a checkpoint folder; for a Space alone, an id on the "
        "Hub.",
        group="Model",
        basic=True,
        artifact="model",
    )
    tokenizer: str = option(
        "",
        "A tokenizer's name in the workspace, or its folder.",
        group="Tokenizer",
        basic=True,
        artifact="tokenizer",
    )
    shards: str = option(
        "",
        "The shards' name in the workspace, or their folder.",
        group="Shards",
        basic=True,
        artifact="shards",
    )
    repo_id: str = option(
        "",
        "The repository, like owner/name; without an owner it is yours. It is made where there is "
        "none. Empty: called as what is published.",
        title="Hub id",
        group="Where",
        basic=True,
        pattern=HUB_ID_PATTERN,
    )
    private: bool = option(
        True,
        "Only you can see the repository. Off: everybody can, even if it was private before.",
        group="Where",
        basic=True,
    )
    revision: str = option(
        "",
        "A branch to push to, made where there is none. Empty: main.",
        title="Branch",
        group="Where",
        pattern=BRANCH_PATTERN,
    )
    commit_message: str = option("", "Empty: says what is pushed.", group="Where")
    license: str = option(
        "",
        "The licence that the card names, as the Hub writes it: apache-2.0, mit, cc-by-4.0.",
        title="Licence",
        group="Card",
        basic=True,
        choices=LICENSES,
    )
    language: str = option(
        "",
        "The text's languages for the card, as ISO codes: en, or de, fr.",
        group="Card",
        basic=True,
        pattern=LANGUAGE_PATTERN,
    )
    description: str = option(
        "", "A sentence or two that the card begins with.", group="Card", basic=True
    )
    space: bool = option(
        False,
        "Also make a Space called the same: a demo of the model that answers in the browser.",
        title="Make a Space",
        group="Model",
        basic=True,
    )
    dry_run: bool = option(
        False, "Only show the files and the card; nothing is sent.", group="Where"
    )

    @field_validator("repo_id")
    @classmethod
    def _check_hub_id(cls, repo_id: str) -> str:
        if repo_id:
            from core.hub.ids import check_hub_id

            check_hub_id(repo_id, field="repo_id")
        return repo_id

    @model_validator(mode="before")
    @classmethod
    def _infer_kind(cls, values: Any) -> Any:
        """Infers the kind from the artifact that is named, and drops names of other kinds."""
        if not isinstance(values, dict):
            return values
        kinds = ("model", "tokenizer", "shards")
        named = [name for name in kinds if values.get(name)]
        if "kind" not in values:
            return {**values, "kind": named[0]} if len(named) == 1 else values
        others = [name for name in kinds if name != values["kind"]]
        return {name: value for name, value in values.items() if name not in others}
