"""Tests that invalid repository ids are refused everywhere before a request is sent."""

from __future__ import annotations

from pathlib import Path

import pytest

from core import PushConfig, TrainConfig, Workspace
from core.errors import ConfigError
from core.hub.client import parse_hub_id
from core.hub.pull import pull_model, pull_tokenizer
from core.network.hub_ids import check_hub_id, flaw_of_hub_id
from core.publishing.push import check

BAD = [
    "me/a--b", "me/a..b", "me/name.", "me/name-", "me/" + "x" * 100, "me/y.git", "me/y.ipynb",
    "me/-a", "me-/a", "me/a/b", "me/é", "me/a b", "a--b", "", "me/", "/a", "..", "me/.a",
]  # fmt: skip
GOOD = ["me/fine-1.2_x", "fine", "a/b", "me/" + "x" * 96, "me_too/x", "me/x.github"]


@pytest.mark.parametrize("repo_id", BAD)
def test_repository_id_that_the_hub_refuses_is_refused(repo_id: str) -> None:
    assert flaw_of_hub_id(repo_id)
    with pytest.raises(ConfigError, match="is not a valid repository id"):
        check_hub_id(repo_id)
    assert parse_hub_id(repo_id) is None


@pytest.mark.parametrize("repo_id", GOOD)
def test_repository_id_that_the_hub_accepts_is_accepted(repo_id: str) -> None:
    assert flaw_of_hub_id(repo_id) == ""


@pytest.mark.parametrize("repo_id", [one for one in BAD if one])
def test_config_with_an_invalid_repository_id_is_refused(repo_id: str) -> None:
    with pytest.raises(ConfigError) as caught:
        PushConfig(model="m", repo_id=repo_id)
    assert caught.value.field == "repo_id"
    with pytest.raises(ConfigError) as caught:
        TrainConfig(shards="s", push_to_hub=True, hub_model_id=repo_id)
    assert caught.value.field == "hub_model_id"


def test_name_used_as_a_repository_id_is_checked(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        TrainConfig(shards="s", push_to_hub=True, name="a--b")
    assert caught.value.field == "name"
    assert TrainConfig(shards="s", push_to_hub=True, name="a--b", hub_model_id="me/b")
    workspace = Workspace(tmp_path)
    with workspace.new_artifact("tokenizer", "a--b") as draft:
        (draft.folder / "tokenizer.json").write_text("{}")
    with pytest.raises(ConfigError, match="is not a valid repository id"):
        check(PushConfig(tokenizer="a--b"), workspace)


def test_invalid_repository_id_is_refused_without_a_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(ConfigError, match="is not a valid repository id"):
        pull_model("me/a--b")
    with pytest.raises(ConfigError, match="is not a valid repository id"):
        pull_tokenizer("a..b", ("tokenizer.json",))
