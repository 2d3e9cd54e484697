"""Schemas of the documents in a mirror, which are untrusted: sizes, types and names are checked.

ROOT/blobs/SHA256                             code and input files, by their content
ROOT/runs/ID/run.json                         what is run
ROOT/runs/ID/stop.json                        a request to stop; written at home
ROOT/runs/ID/claims/000002.json               created, never replaced
ROOT/runs/ID/incarnations/000002/events/000000.jsonl    created every few seconds
                                /checkpoints/step-00000040/*   the manifest last
                                /artifact/*             what the run made, the manifest last
                                /heartbeat.json, log-tail.txt, exit.json

An *incarnation* is one process, or one group of processes on the hosts of a slice, that executes
the run. It claims the next number and writes below its own folder only, so a stale process can
overwrite nothing.
"""

from __future__ import annotations

import json
import re
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from core.foreign_files import parse_bounded_json
from core.records.kinds import EVENTS, MOST_SECONDS, MOST_STEP, Seconds, Word
from core.targets.errors import MirrorError

MOST_SPEC_BYTES = 16 << 20
MOST_DOCUMENT_BYTES = 64 << 10
MOST_SEGMENT_BYTES = 8 << 20
MOST_EVENT_BYTES = 1 << 20
MOST_EVENTS_BYTES = 512 << 20
MOST_LOG_BYTES = 256 << 10
# Reasons of an exit after which another machine can go on.
AGAIN = ("preempted", "process_lost")
# Fields of a config that name files: a path, a folder or a pattern.
DATA_FIELDS = (
    "evaluate_pairs_path", "evaluate_text_path", "path", "train_path", "validation_path",
    "test_path",
)  # fmt: skip
# Fields of a config that can name an input.
INPUT_FIELDS = (
    "shards", "mixture", "tokenizer", "checkpoint", "model", "model_config_path", *DATA_FIELDS
)  # fmt: skip
# Machines of this run get no key.
NEVER_SIGNED = 10**6 + 1
MOST_FILES = 20_000
_MOST_DEPTH = 24
_SEGMENT = re.compile(r"(\d{6})\.jsonl")
_CLAIM = re.compile(r"(\d{6})\.json")


class _Document(BaseModel):
    # Unknown keys of a later version are ignored.
    model_config = ConfigDict(extra="ignore", frozen=True)

    def to_bytes(self) -> bytes:
        return json.dumps(self.model_dump(mode="json"), indent=1).encode() + b"\n"


class InputFile(_Document):
    """A file of an input; the mirror has its content as `blobs/SHA256`."""

    name: Annotated[str, Field(max_length=1024)]
    bytes: int = Field(ge=0, le=1 << 50)
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class Input(_Document):
    """A file or folder that a field of the config names.

    Attributes:
        kind: The kind of artifact; "" for other files and folders.
        name: The artifact's name in a workspace, or the file's.
    """

    field: Annotated[str, Field(pattern=rf"^({'|'.join(INPUT_FIELDS)})$")]
    kind: Annotated[str, Field(pattern=r"^[a-z_]{0,32}$")] = ""
    name: Word
    files: Annotated[tuple[InputFile, ...], Field(max_length=MOST_FILES)]


class RunSpec(_Document):
    """The stage and config that the machine runs, and the files that they need.

    Attributes:
        signed_from: The first incarnation that signs what it writes; 0: the description itself
            isn't signed either, as in an earlier version.
    """

    format: Literal[1] = 1
    id: Annotated[str, Field(max_length=64)]
    stage: Word
    config: dict[str, Any]
    created: Seconds
    inputs: Annotated[tuple[Input, ...], Field(max_length=80)] = ()
    signed_from: int = Field(0, ge=0, le=NEVER_SIGNED)


class CheckpointReference(_Document):
    incarnation: int = Field(ge=1, le=10**6)
    step: int = Field(ge=0, le=MOST_STEP)


