"""The targets of the campaigns: readers, called through the program's own entry points.

A target takes the input's folder and a workspace, and returns the data it has read, so that the
worker can check for data from elsewhere. All modules are imported when the worker starts.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import signal
import socket
import threading
from collections.abc import Callable
from dataclasses import asdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np

import core.corpus.reading
import core.hub.pull
from core.artifacts.checkpoint import Checkpoints, read_arrays, read_state, verify
from core.cli.fields import config_values
from core.config.corpus import CorpusConfig
from core.config.train import TrainConfig
from core.corpus.files import FilesSource
from core.errors import StudioError
from core.hub.pull import pull_config, pull_model, pull_tokenizer
from core.models import hf
from core.models.registry import count_parameters
from core.records.events import (
    FolderReporter,
    Reporter,
    read_attempts,
    read_events,
    read_last_events,
    read_notes,
    read_stop,
)
from core.records.folder import RunFolder, log_tail_line
from core.report.settings import list_settings, read_settings
from core.runs.worker import Worker
from core.shards.read import Shards, open_shards
from core.stages.registry import STAGES
from core.storage.files import fetch_shards
from core.store import RunRow, Store
from core.tokenizer.loading import load
from core.tokenizer.roles import FILES as TOKENIZER_FILES
from core.training.resume import check_nothing_is_lost, check_same_run
from core.workspace.manifests import damaged_files, read_manifest
from core.workspace.workspace import Workspace

_MOST_DOCUMENTS = 5_000
_MOST_ROWS = 64
_TEXT = "The small river runs behind the old garden. 1234 Ünïcödé 東京 \U0001f600\n\nEnd"

_listener: socket.socket | None = None


def prepare(hub: socket.socket) -> None:
    """Imports the modules that readers import lazily.

    Args:
        hub: The socket that the Hub of `read_hub` listens on.
    """
    global _listener
    _listener = hub
    import charset_normalizer
    import datasets  # noqa: F401  Hub listings go through its parts of huggingface_hub.
    import fsspec.implementations.memory
    import h5py
    import ml_dtypes
    import pyarrow.parquet
    import safetensors.numpy
    import tokenizers  # noqa: F401

    assert charset_normalizer and fsspec and h5py and ml_dtypes and pyarrow and safetensors


def read_corpus(
    folder: Path, workspace: Path, name: str, unit: str = "line", column: str = "", **more: Any
) -> Any:
    """Reads a file, a folder or a glob pattern as a corpus."""
    more = {key: str(value).replace("@", str(folder)) for key, value in more.items()}
    config = CorpusConfig(
        source="files", path=str(folder / name), text_unit=unit, text_column=column, **more
    )
    source = FilesSource(config)
    found: list[Any] = [source.identity, source.columns()]
    found += list(itertools.islice(source.documents("train"), _MOST_DOCUMENTS))
    seen = core.corpus.reading.preview(config, Workspace(workspace))
    return [*found, *seen.samples]


def read_artifacts(folder: Path, workspace: Path, kind: str) -> Any:
    """Lists and opens the artifacts of a workspace with untrusted manifests."""
    place = Workspace(folder)
    found: list[Any] = [asdict(artifact.manifest) for artifact in place.list(kind)]
    for name in ("one", str(folder / "shards" / "one")):
        artifact = place.find(kind, name)
        found += [asdict(artifact.manifest), damaged_files(artifact.path, artifact.manifest)]
    place.find_made(kind, "0")
    if kind == "shards":
        found.append(_rows_of(open_shards("one", place)))
    return found


def read_shards(folder: Path, workspace: Path) -> Any:
    """Opens shards by their folder and reads sequences and token counts."""
    return _rows_of(open_shards(str(folder / "shards"), Workspace(workspace)))


def _rows_of(shards: Shards) -> Any:
    found: list[Any] = [shards.objective, shards.max_seq_length, shards.noise, shards.fingerprint]
    found += [shards.row_length, shards.line_by_line, shards.tokenizer_fingerprint]
    for rows in (shards.train, shards.validation):
        some = np.arange(min(len(rows), _MOST_ROWS))
        if len(rows):
            found += [rows.take(some), str(rows.files[0].path)]
    counts = shards.token_counts
    assert counts.dtype.kind in "iu" and counts.shape == (shards.vocab_size,)
    return [*found, counts]


def read_remote_shards(folder: Path, workspace: Path, fingerprint: str = "") -> Any:
    """Fetches shards from a remote folder with the input's files."""
    import fsspec

    store = fsspec.filesystem("memory")
    store.store.clear()
    for path in (folder / "remote").rglob("*"):
        if path.is_file() and not path.is_symlink():
            store.pipe_file(f"/remote/{path.relative_to(folder / 'remote')}", path.read_bytes())
    place = Workspace(workspace)
    fetched = fetch_shards("memory://remote", place, Reporter(), fingerprint)
    assert fetched.resolve().is_relative_to(place.cache.resolve()), fetched
    return _rows_of(open_shards(str(fetched), place))


