"""The tools of agents, over the SDK's own client in memory: what they refuse, and what they say."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp.client import Client
from mcp.types import CallToolResult, TextContent, Tool

from core.agents.limits import Limits
from core.agents.server import build_server
from core.agents.tools import StudioTools
from core.store import Store
from core.sweeps.folder import SweepFolder
from core.targets.saved import save_machine
from core.workspace.confinement import ALLOWED_PATHS_VARIABLE
from core.workspace.workspace import Workspace
from tests.core.runs.support import stop_worker, wait_for, wait_until_ended
from tests.texts import write_sentences

SECRET = "the-loot-outside"


@pytest.fixture
def texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Makes the folder in which the server starts, and that agents may read."""
    folder = tmp_path / "texts"
    write_sentences(folder / "good.txt", 300)
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "loot.txt").write_text(f"{SECRET}\n" * 50)
    (folder / "link.txt").symlink_to(outside / "loot.txt")
    (folder / "linked").symlink_to(outside)
    (folder / "mixed").mkdir()
    (folder / "mixed" / "good.txt").write_text("A good sentence.\n" * 50)
    (folder / "mixed" / "loot.txt").symlink_to(outside / "loot.txt")
    monkeypatch.chdir(folder)
    monkeypatch.setenv(ALLOWED_PATHS_VARIABLE, str(folder))
    return folder


@pytest.fixture
def workspace(tmp_path: Path, texts: Path) -> Iterator[Workspace]:
    workspace = Workspace(tmp_path / "workspace")
    workspace.make_root()
    yield workspace
    stop_worker(workspace)


def call(workspace: Workspace, *calls: tuple[str, Mapping[str, Any]], **limits: Any) -> list[Any]:
    """Calls tools at the same time; returns their answers in order."""
    answers: list[Any] = [None] * len(calls)
    bounds = Limits(**{"max_runs": 20, "max_cost": 0.0, **limits})
    tools = StudioTools(workspace, bounds)

    async def main() -> None:
        async with Client(build_server(tools, bounds)) as client:

            async def ask(index: int) -> None:
                name, arguments = calls[index]
                answers[index] = await client.call_tool(name, dict(arguments))

            async with anyio.create_task_group() as group:
                for index in range(len(calls)):
                    group.start_soon(ask, index)

    try:
        anyio.run(main)
    finally:
        tools.close()
    return answers


def text_of(answer: CallToolResult) -> str:
    return "\n".join(part.text for part in answer.content if isinstance(part, TextContent))


def refusal_of(workspace: Workspace, tool: str, /, **arguments: Any) -> str:
    [answer] = call(workspace, (tool, arguments))
    assert answer.is_error, text_of(answer)
    assert SECRET not in text_of(answer)
    return text_of(answer)


def has_runs(workspace: Workspace) -> bool:
    store = Store.open(workspace)
    try:
        return store.has_runs()
    finally:
        store.close()


def list_tools(workspace: Workspace, max_cost: float) -> dict[str, Tool]:
    bounds = Limits(5, max_cost)
    tools = StudioTools(workspace, bounds)

    async def main() -> list[Tool]:
        async with Client(build_server(tools, bounds)) as client:
            return (await client.list_tools()).tools

    return {tool.name: tool for tool in anyio.run(main)}


def test_annotations_tell_which_tools_change_something_and_which_spend(
    workspace: Workspace,
) -> None:
    free, paid = list_tools(workspace, 0), list_tools(workspace, 2.5)
    hints = {name: tool.annotations for name, tool in paid.items()}
    changing = {name for name, hint in hints.items() if hint and not hint.read_only_hint}
    starts = {"start_pretraining", "start_training", "start_sweep"}
    assert changing == {*starts, "start_quickstart", "evaluate_model", "stop_run", "stop_sweep"}
    for name in starts:
        hint, without_money = hints[name], free[name].annotations
        assert hint and hint.destructive_hint and "up to $2.50" in str(hint.title)
        assert without_money and not without_money.destructive_hint
        assert "cost nothing" in str(without_money.title)
    for name in ("stop_run", "stop_sweep"):
        hint = hints[name]
        assert hint and hint.destructive_hint
    for tool in paid.values():
        assert (
            tool.description and tool.annotations and tool.annotations.open_world_hint is not None
        )


@pytest.mark.slow(7)
def test_agent_looks_at_a_text_and_gets_a_plan(workspace: Workspace) -> None:
    look, plan = call(
        workspace, ("look_at_corpus", {"text": "good.txt"}), ("suggest", {"text": "good.txt"})
    )
    assert look.structured_content["documents"] == 300
    assert len(look.structured_content["samples"]) == 3
    assert {"train"} < {each["stage"] for each in plan.structured_content["settings"]}
    assert not has_runs(workspace)