class Claim(_Document):
    """A machine's claim to be an incarnation of the run.

    Attributes:
        continues: The checkpoint it resumes from; None: it starts over.
        keeps_events: Whether its events go on from the previous incarnation's folder, as those of
            a process that is restarted on the same machine do.
        machine: A label for people.
        launch: The launch that made it; 0 for a run that was started by hand.
        restart: How often its target had restarted this launch.
    """

    incarnation: int = Field(ge=1, le=10**6)
    time: Seconds
    continues: CheckpointReference | None = None
    keeps_events: bool = False
    machine: Annotated[str, Field(max_length=200)] = ""
    launch: int = Field(0, ge=0, le=10**6)
    restart: int = Field(0, ge=0, le=10**6)


class Heartbeat(_Document):
    """A sign of life.

    Attributes:
        number: Counts up, so that a change shows without comparing clocks.
    """

    number: int = Field(ge=0)
    time: Seconds


class StopRequest(_Document):
    """A request to stop, for incarnations up to a number."""

    mode: Literal["save", "abort"]
    up_to_incarnation: int = Field(ge=1, le=10**6)


class Exit(_Document):
    """How an incarnation ended."""

    code: int | None = Field(None, ge=-(1 << 31), le=1 << 31)
    signal: int | None = Field(None, ge=0, le=1024)
    time: Seconds
    reason: Annotated[str, Field(max_length=64)] = ""


_T = TypeVar("_T", bound=_Document)


def parse_document(model: type[_T], data: bytes, name: str) -> _T:
    """Parses a document of a mirror; raises MirrorError if it breaks the schema."""
    try:
        return model.model_validate(_json(data))
    except (ValueError, RecursionError) as error:
        raise MirrorError(
            f"{name} can't be used",
            expected=f"a {model.__name__} as this program writes it",
            received=_complaint(error),
            fix="check the mirror's address; if it is right, somebody else wrote there",
        ) from error


def parse_events(data: bytes, name: str) -> list[dict[str, Any]]:
    """Parses a segment of events; raises MirrorError if one breaks its schema."""
    events = []
    for line in data.splitlines():
        try:
            if len(line) > MOST_EVENT_BYTES:
                raise ValueError(f"a line of {len(line):,} bytes")
            events.append(_event(_json(line)))
        except (ValueError, RecursionError) as error:
            raise MirrorError(
                f"{name} can't be used",
                expected="events as a run writes them, one per line",
                received=_complaint(error),
                fix="check the mirror's address; if it is right, somebody else wrote there",
            ) from error
    return events


def segment_number(name: str) -> int | None:
    """Returns the number of a segment's file name; None for other names."""
    match = _SEGMENT.fullmatch(name)
    return int(match[1]) if match else None


def claim_number(name: str) -> int | None:
    """Returns the incarnation that a claim's file name states; None for other names."""
    match = _CLAIM.fullmatch(name)
    return int(match[1]) if match else None


def _event(values: Any) -> dict[str, Any]:
    if not isinstance(values, dict):
        raise ValueError("no JSON object")
    kind = values.get("kind")
    seconds: Any = values.get("t")
    if not isinstance(kind, str) or not re.fullmatch(r"[a-z_]{1,32}", kind):
        raise ValueError("an event without a kind")
    if type(seconds) not in (int, float) or not 0 <= seconds < MOST_SECONDS:
        raise ValueError("an event without a time")
    if model := EVENTS.get(kind):
        model.model_validate(values)
    return values


def _json(data: bytes) -> Any:
    data.decode("utf-8")
    values = parse_bounded_json(data)
    _check_depth(values)
    return values


def _check_depth(values: Any, depth: int = 0) -> None:
    if depth > _MOST_DEPTH:
        raise ValueError(f"more than {_MOST_DEPTH} levels")
    if isinstance(values, dict):
        for value in values.values():
            _check_depth(value, depth + 1)
    elif isinstance(values, list):
        for value in values:
            _check_depth(value, depth + 1)


def _complaint(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False, include_input=False)[0]
        return f"{'.'.join(map(str, first['loc'])) or 'the document'}: {first['msg']}"
    return str(error)[:300] or type(error).__name__
