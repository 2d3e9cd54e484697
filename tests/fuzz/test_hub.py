"""Fuzzing of Hub responses: each yields files below the cache, or a StudioError."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from tests.fuzz import valid
from tests.fuzz.harness import Input, Worker, explore
from tests.fuzz.mutations import any_bytes, json_text, paths_of, quoted
from tests.fuzz.sandbox import Entry
from tests.fuzz.valid import Artifacts

_STATUSES = (200, 200, 200, 206, 301, 302, 307, 400, 401, 403, 404, 416, 451)


def test_arbitrary_hub_responses_are_read_or_refused(
    worker: Worker, artifacts: Artifacts, share: float
) -> None:
    paths = paths_of(str(worker.sandbox.canary), worker.trap)
    repositories = {
        "model": {**valid.model("bert"), **artifacts.tokenizers["wordpiece"]},
        "config": valid.model("bert"),
        "tokenizer": artifacts.tokenizers["wordpiece"],
        "shards": artifacts.shards("bytes"),
    }
    texts = quoted([path for path in paths if len(path) < 1000])

    def answer(draw: DrawFn, values: Any) -> bytes:
        form = draw(st.integers(0, 9))
        if form < 4:
            return json.dumps(values).encode()
        if form < 9:
            return draw(json_text(values, texts, most=2))
        return draw(any_bytes())

    @st.composite
    def inputs(draw: DrawFn) -> Input:
        what = draw(st.sampled_from(sorted(repositories)))
        files = repositories[what]
        plain = valid.hub(files)
        if draw(st.integers(0, 2)) == 0:
            path = draw(st.sampled_from(paths))
            plain["info"]["siblings"][0]["rfilename"] = path
            plain["tree"][0]["path"] = path
        headers = plain["headers"]
        if draw(st.integers(0, 2)) == 0:
            ascii_paths = [one for one in paths if one.isprintable() and one.isascii()]
            name = draw(st.sampled_from((
                "ETag", "X-Repo-Commit", "X-Linked-Etag", "X-Linked-Size", "Location", "Link",
                "X-Xet-Hash",
                "X-Error-Code", "X-Error-Message", "Content-Range", "Content-Encoding",
                "Retry-After",
            )))  # fmt: skip
            values = ("", "-1", "9" * 30, "gzip", "../../x", "RepoNotFound", "a" * 40, *ascii_paths)
            headers["files"][name] = draw(st.sampled_from(values))[:4000]
            headers["status"] = draw(st.sampled_from(_STATUSES))
        entries: dict[str, Entry] = {
            "info.json": answer(draw, plain["info"]),
            "tree.json": answer(draw, plain["tree"]),
            "paths.json": answer(draw, plain["paths"]),
            "headers.json": json.dumps(headers).encode(),
            **{f"files/{name.rsplit('/', 1)[-1]}": data for name, data in files.items()},
        }
        return Input(entries, {"what": what})

    explore(worker, "hub", "hub", inputs(), share)


@pytest.mark.parametrize(
    ("place", "name", "value"),
    [
        ("info", "sha", None),
        ("info", "siblings", [{"rfilename": True}]),
        ("info", "siblings", [{"rfilename": ["config.json"]}]),
        ("tree", "size", "many"),
        ("tree", "type", "directory"),
    ],
)
def test_invalid_hub_response_is_refused(
    worker: Worker, artifacts: Artifacts, place: str, name: str, value: Any
) -> None:
    files = artifacts.shards("bytes") if place == "tree" else valid.model("bert")
    plain = valid.hub(files)
    for one in plain["tree"] if place == "tree" else [plain["info"]]:
        one[name] = value
    entries = {f"{part}.json": json.dumps(content).encode() for part, content in plain.items()}
    contents = {f"files/{path.rsplit('/', 1)[-1]}": data for path, data in files.items()}
    what = "shards" if place == "tree" else "model"
    outcome = worker.read("hub", Input({**entries, **contents}, {"what": what}))
    assert outcome.verdict == "refused", outcome.detail
