"""Describes preflight reports for the scripts that draw them.

Only the cost, at the current price, is computed here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import gradio as gr

from core.config.base import fingerprint_of
from core.config.options import title_of
from core.config.preflight import PreflightConfig
from core.config.topologies import find_topology
from core.config.train import TrainConfig
from core.errors import StudioError
from core.store import ACTIVE_STATES, ENDED_STATES, RunRow, Store
from core.training.preflight.report import INSTALL_LIBTPU, Report
from core.workspace.manifests import Artifact
from core.workspace.workspace import Workspace
from ui.assets import script
from ui.forms import Form
from ui.parts import artifacts
from ui.parts.events import QUIET
from ui.parts.markup import byte_count, count, short_count
from ui.parts.run_rows import BAD_ENDINGS, error_of, summarize
from ui.present import answering

# These don't affect a report.
_WITHOUT_EFFECT = frozenset(
    {
        *("name", "output", "preset", "price_per_chip_hour", "device", "num_devices", "engine"),
        *("eval_steps", "logging_steps", "save_steps", "per_replica_eval_batch_size"),
        *("tpu_name", "tpu_zone", "gcp_project", "damaged_records", "steps_per_execution"),
        *("num_processes", "process_id", "coordinator_address", "max_eval_examples"),
        *("target", "mirror", "max_hours", "max_cost", "price_per_hour"),
    }
)
# Settings that shards determine.
_WITHOUT_SHARDS = ("vocab_size", "max_seq_length")
_NO_BREAK = "\u00a0"
_MOST_LISTED = 8
_MOST_DIFFERENCES = 4
_LOOKED_BACK = 20
_LATER_FIGURES = {"expected_step_seconds"}
_TEMPLATE = '<section class="ps-preflight" aria-label="What the check found" hidden></section>'

Settings = dict[str, Any]


def render_report(workspace: Workspace, store: Store, form: Form[PreflightConfig]) -> None:
    """Renders a check's progress and the report for these settings, else the newest."""
    board = gr.HTML(
        html_template=_TEMPLATE,
        js_on_load=script("preflight.js"),
        server_functions=[_state_function(workspace, store)],
        elem_id="preflight-report",
    )

    def follow(*raw: Any) -> Any:
        try:
            config = form.parse(*raw)
        except StudioError:
            return gr.skip()
        return {"settings": settings_of(config), "price": config.price_per_chip_hour}

    gr.on(
        form.changes,
        follow,
        inputs=form.inputs,
        outputs=board,
        trigger_mode="always_last",
        **QUIET,
    )
    assert form.base is not None
    take_batch_size(board, form.base)


def take_batch_size(board: gr.HTML, form: Form[Any]) -> None:
    """Lets a card set the Train form's batch size."""

    def use(event: gr.EventData) -> Any:
        return gr.update(value=str(int(event._data["batch_size"])))

    board.use(
        use,
        None,
        form.components["per_replica_batch_size"],
        **QUIET,
    )


def settings_of(config: PreflightConfig) -> Settings:
    """Returns the settings that affect a report."""
    left_out = {*_WITHOUT_EFFECT, *(_WITHOUT_SHARDS if config.shards else ())}
    return config.model_dump(mode="json", exclude=left_out)


def describe_differences(settings: Settings, present: Settings) -> list[str]:
    """Lists differing settings: Topology v3-8, now v5e-8."""
    fields = PreflightConfig.model_fields
    different = [
        f"{title_of(name, field)} {_plain(settings.get(name))}, now {_plain(present.get(name))}"
        for name, field in fields.items()
        if settings.get(name) != present.get(name)
    ]
    more = len(different) - _MOST_DIFFERENCES
    return [*different[:_MOST_DIFFERENCES], *([f"and {more} more"] if more > 0 else [])]


def find_report(
    config: TrainConfig, topology: str, workspace: Workspace
) -> Mapping[str, Any] | None:
    """Finds the newest report for the settings of a training run; None if there is none."""
    wanted = config.model_dump(mode="json", exclude=set(_WITHOUT_EFFECT))
    for artifact in workspace.list("preflight"):
        report = artifact.manifest.counts
        settings = _settings_in(artifact)
        if (
            is_report(report)
            and report["topology"] == topology
            and wanted.items() <= settings.items()
        ):
            return report
    return None