def read_tokenizer(folder: Path, workspace: Path) -> Any:
    """Loads a tokenizer and uses it as shards and the playground do."""
    tokenizer = load(str(folder), Workspace(workspace))
    ids = tokenizer.encode(_TEXT)
    found: list[Any] = [ids, tokenizer.decode(ids), tokenizer.encode_beginning(_TEXT)]
    found += [tokenizer.word_starts(), tokenizer.sentinel_ids(), tokenizer.special_ids]
    found += [asdict(tokenizer.roles), tokenizer.fingerprint, tokenizer.mask_id]
    found += [tokenizer.readable(int(number)) for number in ids[:64]]
    assert tokenizer.encode(_TEXT).tolist() == ids.tolist()
    return found


def read_config(folder: Path, workspace: Path) -> Any:
    """Reads a model's config, and uses it as the forms do."""
    architecture = hf.read_architecture(folder)
    return [asdict(architecture), count_parameters(architecture), hf.config_values(architecture)]


def read_weights(folder: Path, workspace: Path) -> Any:
    """Reads a checkpoint's weights in any of the formats."""
    hf.check_weight_files(folder)
    return hf.read_weights(folder)


def read_exported_settings(folder: Path, workspace: Path) -> Any:
    """Reads a run's settings as the web app imports them."""
    data = (folder / "settings.json").read_bytes()
    stage, config = read_settings(data.decode("utf-8", "surrogateescape"))
    return [stage, list_settings(config), config.model_dump(mode="json"), config.fingerprint()]


def read_config_flag(folder: Path, workspace: Path, stage: str) -> Any:
    """Reads a config file as `python -m core STAGE --config FILE` does."""
    model = STAGES[stage].config
    options = argparse.Namespace(config=str(folder / "settings.json"), stage=stage)
    config = model.parse(config_values(options, model))
    return [list_settings(config), config.fingerprint()]


def read_checkpoints(folder: Path, workspace: Path) -> Any:
    """Loads the newest checkpoint of a run, as a resumed run does."""
    checkpoints = Checkpoints(folder / "checkpoints")
    found: list[Any] = [checkpoints.steps()]
    best = checkpoints.best()
    newest = checkpoints.newest_valid(Reporter())
    if newest is None:
        check_nothing_is_lost(folder)
        return found
    state = checkpoints.skip_again(read_state(newest))
    found += [best and asdict(best), state.to_json(), *read_arrays(newest).values()]
    _compare(state)
    return found


def read_sealed_checkpoint(folder: Path, workspace: Path) -> Any:
    """Reads a checkpoint whose manifest has the checksums of the untrusted files."""
    _seal(folder / "step-00000002")
    place = folder / "checkpoints"
    place.mkdir()
    (folder / "step-00000002").rename(place / "step-00000002")
    verify(place / "step-00000002")
    return read_checkpoints(folder, workspace)


def _compare(state: Any) -> None:
    """Compares a state with the settings of a resumed run: a difference is refused."""
    try:
        check_same_run(state, TrainConfig(), {"shards": "aa", "tokenizer": "bb"})
    except StudioError as error:
        str(error).encode()


def _seal(folder: Path) -> None:
    from core.workspace.manifests import (
        Manifest,
        describe_files,
        fingerprint_of_files,
        write_manifest,
    )

    files = describe_files(folder)
    manifest = Manifest("checkpoint", folder.name, fingerprint_of_files(files), files=files)
    write_manifest(folder, manifest)


def read_run(folder: Path, workspace: Path) -> Any:
    """Reads a run folder as the worker, the web app and the report do; then writes an event."""
    run = RunFolder(folder)
    events, offset = read_events(run.events)
    found: list[Any] = [json.dumps(events), offset, json.dumps(read_last_events(run.events))]
    found += [read_notes(run.events), read_attempts(run.events), run.device()]
    found += [[event["n"] + 1, event["kind"].upper(), event["t"] + 1.0] for event in events]
    found += [json.dumps(run.read_exit()), run.is_running(), run.count_attempts(), run.log_tail()]
    found += [log_tail_line(run.log), read_stop(run.stop_file)]
    check_nothing_is_lost(folder)
    found.append(asdict(run.read_record()))
    reporter = FolderReporter(folder, echo=False)
    reporter.note("written behind what was there")
    reporter.close()
    last = read_last_events(run.events)[-1]
    assert last["message"] == "written behind what was there"
    assert all(event["n"] < last["n"] for event in events[-1:])
    return found


