"""The kinds of events of a run, each with its fields beside number, time and kind.

A run writes no other kind. Events of a mirror, which are untrusted, are checked by these types.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

MOST_STEP = (1 << 53) - 1
# Calendars end in the year 9999.
MOST_SECONDS = 2e11
Seconds = Annotated[float, Field(ge=0, le=MOST_SECONDS, allow_inf_nan=False)]
Step = Annotated[int, Field(ge=-1, le=MOST_STEP)]
Word = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,95}$")]
Text = Annotated[str, Field(max_length=100_000)]


class _EventFields(BaseModel):
    # Events are passed on as they are, so their types must be right already. Unknown keys of a
    # later version are ignored.
    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)


class _Process(_EventFields):
    pid: int = Field(ge=0, le=1 << 40)


class _Started(_EventFields):
    process: _Process


class _Resumed(_EventFields):
    step: Step


class _Progress(_EventFields):
    done: Annotated[float, Field(allow_inf_nan=False)]
    total: Annotated[float, Field(allow_inf_nan=False)] | None = None
    unit: Annotated[str, Field(max_length=64)] = ""
    note: Text = ""
    eta_seconds: Seconds | None = None


class _Metrics(_EventFields):
    step: Step
    values: Annotated[
        dict[Annotated[str, Field(pattern=r"^[\w./:-]{1,64}$")], float],
        Field(max_length=500),
    ]


class _Note(_EventFields):
    message: Text


class _Warning(_EventFields):
    message: Text
    alert: Annotated[str, Field(max_length=64)] = ""


class _Checkpoint(_EventFields):
    step: Step


class _Kept(_EventFields):
    words: int = Field(ge=1, le=MOST_STEP)


class _ArtifactEvent(_EventFields):
    kind: Word
    name: Word


class _Artifact(_EventFields):
    artifact: _ArtifactEvent
    made: bool = True


class _Resolved(_EventFields):
    settings: dict[str, Any]
    tokens_per_step: int | None = Field(None, ge=1, le=MOST_STEP)


_Part = Text | Annotated[list[Text], Field(min_length=2, max_length=2)]


class _Sample(_EventFields):
    parts: Annotated[list[_Part], Field(max_length=200)] = []
    given: Text = ""
    wanted: Text = ""
    text: Text = ""


class _Samples(_EventFields):
    step: Step
    samples: Annotated[list[_Sample], Field(max_length=20)]


class _Error(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    problem: Text
    expected: Text = ""
    received: Text = ""
    fix: Text = ""
    field: Text = ""
    marked: Annotated[dict[Word, Text], Field(max_length=4)] = {}


class _Pushed(_EventFields):
    url: Text
    commit: Text
    step: Step


class _Remote(_EventFields):
    phase: Text = ""


class _Finished(_EventFields):
    state: Literal["done", "stopped", "failed"]
    reason: Annotated[str, Field(max_length=64)] = ""
    results: dict[str, Any] | None = None
    error: _Error | None = None


EVENTS: dict[str, type[_EventFields]] = {
    "started": _Started,
    "resumed": _Resumed,
    "progress": _Progress,
    "metrics": _Metrics,
    "note": _Note,
    "warning": _Warning,
    "checkpoint": _Checkpoint,
    "kept": _Kept,
    "artifact": _Artifact,
    "resolved": _Resolved,
    "samples": _Samples,
    "pushed": _Pushed,
    "remote": _Remote,
    "finished": _Finished,
}


def is_valid(event: dict[str, Any]) -> bool:
    """Returns whether an event has a declared kind, and fields of its schema."""
    try:
        EVENTS[event["kind"]].model_validate(event)
    except (KeyError, ValidationError):
        return False
    return True