def is_report(values: Mapping[str, Any]) -> bool:
    """Returns whether a report's figures are present; those of earlier versions lack some."""
    return {*Report.__annotations__, "input", "trial"} - _LATER_FIGURES <= values.keys()


def describe_report(
    report: Mapping[str, Any], config: Mapping[str, Any], price: float | None = None
) -> dict[str, Any]:
    """Describes a report for the scripts.

    Args:
        report: `is_report` holds.
        price: Per chip-hour.
    """
    gpus = find_topology(report["topology"]).is_gpu
    return {
        "fits": report["fits"],
        "estimated": report["estimated"],
        "verdict": f"{'Fits' if report['fits'] else 'Does not fit'} on a {report['topology']}",
        "about": _about(report, config),
        "memory": _memory(report),
        "compiler_message": report["compiler_message"],
        "install": INSTALL_LIBTPU if report["estimated"] and not gpus else "",
        "largest": report["largest_per_replica_batch_size"],
        "advice": _advice(report, config),
        "tiles": _named(_tiles(report, price)),
        "figures": _named(_figures(report, price)),
        "checks": [_input(report), *([_trial(report["trial"])] if report["trial"] else [])],
        "small_print": _small_print(report, price),
    }


def _about(report: Mapping[str, Any], config: Mapping[str, Any]) -> str:
    size = "from a config.json" if config.get("model_config_path") else config.get("size", "")
    length, cores = report["tokens_per_step"] // report["global_batch_size"], report["cores"]
    parts_of_step = report["global_batch_size"] // (cores * report["per_replica_batch_size"])
    parts = [
        f"{config.get('family', '')} {size}, {short_count(report['parameters'])} parameters",
        f"{_number(report['per_replica_batch_size'], 'row')} of {count(length)} tokens a core",
        f"gradients of {parts_of_step} batches added up" if parts_of_step > 1 else "",
        _number(report["chips"], "chip")
        + (f" with {cores} cores" if cores != report["chips"] else ""),
        str(config.get("dtype_policy", "")).replace("_", " "),
        "weights in parts (fsdp)" if config.get("sharding") == "fsdp" else "",
        "rematerialised" if config.get("remat") else "",
    ]
    return " · ".join(part for part in parts if part.strip())


def _memory(report: Mapping[str, Any]) -> dict[str, Any]:
    needed, available = report["bytes_per_core"], report["bytes_available_per_core"]
    missing = report["bytes_missing_per_core"]
    whole = max(needed, available)
    return {
        "used_percent": 100 * min(needed, available) / whole,
        "missing_percent": 100 * missing / whole,
        "needed": f"{_binary(needed)} a core",
        "available": f"of {_binary(available)}",
        "missing": f"{_binary(missing)} too much" if missing else "",
    }


def _advice(report: Mapping[str, Any], config: Mapping[str, Any]) -> str:
    if report["fits"] or report["estimated"]:
        return ""
    if report["largest_per_replica_batch_size"]:
        return "" if config.get("remat") else "Rematerialising makes room for more."
    return f"{report['advice']}."


def _tiles(report: Mapping[str, Any], price: float | None) -> Iterator[tuple[str, str]]:
    if not report["step_seconds"]:
        return
    if report["hours"]:
        yield "for the whole run", time_span([3600 * hours for hours in report["hours"]])
    if report["chip_hours"] and price:
        cost = [hours * price for hours in report["chip_hours"]]
        yield f"cost, at {price:,.10g} a chip-hour", _span(cost)
    elif report["chip_hours"]:
        yield "chip-hours", _span(report["chip_hours"])
    yield "tokens a second", _scaled_span(report["tokens_per_second"])
    yield "a step", time_span(report["step_seconds"])


