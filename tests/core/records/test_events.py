"""Events: numbering, torn lines, stop requests."""

import json
import os
from pathlib import Path

import pytest

from core.errors import RunError
from core.records.events import (
    EventLog,
    FolderReporter,
    Reporter,
    RunStopped,
    read_attempts,
    read_events,
    read_last_events,
    read_notes,
    read_stop,
)


def test_events_are_numbered_from_one(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "events.jsonl")
    assert [log.append("note", message="a"), log.append("note", message="b")] == [1, 2]
    log.close()
    events, offset = read_events(tmp_path / "events.jsonl")
    assert [event["n"] for event in events] == [1, 2]
    assert offset == (tmp_path / "events.jsonl").stat().st_size


def test_reading_continues_at_the_returned_offset(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "events.jsonl")
    log.append("note", message="a")
    _, offset = read_events(tmp_path / "events.jsonl")
    log.append("note", message="b")
    events, _ = read_events(tmp_path / "events.jsonl", offset)
    assert [event["message"] for event in events] == ["b"]


def test_torn_last_line_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(b'{"n":1,"t":0,"kind":"note"}\n{"n":2,"t":')
    events, offset = read_events(path)
    assert [event["n"] for event in events] == [1]
    assert offset == path.read_bytes().index(b"\n") + 1


