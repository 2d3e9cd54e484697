"""Selects the files to publish, by an allow-list per kind."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from typing import Any, Literal

from core.artifacts.checkpoint import EVAL_RESULTS_FILE, TRAINING_CONFIG_FILE
from core.config.options import field_extra, split_names
from core.config.train import TrainConfig
from core.errors import CheckpointError, ShardError, StudioError
from core.foreign_files import check_inside
from core.hub.client import parse_hub_id
from core.models.hf import CONFIG_FILE
from core.publishing.card_notes import CardNotes
from core.publishing.cards import (
    CURVES_FILE,
    LOG_FILE,
    model_card,
    shards_card,
    tokenizer_card,
)
from core.publishing.facts import LoggedFigures, ModelFacts
from core.report.curves import Curve, draw_curves
from core.shards.read import TOKEN_COUNTS_FILE, TOKENIZER_FOLDER, Shards
from core.storage.shard_names import parse_file_name
from core.tokenizer.roles import FILES as TOKENIZER_FILES
from core.workspace.manifests import (
    MANIFEST_FILE,
    Artifact,
    damaged_files,
    hash_file,
    manifest_text,
    read_manifest,
)

RepositoryKind = Literal["model", "dataset", "space"]

CARD_FILE = "README.md"
_MODEL_FILES = re.compile(
    r"generation_config\.json|model\.safetensors(\.index\.json)?|model-\d+-of-\d+\.safetensors|"
    r"(flax_model|tf_model)(-\d+-of-\d+)?\.(msgpack|h5)(\.index\.json)?|vocab\.(txt|json)|merges\.txt|added_tokens\.json|"
    + "|".join(re.escape(name) for name in (*TOKENIZER_FILES, EVAL_RESULTS_FILE))
)
_EXPORTED_FILES = re.compile(
    r"[\w.-]+\.gguf|Modelfile|onnx/[\w.-]+\.onnx(_data)?|openvino/[\w.-]+\.(xml|bin)"
)
# Field that an ONNX export adds to the model's `config.json`.
_JAVASCRIPT = "transformers.js_config"
# Stale ones are removed when new weights are pushed.
_OF_WEIGHTS = re.compile(
    r"(model|pytorch_model|flax_model|tf_model)(-\d+-of-\d+)?"
    r"\.(safetensors|bin|msgpack|h5)(\.index\.json)?|"
    + "|".join(map(re.escape, (EVAL_RESULTS_FILE, LOG_FILE, CURVES_FILE, TRAINING_CONFIG_FILE)))
)
# Private: cloud accounts and local paths.
_PRIVATE_FIELDS = (
    "tpu_name", "tpu_zone", "gcp_project", "coordinator_address", "num_processes", "process_id",
    "output",
)  # fmt: skip
# Folder that transformers loaded a file from.
_ORIGINS = ("_name_or_path", "name_or_path")


@dataclass(frozen=True)
class Upload:
    """A file to upload, from a path or bytes."""

    path: str
    source: Path | bytes

    @property
    def size_bytes(self) -> int:
        return len(self.source) if isinstance(self.source, bytes) else self.source.stat().st_size


@dataclass(frozen=True)
class Bundle:
    """All files of a repository.

    Attributes:
        outdates: Returns whether a remote path is replaced.
    """

    kind: RepositoryKind
    uploads: tuple[Upload, ...]
    card: str
    outdates: Callable[[PurePath], bool] | None = None

    @property
    def size_bytes(self) -> int:
        return sum(upload.size_bytes for upload in self.uploads)

    def outdated(self, paths: Iterable[str]) -> list[str]:
        """Lists remote files of earlier shards or weights."""
        if self.outdates is None:
            return []
        sent = {upload.path for upload in self.uploads}
        return [path for path in paths if path not in sent and self.outdates(PurePath(path))]

    def content(self, path: str) -> bytes:
        """Returns a small file's content, or b""."""
        sources = (upload.source for upload in self.uploads if upload.path == path)
        source = next(sources, b"")
        return source if isinstance(source, bytes) else source.read_bytes()

    def listing(self) -> list[dict[str, Any]]:
        """Returns each file's path and size."""
        return [{"path": upload.path, "bytes": upload.size_bytes} for upload in self.uploads]