def _figures(report: Mapping[str, Any], price: float | None) -> Iterator[tuple[str, str]]:
    flops, accessed = report["flops_per_step_per_core"], report["bytes_accessed_per_step_per_core"]
    steps, epochs = report["num_train_steps"], report["num_train_epochs"]
    ratio = report["tokens_per_parameter"]
    yield "Operations per step and core", _flops(flops) if flops else ""
    yield "Memory traffic per step and core", byte_count(accessed) if accessed else ""
    yield "Chip-hours", _span(report["chip_hours"]) if report["chip_hours"] and price else ""
    yield "Tokens per step", count(report["tokens_per_step"])
    yield "Steps", count(steps) if steps else ""
    yield "Epochs", f"{epochs:.3g}" if epochs else ""
    yield "Tokens per parameter", f"{ratio:.3g}" if ratio else ""
    yield "Disk for checkpoints", byte_count(report["checkpoint_disk_bytes"])


def _named(figures: Iterator[tuple[str, str]]) -> list[tuple[str, str]]:
    return [(name, value.replace(" ", _NO_BREAK)) for name, value in figures if value]


def _input(report: Mapping[str, Any]) -> dict[str, Any]:
    timed = report["input"]
    speed = f"{_scaled_span([timed['rows_per_second']] * 2)} sequences per second"
    source = "these shards" if timed["measured_on_shards"] else "random sequences"
    if timed["keeps_up"] is None:
        return {"good": None, "text": f"Reading {source} on this machine gives {speed}."}
    needed = _scaled_span(timed["needed_rows_per_second_per_host"])
    verdict = "The input keeps up" if timed["keeps_up"] else "The input may not keep up"
    return {
        "good": timed["keeps_up"],
        "text": f"{verdict}: reading {source} on this machine gives {speed}, and a host of the "
        f"TPU needs {needed}.",
    }


def _trial(trial: Mapping[str, Any]) -> dict[str, Any]:
    layers, whole, losses = trial["layers"], trial["of_layers"], trial["losses"]
    cut = (
        "the whole model"
        if layers == whole
        else f"only {layers} of its {whole} layers, which is what this machine's memory holds"
    )
    return {
        "good": True,
        "text": f"{len(losses)} real steps on this machine, with {cut}: loss {losses[0]:.3f} to "
        f"{losses[-1]:.3f}. What was saved was read back bit for bit, and exported.",
    }


def _small_print(report: Mapping[str, Any], price: float | None) -> str:
    parts = []
    if report["step_seconds"]:
        worst, best = report["utilisation"]
        peak = find_topology(report["topology"]).chip.flops_per_second / 1e12
        used = (
            f"{100 * worst:.0f} to {100 * best:.0f} % of the chip's published "
            f"peak ({peak:,.0f} TFLOP/s in bfloat16)"
        )
        expected = report.get("expected_step_seconds")
        source = (
            f"Times are the compiler's, {time_span([expected] * 2)} a step, with the range of "
            f"published runs: {used} is used. They"
            if expected
            else f"Times assume that {used} is used, and"
        )
        parts.append(f"{source} leave out validation and saving.")
    if report["chip_hours"] and not price:
        parts.append("With a price per chip-hour there is a cost as well.")
    if report["compile_seconds"]:
        known = "known from an earlier check, where it" if report["cached"] else "which"
        parts.append(
            f"Memory and operations are the TPU compiler's, {known} took "
            f"{report['compile_seconds']:.0f} s. No TPU was used."
        )
    return " ".join(parts)


def _state_function(workspace: Workspace, store: Store) -> Callable[..., dict[str, Any]]:
    reports = _Reports(workspace)

    @answering
    def preflight_state(question: dict[str, Any]) -> dict[str, Any]:
        present, price = question.get("settings") or {}, question.get("price")
        listed = reports()
        chosen = _choose(listed, present, str(question.get("report", "")))
        run = _newest(store, ("queued", *ACTIVE_STATES))
        state = {
            "run": summarize(run, workspace) if run else None,
            "failure": None if run else _failure(store, chosen, present),
            "report": _shown(chosen, present, price) if chosen else None,
            "listed": list(map(_line, listed[:_MOST_LISTED])),
        }
        seen = fingerprint_of(state)
        return {} if seen == question.get("seen") else {**state, "seen": seen}

    return preflight_state


