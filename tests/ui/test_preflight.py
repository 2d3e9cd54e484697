"""The TPU preflight in the web app: the report, the settings it belongs to, and the form."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import gradio as gr
import pytest

from core.backends.devices import Devices, Hardware, is_description
from core.config.preflight import PreflightConfig
from core.config.train import TrainConfig
from core.errors import DeviceError
from core.records.events import EventLog
from core.records.folder import RunFolder
from core.runs.commands import python_lines
from core.runs.disk_usage import list_artifact_usage
from core.store import RunRow, Store
from core.training.preflight.report import Report
from core.workspace.manifests import Artifact
from core.workspace.workspace import Workspace
from tests.ui.browser import START_SECONDS, Visitor, find_chromium, running_app, visiting
from ui import layout, runs, train
from ui.forms import Form
from ui.parts import preflight

GIB = 2**30
FITTING: dict[str, Any] = {
    **dict.fromkeys(Report.__annotations__),
    "topology": "v3-8", "chips": 4, "cores": 8, "estimated": False, "fits": True,
    "bytes_per_core": 4.4 * GIB, "bytes_available_per_core": 15.48 * GIB,
    "bytes_missing_per_core": 0.0, "compiler_message": "", "advice": "",
    "largest_per_replica_batch_size": 72, "parameters": 101_600_000,
    "per_replica_batch_size": 16, "global_batch_size": 128, "tokens_per_step": 65_536,
    "flops_per_step_per_core": 5.21e12, "bytes_accessed_per_step_per_core": 4e10,
    "utilisation": [0.2, 0.55], "step_seconds": [0.154, 0.424],
    "tokens_per_second": [154_000.0, 425_000.0], "num_train_steps": 250_000,
    "num_train_epochs": 3.2, "tokens_per_parameter": 161.0, "hours": [10.7, 29.4],
    "chip_hours": [42.8, 117.6], "cost": None, "checkpoint_disk_bytes": 4.1e9,
    "compile_seconds": 140.0, "cached": False,
    "input": {
        "measured_on_shards": True, "rows_per_second": 18_234.0,
        "needed_rows_per_second_per_host": [302.0, 831.0], "keeps_up": True,
    },
    "trial": {
        "layers": 4, "of_layers": 12, "rows": 2, "losses": [10.15, 10.1, 9.9, 9.8, 9.73],
        "parameters": 40_000_000,
    },
}  # fmt: skip
TOO_LARGE: dict[str, Any] = {
    **FITTING,
    "fits": False, "bytes_per_core": 18.42 * GIB, "bytes_available_per_core": 15.75 * GIB,
    "bytes_missing_per_core": 2.67 * GIB, "topology": "v5e-4", "chips": 4, "cores": 4,
    "per_replica_batch_size": 96, "global_batch_size": 384,
    "compiler_message": "Used 18.42G of 15.75G hbm.", "advice": "Set remat",
    "flops_per_step_per_core": None, "step_seconds": None, "tokens_per_second": None,
    "hours": None, "chip_hours": None, "bytes_accessed_per_step_per_core": None,
    "input": {
        "measured_on_shards": False, "rows_per_second": 18_234.0,
        "needed_rows_per_second_per_host": None, "keeps_up": None,
    },
}  # fmt: skip
ESTIMATED = {
    **FITTING,
    "estimated": True,
    "largest_per_replica_batch_size": None,
    "compile_seconds": 0.0,
    "advice": "Install",
}
CONFIG = PreflightConfig(size="base", topology="v3-8", per_replica_batch_size=16, shards="rows")


def words_of(report: dict[str, Any], price: float | None = None, **config: Any) -> str:
    values = {**CONFIG.model_dump(mode="json"), **config}
    card = preflight.describe_report(report, values, price)
    return json.dumps(card, ensure_ascii=False).replace("\u00a0", " ")


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return Workspace(tmp_path / "workspace")


@pytest.fixture
def store(workspace: Workspace) -> Iterator[Store]:
    store = Store.open(workspace)
    yield store
    store.close()


def put_report(workspace: Workspace, config: PreflightConfig, report: dict[str, Any]) -> Artifact:
    with workspace.new_artifact("preflight", "check", exact=False) as draft:
        (draft.folder / "preflight.json").write_text(json.dumps(report))
        draft.config = config.model_dump(mode="json")
        draft.counts = report
    assert draft.artifact
    return draft.artifact


def ask(workspace: Workspace, store: Store, config: PreflightConfig, **more: Any) -> dict[str, Any]:
    question = {"settings": preflight.settings_of(config), **more}
    return preflight._state_function(workspace, store)(question)


# The text of the report.


def test_fitting_report_shows_memory_time_and_throughput() -> None:
    words = words_of(FITTING)
    for expected in (
        "Fits on a v3-8",
        "16 rows of 512 tokens a core",
        "4 chips with 8 cores",
        "4.40 GiB a core",
        "of 15.48 GiB",
        "11 – 29 h",
        "154 – 425 k",
        "154 – 424 ms",
        "5.21 TFLOP",
        "The input keeps up",
        "only 4 of its 12 layers",
        "20 to 55 % of the chip's published peak (123 TFLOP/s",
    ):
        assert expected in words
    assert "pip install" not in words


def test_expected_time_of_a_step_is_the_compilers() -> None:
    words = words_of({**FITTING, "expected_step_seconds": 0.26, "utilisation": [0.3, 0.4]})
    assert "Times are the compiler's, 260 ms a step" in words
    assert "30 to 40 % of the chip's published peak (123 TFLOP/s in bfloat16) is used." in words


def test_report_without_a_price_shows_chip_hours_and_no_cost() -> None:
    assert "43 – 118" in words_of(FITTING)
    assert "cost, at" not in words_of(FITTING)
    assert "With a price per chip-hour there is a cost as well." in words_of(FITTING)


def test_report_with_a_price_shows_the_cost() -> None:
    words = words_of(FITTING, 1.2)
    assert "51 – 141" in words
    assert "cost, at 1.2 a chip-hour" in words
    assert "With a price" not in words


def test_report_that_does_not_fit_shows_the_missing_memory_and_compiler_message() -> None:
    words = words_of(TOO_LARGE)
    for expected in ("Does not fit on a v5e-4", "2.67 GiB too much", "Used 18.42G of 15.75G hbm."):
        assert expected in words
    assert "Rematerialising makes room" in words
    assert "Rematerialising" not in words_of(TOO_LARGE, remat=True)
    assert "Set remat." in words_of({**TOO_LARGE, "largest_per_replica_batch_size": None})
    memory = preflight.describe_report(TOO_LARGE, {})["memory"]
    assert memory["used_percent"] + memory["missing_percent"] == pytest.approx(100)


def test_estimate_is_marked_and_names_the_install_command_for_an_exact_check() -> None:
    card = preflight.describe_report(ESTIMATED, {})
    assert card["estimated"]
    assert card["install"] == "pip install -r requirements-preflight.txt"
    assert "compiler" not in card["small_print"]
    assert not preflight.describe_report(FITTING, {})["install"]


def test_slow_input_pipeline_is_marked() -> None:
    slow = {**FITTING, "input": {**FITTING["input"], "keeps_up": False}}
    [timed, _] = preflight.describe_report(slow, {})["checks"]
    assert timed["good"] is False
    assert "may not keep up" in timed["text"]


def test_report_without_trial_steps_omits_them() -> None:
    checks = preflight.describe_report({**FITTING, "trial": None}, {})["checks"]
    assert len(checks) == 1


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        ([0.00038, 0.00069], "0.38 – 0.69 ms"),
        ([0.4, 1.2], "0.40 – 1.2 s"),
        ([37.0, 101.0], "0.62 – 1.7 min"),
        ([4000.0, 10_800.0], "1.1 – 3.0 h"),
        ([300_000.0, 900_000.0], "3.5 – 10 days"),
    ],
)
def test_time_spans_have_a_suitable_unit(seconds: list[float], words: str) -> None:
    assert preflight.time_span(seconds) == words


def test_incomplete_report_is_not_accepted() -> None:
    assert preflight.is_report(FITTING)
    of_an_earlier_version = FITTING.copy()
    del of_an_earlier_version["expected_step_seconds"]
    assert preflight.is_report(of_an_earlier_version) and words_of(of_an_earlier_version)
    assert not preflight.is_report({"fits": True})


# The settings that a report belongs to.


def test_report_of_the_current_settings_is_shown_before_newer_ones(
    workspace: Workspace, store: Store
) -> None:
    put_report(workspace, CONFIG, FITTING)
    put_report(workspace, CONFIG.model_copy(update={"topology": "v5e-4"}), TOO_LARGE)
    shown = ask(workspace, store, CONFIG)
    assert shown["report"]["name"] == "check"
    assert shown["report"]["differences"] == []
    assert [line["fits"] for line in shown["listed"]] == [False, True]
    assert ask(workspace, store, CONFIG, seen=shown["seen"]) == {}
    assert ask(workspace, store, CONFIG, report="check-2")["report"]["name"] == "check-2"


def test_newest_report_is_shown_with_its_differing_settings(
    workspace: Workspace, store: Store
) -> None:
    put_report(workspace, CONFIG, FITTING)
    present = CONFIG.model_copy(update={"topology": "v5e-8", "per_replica_batch_size": 72})
    report = ask(workspace, store, present)["report"]
    assert report["differences"] == ["Batch size per device 16, now 72", "Topology v3-8, now v5e-8"]
    assert report["used"]


def test_name_and_price_do_not_count_as_different_settings(
    workspace: Workspace, store: Store
) -> None:
    put_report(workspace, CONFIG, FITTING)
    present = CONFIG.model_copy(update={"name": "mine", "price_per_chip_hour": 2.0})
    report = ask(workspace, store, present, price=2.0)["report"]
    assert report["differences"] == []
    assert "cost, at 2 a chip-hour" in json.dumps(report)


def test_running_and_failed_checks_are_shown(workspace: Workspace, store: Store) -> None:
    assert ask(workspace, store, CONFIG)["report"] is None
    config = CONFIG.model_dump(mode="json")
    store.add_run(
        RunRow(
            id="preflight-1", stage="preflight", name="", state="running", config=config, after=[],
            created=1.0, warnings=[], results={}, note="compiling roberta for v3-8, 35 s so far",
        )
    )  # fmt: skip
    state = ask(workspace, store, CONFIG)
    assert state["run"]["note"].endswith("35 s so far")
    assert state["run"]["tab"] == "train"
    store.update_run("preflight-1", state="failed", error={"problem": "It broke"})
    assert ask(workspace, store, CONFIG)["failure"]["error"] == {"problem": "It broke"}
    elsewhere = CONFIG.model_copy(update={"topology": "v4-8"})
    assert ask(workspace, store, elsewhere)["failure"] is None
    put_report(workspace, CONFIG, FITTING)
    assert ask(workspace, store, CONFIG)["failure"] is None


def test_report_is_counted_in_the_disk_usage(workspace: Workspace, store: Store) -> None:
    put_report(workspace, CONFIG, FITTING)
    [use] = list_artifact_usage(workspace, store)
    assert use.artifact.kind == "preflight"


# The form.


def forms(workspace: Workspace) -> tuple[Form[TrainConfig], Form[PreflightConfig]]:
    with gr.Blocks():
        base = Form(TrainConfig, "train", workspace)
        base.render()
        form = Form(PreflightConfig, "preflight", workspace, base=base)
        form.render()
    return base, form


def values(form: Form[Any], **typed: Any) -> list[Any]:
    both = [form, *([form.base] if form.base else [])]
    return [{n: value for n, value in typed.items() if n in one.components} for one in both]


def test_a_form_that_extends_another_shows_only_its_own_fields(workspace: Workspace) -> None:
    base, form = forms(workspace)
    assert "topology" in form.components
    assert not form.components.keys() & base.components.keys()
    raw = values(form, topology="v4-8", size="base", name="mine", learning_rate="0.01")
    config = form.parse(*raw)
    assert (config.topology, config.size, config.learning_rate) == ("v4-8", "base", 0.01)
    assert config.name == ""
    shown = form.updates(config)
    assert shown[base.components["size"]]["value"] == "base"
    assert shown[form.components["topology"]]["value"] == "v4-8"


def test_error_is_shown_beside_its_field_in_either_form(workspace: Workspace) -> None:
    base, form = forms(workspace)
    raw = values(form, learning_rate="fast")
    updates = form.guarded(lambda *raw: {"parsed": form.parse(*raw)})(*raw)
    assert "learning_rate" in updates[base.problems]["problems"]
    # While typing, each form shows only its own errors.
    live = form.guarded(lambda *raw: {"parsed": form.parse(*raw)}, live=True)(*raw)
    assert base.problems not in live
    own = form.guarded(lambda *raw: form.parse(*raw))(*values(form, price_per_chip_hour="-1"))
    assert "price_per_chip_hour" in own[form.problems]["problems"]


def test_form_shows_this_machines_hardware_and_the_device_of_a_run() -> None:
    words = train._hardware(TrainConfig(device="cpu"))
    assert "This machine: " in words
    assert "GB of memory" in words
    assert "TensorFlow on the CPU" in words
    assert "This machine: " in train._hardware(None)


def test_missing_device_is_reported_before_the_start(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing = Hardware(gpus=(), tpus=(), jax_gpu=False, jax_tpu=False)
    monkeypatch.setattr(train, "find_hardware", lambda: nothing)
    config = TrainConfig(device="tpu")
    assert "No usable TPU was found" in train._hardware(config)
    with pytest.raises(DeviceError) as error:
        train._check(config, workspace)
    assert error.value.field == "device"


def test_web_app_has_the_preflight_form_and_report(workspace: Workspace) -> None:
    page = layout.build_page(workspace)
    ids = {getattr(block, "elem_id", None) for block in page.blocks.values()}
    assert {"preflight-start", "preflight-topology", "preflight-report"} <= ids


# The detail of a run.


def detail_of(workspace: Workspace, store: Store, **row: Any) -> dict[str, Any]:
    store.add_run(
        RunRow(
            **{
                "id": "run", "stage": "preflight", "name": "", "state": "done", "after": [],
                "config": CONFIG.model_dump(mode="json"), "created": 1.0, "warnings": [],
                "results": {}, **row,
            }
        )
    )  # fmt: skip
    return runs._detail_function(workspace, store)({"run": "run"})


def test_run_detail_shows_the_report_and_the_command(workspace: Workspace, store: Store) -> None:
    detail = detail_of(workspace, store, results=FITTING)
    assert detail["preflight"]["verdict"] == "Fits on a v3-8"
    [shell, python] = [text for _, text in detail["commands"]]
    assert "python -m core preflight" in shell
    assert "preflight(PreflightConfig(" in python
    assert python == python_lines("preflight", CONFIG, str(workspace.root))


def test_run_detail_shows_the_devices_of_the_last_attempt(
    workspace: Workspace, store: Store
) -> None:
    tpu = Devices(
        "jax", "tpu", 8, "TPU v5 lite", 16 * GIB, "the fastest device of this machine is a TPU"
    )
    cpu = Devices("tensorflow", "cpu", 1, "2 cores", None, "asked for")
    log = EventLog(RunFolder.of(workspace, "run").events)
    for note in (cpu.describe(), "another note", tpu.describe(), "the last one"):
        log.append("note", message=note)
    log.close()
    assert is_description(cpu.describe())
    config = TrainConfig().model_dump(mode="json")
    detail = detail_of(workspace, store, stage="train", config=config)
    assert detail["devices"] == tpu.describe()
    assert detail["preflight"] is None


# In a browser.


@pytest.mark.slow
@pytest.mark.long
def test_preflight_runs_from_the_web_app(workspace: Workspace, store: Store) -> None:
    find_chromium()
    put_report(workspace, CONFIG, FITTING)
    with running_app(workspace.root) as url:
        with visiting(url) as visit:
            visitor = visit("/#train")
            visitor.expand("preflight-section")
            see_an_earlier_one_and_use_its_batch(visitor)
            fill_in(visitor)
            # Until the values are checked, the button asks for the missing one.
            visitor.settle(START_SECONDS)
            visitor.page.locator("#preflight-start").click()
            card = visitor.page.locator("#preflight-report")
            card.locator(".ps-preflight-progress").wait_for()
            card.get_by_text("Fits on a v5e-1").wait_for(timeout=240_000)
            see_the_card(visitor)
            assert visitor.errors == []
        with visiting(url, width=390, height=844) as visit:
            visitor = visit("/#train")
            visitor.expand("preflight-section")
            visitor.page.locator("#preflight-report article").wait_for()
            assert visitor.page.evaluate("document.documentElement.scrollWidth") <= 390
            see_it_in_its_run(visitor, store)
            assert visitor.errors == []


def see_an_earlier_one_and_use_its_batch(visitor: Visitor) -> None:
    card = visitor.page.locator("#preflight-report")
    card.get_by_text("This was found for other settings").wait_for()
    card.get_by_role("button", name="Use it").click()
    batch = visitor.field("train-per_replica_batch_size")
    visitor.wait_for(lambda: batch.input_value() == "72", 20, "the batch is in the form")
    card.get_by_text("in the form").wait_for()


def fill_in(visitor: Visitor) -> None:
    """Enters a model that compiles within seconds, with and without the TPU compiler."""
    start = visitor.page.locator("#preflight-start")
    visitor.see(start, "Fix 1 setting")  # No check starts without a vocabulary size.
    visitor.choose("preflight-topology", "v5e-1")
    visitor.show_all_settings("train")
    visitor.show_all_settings("preflight")
    visitor.page.locator("#preflight-largest_batch input").uncheck()
    for id, value in {
        "train-num_hidden_layers": "1", "train-hidden_size": "32", "train-num_attention_heads": "2",
        "train-num_train_steps": "100", "train-per_replica_batch_size": "8",
        "preflight-vocab_size": "512", "preflight-max_seq_length": "32",
        "preflight-price_per_chip_hour": "1000000",
    }.items():  # fmt: skip
        visitor.type(id, value)


def see_the_card(visitor: Visitor) -> None:
    card = visitor.page.locator("#preflight-report article")
    for words in ("cost, at 1,000,000 a chip-hour", "real steps on this machine", "The input"):
        card.get_by_text(words).first.wait_for()
    estimated = card.locator("h4").get_by_text("estimated")
    assert estimated.count() == (0 if find_spec("libtpu") else 1)
    listed = visitor.page.locator("#preflight-report .ps-preflight-list")
    listed.locator("summary").click()
    listed.get_by_role("button", name="v3-8").click()
    card.get_by_text("Fits on a v3-8").wait_for()


def see_it_in_its_run(visitor: Visitor, store: Store) -> None:
    [row] = [row for row in store.list_runs() if row.stage == "preflight"]
    visitor.open("Runs")
    visitor.page.get_by_role("button", name=row.id).click()
    detail = visitor.page.locator(".ps-detail")
    detail.get_by_text("Fits on a v5e-1").wait_for()
    assert visitor.page.evaluate("document.documentElement.scrollWidth") <= 390
    detail.get_by_role("button", name="Clone").click()
    size = visitor.field("train-hidden_size")
    visitor.wait_for(lambda: size.input_value() == "32", 20, "the run's settings in the form")
    assert visitor.field("preflight-topology").input_value() == "v5e-1"