def test_reopened_log_removes_the_torn_line_and_continues_the_numbers(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(b'{"n":1,"t":0,"kind":"note"}\n{"n":2,"t":')
    log = EventLog(path)
    assert log.append("note") == 2
    log.close()
    assert [event["n"] for event in read_events(path)[0]] == [1, 2]


def test_attempts_are_read_with_their_first_and_last_times(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    assert read_attempts(path) == []
    log = EventLog(path)
    for kind in ("started", "note", "started"):
        log.append(kind)
    log.close()
    with path.open("ab") as file:
        file.write(b'{"n":4,"t":')
    first, noted, second = (event["t"] for event in read_events(path)[0])
    assert read_attempts(path) == [(first, noted), (second, second)]


@pytest.mark.parametrize("torn", [b"", b'{"n":4,"t":' + b"0" * 100_000])
def test_long_last_line_is_read_entirely(tmp_path: Path, torn: bytes) -> None:
    path = tmp_path / "events.jsonl"
    log = EventLog(path)
    for kind in ("started", "note"):
        log.append(kind)
    log.append("finished", files=["x" * 99] * 3000)
    log.close()
    path.write_bytes(path.read_bytes() + torn)
    assert read_last_events(path)[-1]["kind"] == "finished"
    log = EventLog(path)
    assert log.append("note") == 4
    log.close()
    assert [event["n"] for event in read_events(path)[0]] == [1, 2, 3, 4]


def test_file_that_is_not_an_event_log_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(b"x" * 200_000)
    with pytest.raises(RunError):
        EventLog(path)
    assert path.stat().st_size == 200_000


def test_missing_log_has_no_events(tmp_path: Path) -> None:
    assert read_events(tmp_path / "events.jsonl") == ([], 0)


def test_stop_request_is_received(tmp_path: Path) -> None:
    reporter = FolderReporter(tmp_path, echo=False)
    reporter.raise_if_stopped()
    (tmp_path / "stop.json").write_text(json.dumps({"mode": "save"}))
    reporter._next_stop_check = 0.0
    with pytest.raises(RunStopped) as stopped:
        reporter.raise_if_stopped()
    assert stopped.value.mode == "save"
    reporter.close()


def test_incomplete_stop_request_is_ignored(tmp_path: Path) -> None:
    reporter = FolderReporter(tmp_path, echo=False)
    (tmp_path / "stop.json").write_text('{"mo')
    assert reporter.stop_requested() is None
    reporter.close()


def test_progress_is_thinned_out_but_its_end_is_kept(tmp_path: Path) -> None:
    reporter = FolderReporter(tmp_path, echo=False, min_progress_seconds=60)
    for done in range(1, 101):
        reporter.progress(done, 100, "rows")
    reporter.close()
    events, _ = read_events(tmp_path / "events.jsonl")
    assert [event["done"] for event in events] == [1, 100]


def test_last_progress_of_a_stage_is_written_before_its_end(tmp_path: Path) -> None:
    reporter = FolderReporter(tmp_path, echo=False, min_progress_seconds=60)
    for done in range(1, 8):
        reporter.progress(done, None, "documents")
    reporter.metrics(0, {"rows": 1.0})
    reporter.event("finished", state="done")
    reporter.event("artifact")
    reporter.close()
    events, _ = read_events(tmp_path / "events.jsonl")
    kinds = ["progress", "metrics", "progress", "finished", "artifact"]
    assert [event["kind"] for event in events] == kinds
    assert [event["done"] for event in events if event["kind"] == "progress"] == [1, 7]


def test_silent_reporter_never_stops() -> None:
    Reporter().raise_if_stopped()


def test_text_that_is_not_utf_8_does_not_break_the_log(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "events.jsonl")
    log.append("note", message="caf\udce9.txt is gone")
    log.close()
    (event,), _ = read_events(tmp_path / "events.jsonl")
    assert event["message"] == "caf?.txt is gone"


NOT_EVENTS = [
    b"[" * 100_000 + b"]" * 100_000,
    b'{"n":"2","t":0,"kind":"note"}',
    b'{"n":true,"t":0,"kind":"note"}',
    b'{"n":99999999999999999999,"t":0,"kind":"note"}',
    b'{"n":2,"t":"now","kind":"note"}',
    b'{"n":2,"t":NaN,"kind":"note"}',
    b'{"n":2,"t":' + b"9" * 400 + b',"kind":"note"}',
    b'{"n":2,"t":0}',
    b'{"n":2,"t":0,"kind":["note"]}',
    b"[2]",
    b"2",
]


@pytest.mark.parametrize("line", NOT_EVENTS, ids=range(len(NOT_EVENTS)))
def test_invalid_line_is_ignored(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "events.jsonl"
    first = b'{"n":1,"t":0,"kind":"started"}'
    path.write_bytes(first + b"\n" + line + b"\n")
    events, offset = read_events(path)
    assert [event["n"] for event in events] == [1] and offset == path.stat().st_size
    assert read_last_events(path) == events
    assert read_attempts(path) in ([], [(0, 0)])
    log = EventLog(path)
    assert log.append("note", message="on it goes") == 2
    log.close()


def test_lone_surrogates_in_a_log_are_replaced(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(b'{"n":1,"t":0,"kind":"note","message":"a\\ud800b \\u00e9"}\n')
    [event], _ = read_events(path)
    assert event["message"] == "a?b \u00e9"


def test_log_that_is_not_a_regular_file_is_refused_at_once(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    os.mkfifo(path)
    for read in (read_events, read_last_events, read_notes, read_attempts, EventLog):
        with pytest.raises(RunError, match="is not an event log"):
            read(path)
    path.unlink()
    path.symlink_to("/dev/zero")
    with pytest.raises(RunError, match="is not an event log"):
        read_events(path)


@pytest.mark.parametrize(
    "text", ["[]", "7", '{"mode": ["save"]}', "[" * 100_000, '{"mode": {"save": 1}}', "\udcff"]
)
def test_invalid_stop_request_is_ignored(tmp_path: Path, text: str) -> None:
    path = tmp_path / "stop.json"
    path.write_text(text, "utf-8", "surrogateescape")
    assert read_stop(path) is None


def test_numbering_continues_after_a_long_invalid_line(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    log = EventLog(path)
    log.append("note", message="before")
    log.close()
    with path.open("ab") as file:
        file.write(b"[" * 200_000 + b"\n}\n")
    log = EventLog(path)
    assert log.append("note", message="after") == 2
    log.close()
    assert read_last_events(path)[-1]["message"] == "after"