class _Reports:
    """Reports, newest first, reread only after a change."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self._revision: str | None = None
        self._listed: Sequence[Artifact] = []

    def __call__(self) -> Sequence[Artifact]:
        revision = artifacts.revision(self._workspace, "preflight")
        if revision != self._revision:
            stored = self._workspace.list("preflight")
            self._listed = [report for report in stored if is_report(report.manifest.counts)]
            self._revision = revision
        return self._listed


def _choose(listed: Sequence[Artifact], present: Settings, name: str) -> Artifact | None:
    asked_for = (report for report in listed if report.name == name)
    fitting = (report for report in listed if _settings_in(report) == present)
    return next(asked_for, None) or next(fitting, None) or next(iter(listed), None)


def _settings_in(artifact: Artifact) -> Settings:
    return _settings_of_values(artifact.manifest.config)


def _settings_of_values(values: Mapping[str, Any]) -> Settings:
    try:
        return settings_of(PreflightConfig.parse(dict(values)))
    except StudioError:  # Another version's.
        return dict(values)


def _shown(artifact: Artifact, present: Settings, price: float | None) -> dict[str, Any]:
    manifest, settings = artifact.manifest, _settings_in(artifact)
    return {
        "name": artifact.name,
        "created": manifest.created,
        "run": manifest.run,
        "card": describe_report(manifest.counts, manifest.config, price),
        "differences": describe_differences(settings, present) if present else [],
        "used": manifest.counts["largest_per_replica_batch_size"]
        == present.get("per_replica_batch_size"),
    }


def _line(artifact: Artifact) -> dict[str, Any]:
    report, config = artifact.manifest.counts, artifact.manifest.config
    return {
        "name": artifact.name,
        "created": artifact.manifest.created,
        "fits": report["fits"],
        "text": f"{report['topology']} · {_about(report, config)}",
    }


def _failure(store: Store, shown: Artifact | None, present: Settings) -> dict[str, Any] | None:
    row = _newest(store, ENDED_STATES)
    if row is None or row.state not in BAD_ENDINGS or _settings_of_values(row.config) != present:
        return None
    if shown and shown.manifest.created > (row.ended or row.created):
        return None
    return {"run": row.id, "error": error_of(row) or None}


def _newest(store: Store, states: Sequence[str]) -> RunRow | None:
    rows = store.list_runs(states=states, limit=_LOOKED_BACK)
    return next((row for row in rows if row.stage == "preflight"), None)


def _number(value: int, what: str) -> str:
    return f"{count(value)} {what}{'' if value == 1 else 's'}"


def _plain(value: Any) -> str:
    if value is None or value == "":
        return "not set"
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)


def _binary(value: float) -> str:
    """Compilers count in binary units: 4.40 GiB."""
    return f"{value / 2**30:.2f} GiB" if value >= 2**29 else f"{value / 2**20:.0f} MiB"


def _flops(value: float) -> str:
    for unit, divisor in (("PFLOP", 1e15), ("TFLOP", 1e12), ("GFLOP", 1e9)):
        if value >= divisor:
            return f"{value / divisor:.3g} {unit}"
    return f"{value / 1e6:.3g} MFLOP"


def time_span(seconds: Sequence[float]) -> str:
    """Formats the least and most seconds: 3.1 – 6 h."""
    longest = seconds[-1]
    for unit, divisor, from_seconds in (
        ("days", 86_400.0, 259_200.0),
        ("h", 3600.0, 5400.0),
        ("min", 60.0, 90.0),
        ("s", 1.0, 0.5),
    ):
        if longest >= from_seconds:
            return f"{_span([value / divisor for value in seconds])} {unit}"
    return f"{_span([1000 * value for value in seconds])} ms"


def _scaled_span(values: Sequence[float]) -> str:
    for unit, divisor in (("M", 1e6), ("k", 1e3)):
        if values[-1] >= divisor:
            return f"{_span([value / divisor for value in values])} {unit}"
    return _span(values)


def _span(values: Sequence[float]) -> str:
    low, high = (_rough(value) for value in values)
    return low if low == high else f"{low} – {high}"


def _rough(value: float) -> str:
    """Two significant digits, or integers: 0.0042, 1.3, 12,400."""
    if value <= 0:
        return "0"
    digits = max(0, 1 - math.floor(math.log10(value)))
    return f"{value:,.{digits}f}"
