"""The web app as a whole: components, imports, public endpoints and server functions."""

import ast
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gradio as gr
import pytest

from core.config.tokenizer import TokenizerConfig
from core.config.train import TrainConfig
from core.errors import StudioError
from core.records.folder import RunFolder
from core.runs.execute import describe_artifact
from core.store import RunRow, Store
from core.workspace.workspace import Workspace
from ui import layout, runs, status_bar
from ui.parts import artifacts, disk
from ui.parts.navigation import titles
from ui.parts.run_rows import alert_kinds, ending_of, label_of, notices_of, remake_of
from ui.present import run_of

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> gr.Blocks:
    return layout.build_page(Workspace(tmp_path_factory.mktemp("workspace")))


def test_no_two_repeating_handlers_follow_the_same_event(page: gr.Blocks) -> None:
    # Gradio's front end repeats the event for both, so two would trigger each other for ever.
    followers: dict[tuple[Any, str], list[str]] = {}
    for handler in page.fns.values():
        if handler.fn is not None and handler.trigger_mode == "always_last":
            for event in handler.targets:
                followers.setdefault(event, []).append(handler.name)
    followers = {event: names for event, names in followers.items() if event[1] != "load"}
    assert len(followers) > 10
    assert {event: names for event, names in followers.items() if len(names) > 1} == {}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store.open(Workspace(tmp_path))
    yield store
    store.close()


def test_tabs_are_in_the_order_of_the_workflow(page: gr.Blocks) -> None:
    tabs = [block for block in page.blocks.values() if isinstance(block, gr.Tab)]
    assert [tab.id for tab in tabs] == list(titles())


def test_tabs_do_not_import_each_other() -> None:
    for tab in titles():
        tree = ast.parse((ROOT / "ui" / f"{tab}.py").read_text("utf-8"))
        modules = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        assert not modules & {f"ui.{other}" for other in titles()}, tab