def model_bundle(facts: ModelFacts, notes: CardNotes, exports: Sequence[Artifact] = ()) -> Bundle:
    """Bundles weights, tokenizer, configs, log, curves, card and exports of the model."""
    folder = facts.folder
    paths = sorted(path for path in folder.iterdir() if _MODEL_FILES.fullmatch(path.name))
    for path in (*paths, folder / CONFIG_FILE):
        check_inside(path, folder)
    check_whole(folder, [path.name for path in paths])
    made = {CONFIG_FILE: _without_origin(folder / CONFIG_FILE, _for_javascript(exports))}
    if facts.config:
        made[TRAINING_CONFIG_FILE] = _json(clean_config(facts.config))
    if facts.log:
        made[LOG_FILE] = _log_lines(facts.log)
    if any("eval_loss" in row.values for row in facts.log):
        made[CURVES_FILE] = _draw(facts)
    uploads = [_upload(path) for path in paths]
    uploads += [upload for export in exports for upload in _exported(export)]
    return _bundle("model", uploads, made, model_card(facts, notes), _belongs_to_weights)


def _for_javascript(exports: Iterable[Artifact]) -> dict[str, Any]:
    """Returns what transformers.js needs in the model's `config.json`."""
    for file in (export.path / CONFIG_FILE for export in exports):
        values = json.loads(file.read_text("utf-8")) if file.is_file() else {}
        if _JAVASCRIPT in values:
            return {_JAVASCRIPT: values[_JAVASCRIPT]}
    return {}


def _exported(export: Artifact) -> Iterator[Upload]:
    names = [name for name in export.manifest.files if _EXPORTED_FILES.fullmatch(name)]
    check_whole(export.path, names)
    for name in names:
        yield Upload(name, check_inside(export.path / name, export.path))


def tokenizer_bundle(folder: Path, notes: CardNotes) -> Bundle:
    paths = [folder / name for name in TOKENIZER_FILES if (folder / name).is_file()]
    paths_inside = [check_inside(path, folder) for path in paths]
    check_whole(folder, [path.name for path in paths_inside])
    manifest = read_manifest(folder) if (folder / MANIFEST_FILE).is_file() else None
    return _bundle("model", map(_upload, paths_inside), {}, tokenizer_card(manifest, notes))


def shards_bundle(shards: Shards, notes: CardNotes) -> Bundle:
    """Bundles shards with a manifest for verification."""
    folder = shards.path
    names = sorted(
        str(check_inside(path, folder, error=ShardError).relative_to(folder))
        for path in folder.rglob("*")
        if path.is_file() and _belongs_to_shards(path.relative_to(folder))
    )
    known = shards.manifest.files
    entries = {name: known.get(name) or _describe(folder / name) for name in names}
    counts = dict(shards.manifest.counts)
    if isinstance(counts.get("reading"), Mapping):
        counts["reading"] = _public_reading(counts["reading"])
    if isinstance(counts.get("cleaning"), Mapping):
        counts["cleaning"] = _clean(counts["cleaning"])
    manifest = replace(
        shards.manifest, files=entries, location="", run="",
        config=_clean(shards.manifest.config), counts=counts,
    )  # fmt: skip
    uploads = [Upload(name, folder / name) for name in names]
    made = {MANIFEST_FILE: manifest_text(manifest).encode()} if shards.manifest.counts else {}
    card = shards_card(manifest, notes)
    return _bundle("dataset", uploads, made, card, _check_belongs_to_shards)