HOSTILE_TEXTS = (
    "/etc/passwd", "../outside/loot.txt", "~/.ssh/id_rsa", "link.txt", "linked", "linked/*.txt",
    "mixed", "*/../../outside/*.txt", "l*/loot.txt", "file:///etc/passwd",
    "https://example.org/x.txt", "s3://bucket/x", "ssh://-oProxyCommand=touch x/y",
    "local::/etc/passwd", "--output=/tmp/x", "$(touch pwned)", "`touch pwned`; touch pwned",
    "|touch pwned", "a\0b", "x" * 5000, "owner/../../etc", "owner/name.git",
)  # fmt: skip
HOSTILE_NAMES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("complete_text", {"model": "../../outside", "text": "x"}),
    ("complete_text", {"model": "/etc", "text": "x"}),
    ("complete_text", {"model": "owner/name", "text": "x"}),
    ("complete_text", {"model": "linked", "text": "x"}),
    ("complete_text", {"model": "../runs/x@best", "text": "x"}),
    ("evaluate_model", {"model": "hf://owner/name"}),
    ("evaluate_model", {"model": "--help"}),
    ("start_training", {"shards": "../../outside"}),
    ("start_training", {"shards": "gs://bucket/shards"}),
    ("start_sweep", {"shards": "/etc", "options": {"seed": [1]}, "max_runs": 2}),
    ("start_pretraining", {"text": "good.txt", "name": "../../outside/x"}),
    ("start_pretraining", {"text": "good.txt", "name": "-rf"}),
    ("start_pretraining", {"text": "good.txt", "family": "../bert"}),
    ("start_pretraining", {"text": "good.txt", "minutes": 1e300}),
    ("start_pretraining", {"text": "good.txt", "machine": "ssh://-oProxyCommand=x"}),
    ("start_pretraining", {"text": "good.txt", "machine": "sky://; touch pwned"}),
    ("read_log", {"run": "../../../etc"}),
    ("show_run", {"run": "%"}),
    ("stop_run", {"run": "/"}),
    ("draw_curves", {"runs": ["../x"]}),
    ("show_sweep", {"sweep": "../../outside"}),
    ("stop_sweep", {"sweep": "-x"}),
    ("read_docs", {"page": "../../etc/passwd"}),
    ("list_artifacts", {"kind": "../runs"}),
    ("wait_for_run", {"run": "x", "seconds": 10**9}),
)
HOSTILE_SETTINGS: tuple[dict[str, Any], ...] = (
    {"push_to_hub": True}, {"target": "ssh://host"}, {"price_per_hour": 0}, {"max_cost": 9},
    {"output": "/tmp/x"}, {"mirror": "s3://bucket"}, {"webhook": "https://example.org"},
    {"checkpoint": "/etc"}, {"model_config_path": "/etc/passwd"}, {"nothing": 1},
)  # fmt: skip


def check_all_refused(
    workspace: Workspace, folder: Path, calls: Sequence[tuple[str, dict[str, Any]]]
) -> list[str]:
    """Checks that each call is refused with advice, and that none changes or starts anything."""
    before = sorted([*folder.glob("*"), *folder.glob("texts/**/*"), *folder.glob("outside/**/*")])
    answers = call(workspace, *calls)
    for (tool, arguments), answer in zip(calls, answers, strict=True):
        text = text_of(answer)
        assert answer.is_error and SECRET not in text, (tool, arguments, text)
        # The SDK hides the text of an exception that no tool expects.
        assert text != f"Error executing tool {tool}", (tool, arguments)
    after = sorted([*folder.glob("*"), *folder.glob("texts/**/*"), *folder.glob("outside/**/*")])
    assert after == before
    assert not has_runs(workspace)
    return list(map(text_of, answers))


@pytest.mark.parametrize("tool", ["look_at_corpus", "suggest", "start_pretraining"])
def test_hostile_text_reaches_no_file_outside_and_no_shell(
    workspace: Workspace, tmp_path: Path, tool: str
) -> None:
    check_all_refused(workspace, tmp_path, [(tool, {"text": text}) for text in HOSTILE_TEXTS])


def test_hostile_names_reach_no_file_outside_and_no_shell(
    workspace: Workspace, tmp_path: Path
) -> None:
    check_all_refused(workspace, tmp_path, HOSTILE_NAMES)


def test_hostile_data_of_an_evaluation_is_refused(workspace: Workspace, tmp_path: Path) -> None:
    with workspace.new_artifact("model", "small"):
        pass
    calls = [("evaluate_model", {"model": "small", "data": text}) for text in HOSTILE_TEXTS]
    check_all_refused(workspace, tmp_path, calls)


def test_only_numbers_switches_and_choices_are_set(workspace: Workspace, tmp_path: Path) -> None:
    with workspace.new_artifact("shards", "rows"):
        pass
    sweep = {"shards": "rows", "max_runs": 1, "options": {"seed": [1, 2]}}
    calls = [
        call
        for settings in HOSTILE_SETTINGS
        for call in (
            ("start_training", {"shards": "rows", "settings": settings}),
            ("start_sweep", {**sweep, "settings": settings}),
            ("start_sweep", {**sweep, "options": settings}),
        )
    ]
    for refusal in check_all_refused(workspace, tmp_path, calls):
        assert "no setting that agents choose" in refusal