@pytest.mark.slow(9)
def test_building_the_web_app_imports_no_backend(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "from core.workspace import Workspace\n"
        "from ui.layout import build_page\n"
        f"build_page(Workspace({str(tmp_path)!r}))\n"
        "engines = ('tensorflow', 'jax', 'keras', 'torch', 'transformers', 'datasets')\n"
        "print([name for name in engines if name in sys.modules])"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert ended.stdout.strip() == "[]"


def test_handlers_have_few_inputs_and_outputs(page: gr.Blocks) -> None:
    """Many inputs or tracked outputs keep a browser busy for seconds."""
    handlers = [fn for fn in page.fns.values() if fn.fn]
    assert len(handlers) > 50
    for handler in handlers:
        counted = handler.outputs if handler.show_progress_on is None else handler.show_progress_on
        assert len(handler.inputs) + len(counted) <= 12, handler.name


def test_only_inference_endpoints_are_public(page: gr.Blocks) -> None:
    assert list(page.get_api_info()["named_endpoints"]) == [
        *("/classify", "/tag", "/fill_mask", "/generate", "/perplexity")
    ]
    assert page.get_api_info()["unnamed_endpoints"] == {}


def test_every_input_component_has_a_label(page: gr.Blocks) -> None:
    kinds = (gr.Textbox, gr.Dropdown, gr.Radio, gr.Checkbox, gr.Slider, gr.File)
    for block in page.blocks.values():
        if isinstance(block, kinds):
            assert block.label, block.elem_id


def test_element_ids_are_unique(page: gr.Blocks) -> None:
    ids = [block.elem_id for block in page.blocks.values() if getattr(block, "elem_id", None)]
    assert len(ids) == len(set(ids))


def test_the_scripts_never_turn_text_into_markup() -> None:
    for script in (ROOT / "ui" / "assets").glob("*.js"):
        code = re.sub(r"//.*", "", script.read_text("utf-8"))
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", code)


def test_assets_load_nothing_from_other_hosts() -> None:
    for asset in (ROOT / "ui" / "assets").glob("*.*s"):
        assert not re.search(r"https?://|@import|url\(", asset.read_text("utf-8")), asset


def answers(workspace: Workspace, store: Store, part: Any = runs) -> dict[str, Any]:
    with gr.Blocks() as blocks:
        part.render(workspace, store)
    [component] = [b for b in blocks.blocks.values() if getattr(b, "server_fns", None)]
    return {function.__name__: function for function in component.server_fns}


def add_run(store: Store, run: str, state: str = "done", **values: Any) -> None:
    config = TokenizerConfig(name="words").model_dump(mode="json")
    store.add_run(
        RunRow(
            id=run, stage="tokenizer", name="words", state=state, config=config, after=[],
            created=1.0, warnings=[], results={},
        )
    )  # fmt: skip
    if values:
        store.update_run(run, **values)


def test_run_list_returns_only_changed_runs(tmp_path: Path, store: Store) -> None:
    ask = answers(Workspace(tmp_path), store)["list_runs"]
    add_run(store, "first")
    add_run(store, "second", "running", done=5, total=10, unit="documents")
    [second, first] = ask({})["runs"]
    assert second["progress"] == "5 of 10 documents"
    newest = {"newest": second["position"]}
    assert [run["id"] for run in ask(newest)["runs"]] == ["second"], "what runs is always told"
    store.update_run("second", state="done")
    assert ask(newest)["runs"] == []
    assert [run["id"] for run in ask({**newest, "open": ["second"]})["runs"]] == ["second"]
    add_run(store, "third")
    assert [run["id"] for run in ask(newest)["runs"]] == ["third"]
    assert first["label"] == "done"


def test_old_runs_are_listed_if_they_are_active_or_requested(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "_FIRST_RUNS", 2)
    ask = answers(Workspace(tmp_path), store)["list_runs"]
    for run, state in (
        ("asked", "done"),
        ("old", "done"),
        ("runs", "running"),
        ("stops", "stopping"),
    ):
        add_run(store, run, state)
    for run in ("new", "newest"):
        add_run(store, run)
    listed = [run["id"] for run in ask({"open": ["asked"]})["runs"]]
    assert listed == ["newest", "new", "stops", "runs", "asked"]


def test_older_runs_are_listed_on_demand(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "_FIRST_RUNS", 2)
    ask = answers(Workspace(tmp_path), store)["list_runs"]
    for run in "abcde":
        add_run(store, run, "queued")
    seen, oldest = [], None
    while oldest != 0:
        answer = ask({"before": oldest} if oldest else {})
        assert answer["queued"] == 5 and answer["active"] == 0
        seen.append([run["id"] for run in answer["runs"]])
        oldest = answer["oldest"]
    assert seen == [["e", "d"], ["c", "b"], ["a"]]


def test_figures_of_a_finished_run_are_those_of_its_model(tmp_path: Path, store: Store) -> None:
    results = {"eval_loss": 3.5, "best_step": 7, "seconds": 1.0, "eval_accuracy": None}
    add_run(store, "run", "done", stage="train", results=results)
    ask = answers(Workspace(tmp_path), store)["run_detail"]
    assert ask({"run": "run"})["figures"] == {"eval_loss": 3.5, "best_step": 7}
    store.requeue("run")
    assert ask({"run": "run"})["figures"] == {}


def test_run_deleted_elsewhere_is_reported_as_gone(tmp_path: Path, store: Store) -> None:
    ask = answers(Workspace(tmp_path), store)["list_runs"]
    add_run(store, "first")
    add_run(store, "second")
    question = {"newest": 2, "open": ["first", "second"]}
    assert ask(question)["gone"] == []
    store.remove_run("first")
    answer = ask(question)
    assert (answer["gone"], [run["id"] for run in answer["runs"]]) == (["first"], ["second"])


def test_a_run_shows_its_settings_and_its_command(tmp_path: Path, store: Store) -> None:
    add_run(store, "run")
    detail = answers(Workspace(tmp_path), store)["run_detail"]({"run": "run"})
    assert ("Minimum frequency", "2") in detail["settings"]
    assert "python -m core tokenizer --name words" in detail["commands"][0][1]


def test_run_with_settings_of_another_version_is_shown(tmp_path: Path, store: Store) -> None:
    add_run(store, "run", config={"gone": 1})
    detail = answers(Workspace(tmp_path), store)["run_detail"]({"run": "run"})
    assert detail["settings"] == [("gone", "1")]


def test_unknown_run_is_answered_with_a_problem(tmp_path: Path, store: Store) -> None:
    functions = answers(Workspace(tmp_path), store)
    for name in ("run_detail", "run_log"):
        assert "can't be a run's id" in functions[name]({"run": "../../etc"})["problem"]["problem"]
        assert "was not found" in functions[name]({"run": "other"})["problem"]["problem"]


def test_failed_run_shows_its_signal_error_and_log_tail(tmp_path: Path, store: Store) -> None:
    workspace = Workspace(tmp_path)
    add_run(store, "run", "failed", signal=9, reason="killed", error={"problem": "It ended"})
    folder = RunFolder.of(workspace, "run")
    folder.path.mkdir(parents=True)
    folder.log.write_text("first\nlast words\n")
    detail = answers(workspace, store)["run_detail"]({"run": "run"})
    assert detail["ending"] == "ended by signal 9 (SIGKILL)"
    assert detail["log_end"].endswith("last words")
    assert detail["error"]["problem"] == "It ended"


@pytest.mark.parametrize(
    ("state", "values", "words"),
    [
        ("failed", {"exit_code": 1}, "ended with exit code 1"),
        ("lost", {}, "the end of its process was not observed"),
        ("failed", {"reason": "dependency"}, ""),
        ("done", {"exit_code": 0}, ""),
    ],
)
def test_process_exit_is_described(
    store: Store, state: str, values: dict[str, Any], words: str
) -> None:
    add_run(store, "run", state, **{"reason": "", **values})
    assert ending_of(store.find_run("run")) == words


@pytest.mark.parametrize(
    ("stage", "reason", "label"),
    [
        ("train", "aborted", "stopped without saving"),
        ("train", "saved", "stopped: saved"),
        ("tokenizer", "aborted", "stopped"),
    ],
)
def test_label_of_a_stopped_run_says_whether_it_was_saved(
    store: Store, stage: str, reason: str, label: str
) -> None:
    add_run(store, "run", "stopped", stage=stage, reason=reason)
    assert label_of(store.find_run("run")) == label


@pytest.mark.parametrize(
    ("reason", "label"),
    [
        ("ShardError", "failed: shards"),
        ("RunError", "failed"),
        ("KeyError", "failed: unexpected error"),
        ("out_of_memory", "failed: out of memory"),
    ],
)
def test_reason_of_a_failure_names_no_class(store: Store, reason: str, label: str) -> None:
    error = {"problem": "The shards are damaged", "fix": "restore the file"}
    add_run(store, "run", "failed", reason=reason, error=error)
    row = store.find_run("run")
    assert label_of(row) == label
    assert notices_of(row)[0]["message"] == "The shards are damaged. Restore the file."


def test_run_failed_by_its_input_offers_to_make_it_again(tmp_path: Path, store: Store) -> None:
    add_run(store, "made", stage="shards", name="rows")
    config = TrainConfig(shards="rows").model_dump(mode="json")
    add_run(store, "run", "failed", stage="train", reason="ShardError", config=config)
    detail = answers(Workspace(tmp_path), store)["run_detail"]({"run": "run"})
    assert detail["remake"] == {"run": "made", "tab": "shards", "words": "Build these shards again"}
    add_run(store, "other", "failed", stage="train", reason="out_of_memory", config=config)
    assert remake_of(store.find_run("other"), store) is None


def test_alerts_are_reported_by_kind_and_number(store: Store) -> None:
    warnings = [
        {"time": 1.0, "message": "a word on the side"},
        {"time": 2.0, "message": "jumped", "alert": "loss_spike", "number": 7},
        {"time": 3.0, "message": "left out", "alert": "damaged_record", "number": 9},
    ]
    add_run(store, "run", "failed", warnings=warnings, error={"problem": "It ended", "fix": "wait"})
    row = store.find_run("run")
    assert alert_kinds(row) == ["damaged record", "loss spike"]
    told = [(one["kind"], one["number"], one["bad"]) for one in notices_of(row)]
    assert told == [("loss spike", 7, False), ("damaged record", 9, False), ("failed", 1, True)]


def test_run_with_a_failed_dependency_raises_no_notice(store: Store) -> None:
    add_run(store, "run", "failed", reason="dependency", error={"problem": "It waited"})
    assert notices_of(store.find_run("run")) == []


def test_invalid_number_of_steps_is_refused(tmp_path: Path, store: Store) -> None:
    add_run(store, "run")
    act = answers(Workspace(tmp_path), store)["act_on_run"]
    for steps in ("", "many", "-5", "1.5"):
        answer = act({"run": "run", "action": "extend", "steps": steps})
        assert "number of steps" in answer["problem"]["problem"]


def test_no_function_of_the_board_takes_an_address_for_a_run(tmp_path: Path, store: Store) -> None:
    mirror = f"file://{tmp_path}/outside/runs/train-20260101-000000-abcd"
    functions = answers(Workspace(tmp_path), store)
    assert len(functions) > 10
    for name, answer in functions.items():
        for run in (mirror, "ssh://host/x/runs/a", "../../outside", "/outside"):
            for action in ("save", "abort", "resume", "extend", "delete"):
                found = answer({"run": run, "runs": [run], "action": action, "steps": "9"})
                is_about_runs = name not in ("list_runs", "search_runs", "show_machines")
                assert not is_about_runs or "problem" in found, name
    with pytest.raises(StudioError, match="That can't be a run's id"):
        run_of({"run": mirror})


def test_settings_of_another_version_are_not_cloned_into_a_form(store: Store) -> None:
    add_run(store, "run", config={"gone": 1})
    with pytest.raises(StudioError):
        runs._clone("run", store, {})


def status_of(tmp_path: Path, store: Store) -> Callable[..., dict[str, Any]]:
    with gr.Blocks():
        line = status_bar.render(Workspace(tmp_path), store)
    [ask] = line.server_fns
    return ask


def test_last_failure_is_reported_even_if_the_run_was_queued_long_ago(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status_bar, "_LOOKED_BACK", 3)
    add_run(store, "long", "failed", ended=99.0, error={"problem": "It ended", "fix": "wait"})
    for number, run in enumerate("abcd"):
        add_run(store, run, ended=float(number))
    add_run(store, "waited", "failed", ended=100.0, reason="dependency", error={"problem": "No"})
    status = status_of(tmp_path, store)({})
    assert status["last"]["id"] == "long"
    assert [one["run"] for one in status["notices"]] == ["long"]


def test_status_identifies_a_restarted_app(tmp_path: Path, store: Store) -> None:
    first, second = status_of(tmp_path, store), status_of(tmp_path, store)
    assert first({})["app"] == first({})["app"] != second({})["app"]


def test_disk_usage_is_returned_only_when_it_changes(tmp_path: Path, store: Store) -> None:
    workspace = Workspace(tmp_path)
    with workspace.new_artifact("tokenizer", "words") as draft:
        (draft.folder / "tokenizer.json").write_text("{}")
        draft.fingerprint = "1" * 16
    with workspace.new_artifact("shards", "rows") as draft:
        draft.inputs = {"tokenizer": "1" * 16}
    ask = answers(workspace, store, disk)["disk_use"]
    listed = ask({})
    assert [one["name"] for one in listed["artifacts"]] == ["rows", "words"]
    assert [one["made_from"] for one in listed["artifacts"]] == ["tokenizer words", ""]
    assert listed["artifacts"][1]["turned_into"] == "shards rows"
    assert "free" in listed["total"]
    assert ask({"seen": listed["seen"]}) == {}


def test_copied_artifact_is_listed_by_its_folder_name_with_the_run_that_made_it(
    tmp_path: Path, store: Store
) -> None:
    workspace = Workspace(tmp_path)
    with workspace.new_artifact("tokenizer", "words") as draft:
        (draft.folder / "tokenizer.json").write_text("{}")
    assert draft.artifact
    add_run(store, "maker")
    store.ingest("maker", [], [describe_artifact(draft.artifact)["artifact"]], {})
    shutil.copytree(draft.artifact.path, draft.artifact.path.with_name("backup"))
    listed = answers(workspace, store, disk)["disk_use"]({})["artifacts"]
    assert sorted(one["name"] for one in listed) == ["backup", "words"]
    assert [one["run"] for one in listed] == ["maker", "maker"]
    assert sorted(artifacts.list_names(workspace, "tokenizer")) == ["backup", "words"]


def test_deleting_a_missing_artifact_is_answered_with_a_problem(
    tmp_path: Path, store: Store
) -> None:
    delete = answers(Workspace(tmp_path), store, disk)["delete_one"]
    answer = delete({"kind": "tokenizer", "name": "words"})
    assert "was not found" in answer["problem"]["problem"]


def test_only_artifacts_in_the_workspace_can_be_deleted(tmp_path: Path, store: Store) -> None:
    elsewhere = Workspace(tmp_path / "elsewhere")
    with elsewhere.new_artifact("tokenizer", "words") as draft:
        (draft.folder / "tokenizer.json").write_text("{}")
    folder = elsewhere.find("tokenizer", "words").path
    delete = answers(Workspace(tmp_path), store, disk)["delete_one"]
    for name in (str(folder), "../elsewhere/tokenizers/words"):
        assert (
            "name is not valid" in delete({"kind": "tokenizer", "name": name})["problem"]["problem"]
        )
    assert folder.exists()