def clean_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Removes local paths and cloud names from a config."""
    fields = TrainConfig.model_fields
    values = {name: value for name, value in config.items() if name not in _PRIVATE_FIELDS}
    for name, value in values.items():
        extra = field_extra(fields[name]) if name in fields else {}
        if value and isinstance(value, str) and (extra.get("path") or extra.get("artifact")):
            values[name] = _last_part(value)
        elif value and extra.get("artifacts"):
            values[name] = " ".join(_last_part(reference) for reference in split_names(value))
    return values


def _clean(config: Mapping[str, Any]) -> dict[str, Any]:
    cleaned: dict[str, Any] = {}
    for name, value in config.items():
        if isinstance(value, Mapping):
            cleaned[name] = _clean(value)
        elif isinstance(value, list | tuple):
            cleaned[name] = [
                _clean(member) if isinstance(member, Mapping) else member for member in value
            ]
        else:
            cleaned[name] = _last_part(value) if isinstance(value, str) else value
    return cleaned


def _public_reading(report: Mapping[str, Any]) -> dict[str, Any]:
    """Removes folder names and findings, which name local files."""
    if isinstance(sources := report.get("sources"), Mapping):
        return {"sources": {name: _public_reading(reading) for name, reading in sources.items()
                            if isinstance(reading, Mapping)}}  # fmt: skip
    read, documents = report.get("read"), report.get("documents")
    facts = (
        {_last_part(name): count for name, count in read.items()} if isinstance(read, dict) else {}
    )
    return {"found": report.get("found", 0), "read": facts,
            "skipped_count": report.get("skipped_count", 0),
            **({"documents": documents} if isinstance(documents, Mapping) else {})}  # fmt: skip


def _last_part(value: str) -> str:
    is_local = value.startswith(("/", "~", ".")) or ("/" in value and not parse_hub_id(value))
    return PurePath(value).name if is_local else value


def _bundle(
    kind: RepositoryKind,
    uploads: Iterable[Upload],
    made: Mapping[str, bytes],
    card: str,
    outdates: Callable[[PurePath], bool] | None = None,
) -> Bundle:
    extra = [Upload(name, content) for name, content in made.items()]
    readme = Upload(CARD_FILE, card.encode("utf-8"))
    listed = sorted([*uploads, *extra], key=lambda upload: upload.path)
    return Bundle(kind, (readme, *listed), card, outdates)


def _upload(path: Path) -> Upload:
    if path.name in TOKENIZER_FILES and path.name != TOKENIZER_FILES[0]:
        return Upload(path.name, _without_origin(path))
    return Upload(path.name, path)


def _without_origin(path: Path, added: Mapping[str, Any] | None = None) -> bytes:
    data = path.read_bytes()
    try:
        values = json.loads(data)
    except ValueError:
        return data
    if not isinstance(values, dict):
        return data
    published = {name: value for name, value in values.items() if name not in _ORIGINS}
    published |= added or {}
    return data if published == values else _json(published)


def _json(values: Any) -> bytes:
    return (json.dumps(values, indent=2, ensure_ascii=False) + "\n").encode("utf-8")


def _log_lines(log: Iterable[LoggedFigures]) -> bytes:
    rows = ({"step": row.step, "seconds": row.seconds, **row.values} for row in log)
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def _draw(facts: ModelFacts) -> bytes:
    curves = []
    for name, figure, faint in (
        ("validation loss", "eval_loss", False),
        ("training loss", "loss", True),
    ):
        rows = [row for row in facts.log if figure in row.values]
        steps, values = [row.step for row in rows], [row.values[figure] for row in rows]
        curves.append(Curve(name, steps, values, faint=faint))
    return draw_curves(curves, baseline=facts.figures.get("frequency_baseline_loss"))


def check_whole(folder: Path, names: Iterable[str]) -> None:
    """Verifies files against the folder's manifest, if any."""
    try:
        manifest = read_manifest(folder)
    except StudioError:
        return
    wanted = set(names)
    sent = {name: entry for name, entry in manifest.files.items() if name in wanted}
    if problems := damaged_files(folder, replace(manifest, files=sent)):
        raise CheckpointError(
            f"{folder.name} is damaged and isn't uploaded",
            expected="unchanged files",
            received=", ".join(problems),
            fix="create it again, or push another one",
        )


def _belongs_to_weights(path: PurePath) -> bool:
    return _OF_WEIGHTS.fullmatch(str(path)) is not None


def _check_belongs_to_shards(path: PurePath) -> bool:
    return str(path) == MANIFEST_FILE or _belongs_to_shards(path)


def _belongs_to_shards(path: PurePath) -> bool:
    folder = path.parent.as_posix()
    if folder == TOKENIZER_FOLDER:
        return path.name in TOKENIZER_FILES
    if path.name == TOKEN_COUNTS_FILE:
        return folder == "."
    return folder in (".", "train", "validation") and parse_file_name(path.name) is not None


def _describe(path: Path) -> dict[str, Any]:
    return {"bytes": path.stat().st_size, "sha256": hash_file(path)}