def test_start_beyond_the_limit_of_runs_queues_nothing(workspace: Workspace) -> None:
    with workspace.new_artifact("shards", "rows"):
        pass
    sweep = {"shards": "rows", "options": {"seed": [1, 2, 3]}, "max_runs": 3}
    answers = call(
        workspace, ("start_quickstart", {}), ("start_pretraining", {"text": "good.txt"}),
        ("start_sweep", sweep), max_runs=2,
    )  # fmt: skip
    for answer in answers:
        assert answer.is_error and "The limit of runs is reached" in text_of(answer)
        assert "--max-runs" in text_of(answer)
    assert not has_runs(workspace)


def test_machine_with_a_price_needs_a_limit_of_money(workspace: Workspace) -> None:
    save_machine(workspace, "ssh://gpu.invalid", "paid", 2.0)
    save_machine(workspace, "ssh://old.invalid", "unknown")
    start = {"text": "good.txt", "machine": "paid"}
    assert "The limit of money is reached" in refusal_of(workspace, "start_pretraining", **start)
    start["machine"] = "unknown"
    assert "The price of unknown is unknown" in refusal_of(workspace, "start_pretraining", **start)
    [answer] = call(workspace, ("start_pretraining", {**start, "machine": "paid", "max_cost": 6}),
                    max_cost=5.0)  # fmt: skip
    assert answer.is_error and "of which $5.00 are left" in text_of(answer)
    assert not has_runs(workspace)


@pytest.mark.slow(5)
def test_parallel_starts_on_a_machine_share_the_limit_of_money(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STUDIO_SSH_COMMAND", "false")
    save_machine(workspace, "ssh://gpu.invalid", "paid", 2.0)
    with workspace.new_artifact("shards", "rows"):
        pass
    start = ("start_training", {"shards": "rows", "machine": "paid", "max_cost": 3})
    answers = call(workspace, start, start, start, max_cost=5.0)
    accepted = [answer for answer in answers if not answer.is_error]
    assert len(accepted) == 1
    assert accepted[0].structured_content["limits"]["dollars_left"] == 2
    row = wait_until_ended(workspace, accepted[0].structured_content["run"], 60)
    assert (row.config["max_cost"], row.config["price_per_hour"]) == (3, 2)
    assert row.config["target"] == "ssh://gpu.invalid"
    tools = StudioTools(workspace, Limits(1, 5.0))
    assert tools._cost_of_run(row.id) == 0, "no machine was launched"


@pytest.mark.slow(10)
def test_parallel_sweeps_share_the_limits(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STUDIO_SSH_COMMAND", "false")
    save_machine(workspace, "ssh://gpu.invalid", "paid", 2.0)
    with workspace.new_artifact("shards", "rows"):
        pass
    sweep = {"shards": "rows", "options": {"seed": [1, 2]}, "max_runs": 2, "machine": "paid"}
    start = ("start_sweep", {**sweep, "max_cost": 3})
    answers = call(workspace, start, start, max_cost=5.0)
    [accepted] = [answer.structured_content for answer in answers if not answer.is_error]
    assert accepted["limits"] == {
        "max_runs": 20, "runs_left": 18, "max_cost": 5.0, "dollars_left": 2.0
    }  # fmt: skip
    folder = SweepFolder.find(workspace, accepted["sweep"])
    config = folder.read_record().config
    assert (config.max_runs, config.max_cost) == (2, 3)
    assert (config.base["target"], config.base["price_per_hour"]) == ("ssh://gpu.invalid", 2)
    wait_for(lambda: not folder.is_driven(), 60)


def test_answers_hold_no_secret(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_abcdefghijklmnopqrstuvwxyz")
    Path("told.txt").write_text("my token is hf_abcdefghijklmnopqrstuvwxyz\n" * 20)
    [answer] = call(workspace, ("look_at_corpus", {"text": "told.txt"}))
    assert not answer.is_error
    assert "hf_abcdefghij" not in json.dumps(answer.model_dump(mode="json"))
    assert "hf_abcdefghij" not in refusal_of(
        workspace, "show_run", run="hf_abcdefghijklmnopqrstuvwxyz"
    )


def test_documentation_is_read_searched_and_served_as_resources(workspace: Workspace) -> None:
    listed, page, lines = call(
        workspace, ("read_docs", {}), ("read_docs", {"page": "sweeps"}),
        ("read_docs", {"search": "unigram baseline"}),
    )  # fmt: skip
    assert "sweeps:" in text_of(listed)
    assert text_of(page).startswith("# ")
    assert "baseline" in text_of(lines).lower()
    bounds = Limits(1, 0)
    tools = StudioTools(workspace, bounds)

    async def main() -> str:
        async with Client(build_server(tools, bounds)) as client:
            return str((await client.read_resource("docs://sweeps")).contents[0])

    assert "max_cost" in anyio.run(main)
