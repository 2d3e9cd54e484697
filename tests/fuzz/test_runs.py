"""Fuzzing of settings, checkpoints and run folders: each is read or ends in a StudioError."""

from __future__ import annotations

import json

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from tests.fuzz import valid
from tests.fuzz.harness import Input, Worker, explore
from tests.fuzz.mutations import (
    any_bytes,
    changed_json_file,
    json_text,
    mutated,
    paths_of,
    quoted,
)
from tests.fuzz.sandbox import Entry, Fifo, Folder, Link

_STAGES = ("train", "tokenizer", "shards")
_KEYS = (
    "preset",
    "stage",
    "corpus",
    "config",
    "name",
    "source",
    "path",
    "dataset_name",
    "x",
    "size",
)
_SPECIAL: tuple[Entry, ...] = (Fifo(), Folder(), Link("/dev/zero"), Link("nowhere"), b"", b"\xff")


def _changed(
    draw: DrawFn, files: dict[str, bytes], names: tuple[str, ...] = ()
) -> dict[str, Entry]:
    """Changes one or two of the files: JSON as JSON, others as bytes."""
    changed: dict[str, Entry] = dict(files)
    for name in draw(st.lists(st.sampled_from(sorted(files)), min_size=1, max_size=2)):
        form = draw(st.integers(0, 39))
        if form < len(_SPECIAL):
            changed[name] = _SPECIAL[form]
        elif form == 10:
            changed.pop(name, None)
        elif name.endswith(".json") and files[name].startswith(b"{"):
            changed[name] = draw(changed_json_file(files[name], names=names))
        else:
            changed[name] = draw(mutated(files[name]))
    return changed


def test_arbitrary_exported_settings_are_read_or_refused(worker: Worker, share: float) -> None:
    paths = quoted(paths_of(str(worker.sandbox.canary), worker.trap))

    @st.composite
    def inputs(draw: DrawFn) -> Input:
        data = valid.settings()[draw(st.sampled_from(_STAGES))]
        return Input({"settings.json": draw(changed_json_file(data, paths, _KEYS))})

    explore(worker, "settings", "settings", inputs(), share)


def test_arbitrary_config_file_is_read_or_refused(worker: Worker, share: float) -> None:
    paths = quoted(paths_of(str(worker.sandbox.canary), worker.trap))

    @st.composite
    def inputs(draw: DrawFn) -> Input:
        stage = draw(st.sampled_from(_STAGES))
        data = valid.settings()[stage]
        if draw(st.booleans()):
            values = json.loads(data)["config"]
            few = draw(st.lists(st.sampled_from(sorted(values)), max_size=4))
            data = json.dumps({name: values[name] for name in few}).encode()
        form = draw(st.integers(0, 39))
        # The first one, a pipe, is left out: shells make one for --config <(command).
        special = _SPECIAL[form] if 0 < form < len(_SPECIAL) else None
        content = special if special is not None else draw(changed_json_file(data, paths, _KEYS))
        return Input({"settings.json": content}, {"stage": stage})

    explore(worker, "config flag", "config_flag", inputs(), share)


def test_arbitrary_checkpoints_are_read_or_refused(worker: Worker, share: float) -> None:
    @st.composite
    def inputs(draw: DrawFn) -> Input:
        files = _changed(draw, valid.checkpoints())
        events = valid.run()["events.jsonl"]
        files["events.jsonl"] = draw(st.one_of(st.just(events), mutated(events)))
        extra = st.sampled_from((
            "checkpoints/step-9999999999999999999999/x", "checkpoints/step-٣/x",
            "checkpoints/step-/x",
            "checkpoints/step-00000003", "checkpoints/step-00000003.replaced/x",
            "checkpoints/.x.draft/y",
            "checkpoints/step-00000004/manifest.json", "checkpoints/step-4/manifest.json",
            "checkpoints/damaged-step-00000002/x", "checkpoints/.step-1.draft",
        ))  # fmt: skip
        for name in draw(st.lists(extra, max_size=2)):
            files[name] = b"{}"
        return Input(files)

    explore(worker, "checkpoint", "checkpoints", inputs(), share)


def test_arbitrary_checkpoint_state_is_read_or_refused(worker: Worker, share: float) -> None:
    """The manifest matches the files, as in a checkpoint from an untrusted source."""
    place = "checkpoints/step-00000002/"
    files = {
        f"step-00000002/{name.removeprefix(place)}": data
        for name, data in valid.checkpoints().items()
        if name.startswith(place) and not name.endswith("manifest.json")
    }
    state = {name: data for name, data in files.items() if "state" in name or "eval" in name}
    keys = ("evaluated", "best", "skipped", "format", "step", "config", "plan")

    @st.composite
    def inputs(draw: DrawFn) -> Input:
        changed = {
            name: entry
            for name, entry in _changed(draw, state, keys).items()
            if not isinstance(entry, (Fifo, Link))
        }
        return Input({**files, **changed})

    explore(worker, "checkpoint state", "sealed_checkpoint", inputs(), share)


@st.composite
def events(draw: DrawFn) -> bytes:
    """Draws an `events.jsonl` with changed, missing, unordered, truncated or foreign lines."""
    lines = valid.run()["events.jsonl"].splitlines()
    found: list[bytes] = []
    for line in lines:
        form = draw(st.integers(0, 11))
        if form == 0:
            found.append(
                draw(json_text(json.loads(line), names=("n", "t", "kind", "step", "message")))
            )
        elif form == 1:
            found.append(draw(st.one_of(mutated(line), any_bytes())))
        elif form == 2:
            found.insert(0, line)
        elif form > 3:
            found.append(line)
    data = b"\n".join(found) + b"\n"
    return draw(st.one_of(st.just(data), st.just(data), mutated(data, 1)))


@st.composite
def run_folders(draw: DrawFn) -> Input:
    plain = valid.run()
    files: dict[str, Entry] = dict(plain)
    if draw(st.booleans()):
        small = {name: data for name, data in plain.items() if name.endswith(".json")}
        files |= _changed(draw, small, ("code", "signal", "time", "mode", "run", "pid"))
    if draw(st.integers(0, 4)):
        files["events.jsonl"] = draw(events())
    return Input(files)


def test_arbitrary_run_folder_is_read_or_refused(worker: Worker, share: float) -> None:
    explore(worker, "run folder", "run", run_folders(), share)


def test_arbitrary_run_folder_is_ingested_by_the_worker(worker: Worker, share: float) -> None:
    explore(worker, "run taken in", "taken_in", run_folders(), share)