def take_in_run(folder: Path, workspace: Path) -> Any:
    """Lets a worker ingest a run folder, then reads the database."""
    place = Workspace(workspace)
    run = place.runs / "train-1"
    place.runs.mkdir(parents=True)
    folder.rename(run)
    store = Store.open(place)
    config = TrainConfig().model_dump(mode="json")
    common = {"after": [], "created": 1.0, "warnings": [], "results": {}}
    store.add_run(RunRow(id="train-1", stage="train", state="running", config=config, **common))
    store.update_run("train-1", started=1.0)
    worker = Worker(place, slots=0)
    for _ in range(2):
        worker.work()
    [row] = store.list_runs(limit=10)
    found = [row.name, row.note, json.dumps([row.error, row.warnings, row.results])]
    found += [str(store.latest_metrics("train-1")), str(store.metrics_since("train-1", 0))]
    for opened in (worker.store, store):
        opened.close()
    return found


def read_hub(folder: Path, workspace: Path, what: str) -> Any:
    """Fetches from a Hub whose responses are the input's files."""
    hub = _hub()
    hub.folder = folder
    pulls: dict[str, Callable[[], Path]] = {
        "model": lambda: pull_model("owner/name"),
        "config": lambda: pull_config("owner/name"),
        "tokenizer": lambda: pull_tokenizer("owner/name", TOKENIZER_FILES),
        "shards": lambda: open_shards("owner/name", Workspace(workspace)).path,
    }
    core.hub.pull._fetched.clear()
    fetched = pulls[what]()
    assert fetched.absolute().is_relative_to(workspace), fetched
    files = fetched.rglob("*") if fetched.is_dir() else [fetched]
    return [path.read_bytes() for path in files if path.is_file()]


class _Hub(BaseHTTPRequestHandler):
    """Answers with `info.json`, `tree.json`, `paths.json` and the files in `files/`."""

    protocol_version = "HTTP/1.1"
    folder: Path

    def do_GET(self) -> None:
        self._answer()

    def do_HEAD(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self._answer()

    def log_message(self, format: str, *args: Any) -> None:
        """Logs nothing."""

    def _answer(self) -> None:
        folder: Path = self.server.folder  # type: ignore[attr-defined]
        headers = json.loads((folder / "headers.json").read_bytes())
        kind, status = "application/json", 200
        if "/tree/" in self.path:
            body = (folder / "tree.json").read_bytes()
        elif "/paths-info/" in self.path:
            body = (folder / "paths.json").read_bytes()
        elif self.path.startswith("/api/"):
            body = (folder / "info.json").read_bytes()
        else:
            name, kind = self.path.split("?")[0].rsplit("/", 1)[-1], "application/octet-stream"
            path = folder / "files" / (name or "none")
            status = 200 if path.is_file() else 404
            body = path.read_bytes() if status == 200 else b""
        self.send_response(headers.get("status", status) if kind != "application/json" else status)
        for key, value in {"Content-Type": kind, **headers["all"]}.items():
            self.send_header(key, value)
        if kind != "application/json":
            for key, value in headers["files"].items():
                self.send_header(key, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


_server: Any = None


def _hub() -> Any:
    """Returns the Hub; starts its thread first, which a newly forked child lacks."""
    global _server
    if _server is None:
        assert _listener is not None
        _server = ThreadingHTTPServer(("127.0.0.1", 0), _Hub, bind_and_activate=False)
        _server.socket.close()
        _server.socket = _listener
        _server.daemon_threads = True
        threading.Thread(target=_server.serve_forever, args=(0.02,), daemon=True).start()
    return _server


def read_manifest_file(folder: Path, workspace: Path) -> Any:
    """Reads only a manifest."""
    return asdict(read_manifest(folder))


def misbehave(folder: Path, workspace: Path, how: str, trap: str = "") -> Any:
    """Breaks one of the rules for readers, to test the harness."""
    canary = folder.parent / "canary" / "secret.txt"
    if how == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    elif how == "exit":
        os._exit(3)
    elif how == "memory":
        return bytearray(3 << 30)
    elif how == "peak":
        return len(b"x" * (700 << 20))
    elif how == "wait":
        threading.Event().wait(30)
    elif how == "compute":
        return sum(range(1 << 29))
    elif how == "open":
        canary.open().close()
    elif how == "tell":
        return [{"a": os.environ["FUZZ_SECRET"]}]
    elif how == "write":
        (folder.parent / "left.txt").write_text("x")
    elif how == "change":
        canary.write_text("x")
    elif how == "connect":
        socket.create_connection(("127.0.0.1", int(trap.rsplit(":", 1)[1]))).close()
    elif how == "raise":
        raise ValueError("no StudioError")
    elif how == "say nothing":
        raise StudioError("Something failed")
    return None


TARGETS: dict[str, Callable[..., Any]] = {
    "artifacts": read_artifacts,
    "checkpoints": read_checkpoints,
    "config": read_config,
    "config_flag": read_config_flag,
    "corpus": read_corpus,
    "hub": read_hub,
    "manifest": read_manifest_file,
    "misbehaviour": misbehave,
    "remote": read_remote_shards,
    "run": read_run,
    "sealed_checkpoint": read_sealed_checkpoint,
    "settings": read_exported_settings,
    "shards": read_shards,
    "taken_in": take_in_run,
    "tokenizer": read_tokenizer,
    "weights": read_weights,
}
