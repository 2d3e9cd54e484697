"""The public demo: anonymous users query one model and reach nothing else."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from gradio_client import Client
from gradio_client.exceptions import AppError, ValidationError

from core.errors import ConfigError, StudioError
from core.serving.demo import MOST_CHARACTERS, Demo, describe, find_checkpoint, read_card
from core.store import Store
from core.workspace.workspace import Workspace
from tests.checkpoints import make_tokenizer, write_checkpoint, write_writer
from tests.ui.browser import Visitor, find_chromium, running_app, visiting
from tests.ui.strangers import (
    Answer,
    Stranger,
    allowing_local_downloads,
    file_at,
    gradio_routes,
    listening,
    send,
    ways_to,
)
from ui.demo import ROUTES, build_demo, build_instructions

pytestmark = pytest.mark.slow(3)

TOKEN = "hf_" + "Zz9yY8xX7wW6" * 3
GUESSED = "a-secret-to-guess"
CARD = """---
license: apache-2.0
widget:
- text: The small <mask> runs.
- text: The <mask> and the <mask>.
model-index:
- name: tiny
  results:
  - task: {type: fill-mask}
    dataset: {type: text, name: sentences}
    metrics:
    - {type: perplexity, value: 24.98, name: Perplexity}
    - {type: loss, value: 3.218, name: Validation loss}
    - {type: loss, value: 6.91, name: Frequency baseline}
---

# tiny

![curves](curves.png)

A [RoBERTa](https://arxiv.org/abs/1907.11692) of *two* layers <script>alert(1)</script>.
"""


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return make_tokenizer(Workspace(tmp_path_factory.mktemp("tokens")), "byte_level_bpe")


@pytest.fixture(scope="module")
def folder(tokens: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_checkpoint(tmp_path_factory.mktemp("models") / "tiny", tokens)
    (folder / "README.md").write_text(CARD, "utf-8")
    return folder


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An existing workspace with a database and a secret file."""
    place = tmp_path_factory.mktemp("studio") / "workspace"
    Store.open(Workspace(place)).close()
    (place / "secret.txt").write_text("the-loot-of-the-workspace")
    return place


@pytest.fixture(scope="module")
def url(folder: Path, place: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    scratch = tmp_path_factory.mktemp("scratch")
    environment = {
        "HF_TOKEN": TOKEN, "HUGGING_FACE_HUB_TOKEN": GUESSED, "STUDIO_AUTH": "",
        "TMPDIR": str(scratch), **allowing_local_downloads(scratch / "python"),
    }  # fmt: skip
    with running_app(place, STUDIO_MODEL=str(folder), **environment) as url:
        yield url
    assert not list(scratch.glob("studio-*")), "what was made for the demo is gone with it"


@pytest.fixture(scope="module")
def stranger(url: str, folder: Path, place: Path) -> Stranger:
    loot = [b"the-loot-of-the-workspace", b"SQLite format 3", b"root:x:0", TOKEN.encode()]
    return Stranger(url, [*loot, b"PATH=", str(folder.parent).encode()])


def test_api_client_gets_the_models_predictions(url: str, folder: Path, place: Path) -> None:
    client = Client(url, verbose=False)
    assert set(client.view_api(print_info=False, return_format="dict")["named_endpoints"]) == {
        "/fill_mask"
    }
    text = "The small <mask> runs."
    found = client.predict(text, 3, api_name="/fill_mask")
    scores = [one["score"] for one in found]
    assert scores == sorted(scores, reverse=True)
    # The demo uses bfloat16 if that is faster; tokens with similar scores may then swap ranks.
    exact = {one["token_str"]: one["score"] for one in ask_alone(folder, text, 50)}
    for one in found:
        assert one["score"] == pytest.approx(exact[one["token_str"]], rel=0.2, abs=0.01)
    for text, count, problem in (
        ("No hole in here.", 3, "no mask"),
        ("<mask>" + "x" * MOST_CHARACTERS, 3, "too long"),
        ("<mask> " * 11, 3, "too many masks"),
        ("<mask>", 21, "top_k is too large"),
        ("<mask>", "all", "top_k is out of range"),
        (["<mask>" * 11] * 30, 20, "not a string"),
        (None, 3, "not a string"),
        ({"text": "<mask>"}, 3, "not a string"),
    ):
        with pytest.raises((AppError, ValidationError), match=problem) as error:
            client.predict(text, count, api_name="/fill_mask")
        assert str(folder) not in str(error.value)
    # The demo doesn't touch the workspace.
    assert not {"app.lock", "cache", "playground.log"} & {path.name for path in place.iterdir()}


def test_correct_guess_of_a_secret_gets_the_same_answer_as_a_wrong_one(url: str) -> None:
    client = Client(url, verbose=False)
    answers = []
    for guess in (GUESSED, "b" * len(GUESSED)):
        found = client.predict(f"The {guess} <mask> runs.", 1, api_name="/fill_mask")
        with pytest.raises(AppError, match="no mask") as error:
            client.predict(f"No hole in {guess}.", 1, api_name="/fill_mask")
        assert guess in found[0]["sequence"]
        answers.append(str(error.value).replace(guess, "…"))
    assert answers[0] == answers[1]


def ask_alone(folder: Path, text: str, top_k: int) -> list[Any]:
    """Queries the model without the demo, in a process that may import a backend."""
    from tests.engines import run_on

    code = """
    import json, sys
    from core import fill_mask
    print(json.dumps(fill_mask(*sys.argv[1:3], int(sys.argv[3]))))
    """
    return list(run_on("jax", code, str(folder), text, top_k))


def test_anonymous_user_reaches_no_other_route(stranger: Stranger) -> None:
    for method, path in gradio_routes():
        answer = stranger.ask(method, path, {} if method == "POST" else None)
        if not ROUTES.fullmatch(f"{method} {path}"):
            assert answer.status == 404, (method, path)
    for method in ("PUT", "DELETE", "PATCH"):
        assert stranger.ask(method, "/").status == 404
    assert stranger.ask("POST", "/gradio_api/queue/join", "x" * (65 << 10)).status == 413


def test_anonymous_user_reads_no_file(stranger: Stranger, folder: Path, place: Path) -> None:
    targets = [place / "studio.db", place / "secret.txt", folder / "config.json"]
    for target in (*targets, Path("/etc/passwd"), Path("/proc/self/environ")):
        for path in ways_to(target):
            assert stranger.ask("GET", path).status in (400, 403, 404), path


def test_anonymous_user_calls_no_function_but_the_model(stranger: Stranger, place: Path) -> None:
    config = json.loads(stranger.ask("GET", "/config").body)
    file = {"path": str(place / "secret.txt"), "meta": {"_type": "gradio.FileData"}}
    asked = 0
    for number in range(-1, len(config["dependencies"]) + 3):
        for data in ([], [file, 5], [str(place / "secret.txt"), 5], [{"a": file}] * 6):
            question = {"fn_index": number, "data": data, "session_hash": "stranger"}
            answer = stranger.ask("POST", "/gradio_api/queue/join", question)
            asked += answer.status == 200
    assert asked, "its own questions are taken"
    events = stranger.ask("GET", "/gradio_api/queue/data?session_hash=stranger").body
    assert b"data:" in events
    for component in config["components"]:
        question = {
            "component_id": component["id"],
            "fn_name": "ls",
            "session_hash": "stranger",
            "data": "/",
        }
        assert stranger.ask("POST", "/gradio_api/component_server", question).status == 404


JOIN, CALL = "/gradio_api/queue/join", "/gradio_api/call/fill_mask"
JSON = "application/json"


def post(url: str, path: str, body: Any, **headers: str) -> Answer:
    sent = body if isinstance(body, bytes) else json.dumps(body).encode()
    return send(url, "POST", path, sent, **{"Content_Type": JSON, **headers})


def test_text_field_with_a_url_is_not_downloaded(url: str) -> None:
    with listening() as (address, asked):
        for index in range(5):
            data = [file_at(f"{address}/300.bin"), 5]
            question = {"fn_index": index, "data": data, "session_hash": f"files-{index}"}
            if post(url, JOIN, question).status == 200:
                send(url, "GET", f"/gradio_api/queue/data?session_hash=files-{index}")
        assert asked == []


def test_no_request_makes_the_demo_fetch_a_url(url: str) -> None:
    """A slow server would keep all visitors waiting."""
    with listening() as (address, asked):
        for target in (f"{address}/x", f"https://{address[7:]}/x", "/etc/passwd", "data:,x"):
            file = file_at(target)
            for value in (file, [file], {"a": file}, {**file, "url": target}):
                for index in range(5):
                    question = {"fn_index": index, "data": [value, value], "session_hash": "a"}
                    assert post(url, JOIN, question).status in (400, 422), (index, value)
                    question = {**question, "data": ["<mask>", 5], "event_data": value}
                    assert post(url, JOIN, question).status in (400, 422), (index, value)
                assert post(url, CALL, {"data": [value, 5]}).status in (400, 422)
                assert post(url, "/gradio_api/cancel", value).status in (400, 422)
        assert asked == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"data": ["<mask>"]}, "The number of arguments is wrong"),
        ({"data": ["<mask>", 5, 5]}, "Received: 3 of them"),
        ({"data": {"text": "<mask>"}}, "a list of 2: text, top_k"),
        ({"data": [["<mask>"], 5]}, "The text is not a string"),
        ({"data": [None, 5]}, "The text is not a string"),
        ({"data": ["x" * (MOST_CHARACTERS + 1), 5]}, "at most 2000 characters"),
        ({"data": ["<mask>", 0]}, "from 1 to 20"),
        ({"data": ["<mask>", 21]}, "ask for 20 or less"),
        ({"data": ["<mask>", 10**400]}, "top_k is too large"),
        ({"data": ["<mask>", 2.5]}, "a whole number"),
        ({"data": ["<mask>", "5"]}, "a whole number"),
        ({"data": ["<mask>", True]}, "a whole number"),
        ({"data": ["<mask>", None]}, "a whole number"),
        ({"session_hash": "../x"}, "session_hash"),
        ({"session_hash": "x" * 65}, "session_hash"),
        ({"session_hash": 5}, "session_hash"),
        ({"simple_format": True}, "an unknown key"),
        ({"batched": True}, "an unknown key"),
        ({"oauth_token": "x"}, "an unknown key"),
    ],
)
def test_request_with_invalid_arguments_is_refused_with_an_explanation(
    url: str, change: dict[str, Any], said: str
) -> None:
    join = {"fn_index": 4, "data": ["<mask>", 5], "session_hash": "a", **change}
    call = {"data": ["<mask>", 5], **change}
    for path, question in ((JOIN, join), (CALL, call)):
        answer = post(url, path, question)
        assert answer.status == 422, path
        sentence = json.loads(answer.body)["error"]
        assert said in sentence
        for part in ("Expected: ", "Received: ", "What to do: "):
            assert part in sentence


@pytest.mark.parametrize("index", [-1, 5, 99, "4", 4.0, True, None, [4]])
def test_request_to_an_unknown_function_is_refused(url: str, index: Any) -> None:
    answer = post(url, JOIN, {"fn_index": index, "data": ["<mask>", 5], "session_hash": "a"})
    assert answer.status == 422
    assert "There is no such function" in json.loads(answer.body)["error"]


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        (b'{"data": ["<mask>", NaN]}', {}, 400),
        (b'{"data": ["<mask>", Infinity]}', {}, 400),
        (b'{"data": ["<mask>", 1e999]}', {}, 422),
        (b'{"data": ["<mask>", ' + b"9" * 9000 + b"]}", {}, 400),
        (b'{"data": ["<mask>", 5], "data": ["<mask>", 5]}', {}, 400),
        (b"[" * 30_000 + b"]" * 30_000, {}, 400),
        (b'{"data": [' + b"[" * 99 + b"]" * 99 + b", 5]}", {}, 400),
        (b'{"data": ["\xff", 5]}', {}, 400),
        ('{"data": ["<mask>", 5]}'.encode("utf-16"), {}, 400),
        (b"\xef\xbb\xbf{}", {}, 400),
        (b"", {}, 422),
        (b"[]", {}, 422),
        (b'"x"', {}, 422),
        (b"{", {}, 400),
        (b"{}", {"Content_Type": "text/plain"}, 415),
        (b"{}", {"Content_Type": "multipart/form-data; boundary=x"}, 415),
        (b"{}", {"Content_Type": "application/x-www-form-urlencoded"}, 415),
        (b"{}", {"Content_Length": "x"}, 400),
        (b"x" * (65 << 10), {}, 413),
        (b"{}", {"Content_Length": str(10**15)}, 413),
        (b"{}", {"Sec_Fetch_Site": "cross-site"}, 403),
        (b"{}", {"Origin": "null"}, 403),
        (b"{}", {f"X-{number}": "1" for number in range(200)}, 431),
    ],
)
def test_malformed_request_body_is_refused(
    url: str, body: bytes, headers: dict[str, str], status: int
) -> None:
    for path in (CALL, JOIN, "/gradio_api/cancel", "/gradio_api/reset"):
        answer = post(url, path, body, **headers)
        assert answer.status == status, answer.body
        assert status != 422 or "What to do" in json.loads(answer.body)["error"]
        # The server itself refuses an invalid Content-Length.
        if status not in (403, 422) and "Content_Length" not in headers:
            assert "What to do" in json.loads(answer.body)["detail"]


@pytest.mark.long
def test_slow_or_endless_request_body_is_refused(url: str) -> None:
    parts = urlsplit(url)
    head = f"POST {CALL} HTTP/1.1\r\nHost: {parts.netloc}\r\nContent-Type: {JSON}\r\n"
    endless = f"{head}Transfer-Encoding: chunked\r\n\r\n".encode()
    with socket.create_connection((parts.hostname, parts.port), timeout=30) as connection:
        connection.sendall(endless + b"20000\r\n" + b"x" * (128 << 10) + b"\r\n")
        assert b" 413 " in connection.recv(64)
    beginnings = (endless + b"1\r\n{\r\n", f"{head}Content-Length: 99\r\n\r\n{{".encode())
    slow = [socket.create_connection((parts.hostname, parts.port), timeout=30) for _ in beginnings]
    for connection, beginning in zip(slow, beginnings, strict=True):
        connection.sendall(beginning)
    started = time.monotonic()
    assert post(url, CALL, {"data": ["<mask>", 1]}).status == 200, "others don't wait"
    for connection in slow:
        with connection:
            assert b" 408 " in connection.recv(64)
    assert time.monotonic() - started < 20
    assert send(url, "GET", "/config", b"{}").status == 400
    assert send(url, "GET", "/config?" + "x" * 10_000).status == 414


def test_responses_have_security_headers(stranger: Stranger) -> None:
    for path in ("/", "/nowhere"):
        headers = stranger.ask("GET", path).headers
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "same-origin"
        assert headers["x-frame-options"] == "SAMEORIGIN"
        assert "frame-ancestors 'self'" in headers["content-security-policy"]


@pytest.mark.slow
@pytest.mark.long
def test_visitor_fills_masks_in_a_browser(url: str) -> None:
    find_chromium()
    with visiting(url, width=390, height=844, dark=True) as visit:
        visitor: Visitor = visit(ready=".ps-chips button")
        body = visitor.page.inner_text("body")
        for text in ("tiny", "3.218", "6.91", "24.98", "A RoBERTa of two layers", "apache-2.0"):
            assert text in body
        assert visitor.page.evaluate("document.documentElement.scrollWidth") <= 390
        bars = visitor.page.locator("#playground-answer .ps-predictions li")
        visitor.page.locator("#playground-examples button").last.click()
        visitor.wait_for(lambda: bars.count() == 10, 60, "five predictions for each of two masks")
        visitor.type("playground-text", "No hole in here.")
        visitor.page.locator("#playground-ask").click()
        visitor.page.get_by_text("The text has no mask").wait_for()
        visitor.page.get_by_text("From a program").click()
        assert f'Client("{url}")' in visitor.page.inner_text("body")
        assert not visitor.page.get_by_role("tab").count()
        assert visitor.errors == visitor.outside == []


@pytest.mark.slow
@pytest.mark.long
def test_visitor_generates_text_and_sees_errors_in_a_browser(tokens: Any, tmp_path: Path) -> None:
    find_chromium()
    folder = write_writer(tmp_path / "writer", tokens, "bart")
    with (
        running_app(tmp_path / "workspace", STUDIO_MODEL=str(folder), STUDIO_AUTH="") as url,
        visiting(url) as visit,
    ):
        visitor: Visitor = visit(ready=".ps-chips button")
        page = visitor.page
        page.locator("#playground-examples button").last.click()
        visitor.wait_for(
            lambda: page.locator("#playground-answer .ps-predictions li").count() > 0, 60, "filled"
        )
        visitor.type("playground-prompt", "The small")
        for _ in range(2):
            page.locator("#playground-write").click()
            visitor.wait_for(
                lambda: (
                    page.locator("#playground-write").is_visible()
                    and "token" in page.inner_text("#playground-written")
                ),
                60,
                "it wrote",
            )
        visitor.type("playground-text", "x" * (MOST_CHARACTERS + 1))
        page.locator("#playground-ask").click()
        page.get_by_text("The text is too long").first.wait_for()
        refused = [text for text in visitor.errors if "422" in text]
        assert visitor.errors == refused
        assert len(refused) == 1


def test_figures_licence_and_examples_are_read_from_the_model_card(
    folder: Path, tmp_path: Path
) -> None:
    card = read_card(folder)
    assert list(card.figures.items()) == [
        ("Validation loss", 3.218),
        ("Unigram baseline", 6.91),
        ("Perplexity", 24.98),
    ]
    assert card.licence == "apache-2.0"
    assert card.examples == ("The small <mask> runs.", "The <mask> and the <mask>.")
    assert card.description == "A RoBERTa of two layers <script>alert(1)</script>."
    assert read_card(tmp_path) == type(card)()
    assert describe("# Title\n\n| a | table |\n\n" + "word " * 100).endswith("word …")


@pytest.mark.parametrize("text", ["---\n: [\n---\nx", "---\nmodel-index: 3\n---\n", "\x00", "---"])
def test_damaged_model_card_has_no_figures(tmp_path: Path, text: str) -> None:
    (tmp_path / "README.md").write_text(text, "utf-8")
    assert read_card(tmp_path).figures == {}


def test_model_card_is_escaped(folder: Path) -> None:
    page = build_demo(Demo(str(folder)), "http://127.0.0.1:1")
    shown = "".join(str(block.value) for block in page.blocks.values() if hasattr(block, "value"))
    assert "<script>alert" not in shown
    assert "&lt;script&gt;alert" in shown


def test_causal_model_has_only_the_generate_endpoint(tokens: Any, tmp_path: Path) -> None:
    folder = write_writer(tmp_path / "writer", tokens, "gpt2")
    demo = Demo(str(folder))
    page = build_demo(demo, "http://127.0.0.1:1")
    assert list(page.get_api_info()["named_endpoints"]) == ["/generate"]
    with pytest.raises(ConfigError, match="max_new_tokens is too large"):
        next(demo.generate("", "The", max_new_tokens=257))
    stream = demo.generate("", "The", max_new_tokens=3, seed=1)
    with pytest.raises(StopIteration) as end:
        while True:
            next(stream)
    assert end.value.value["num_new_tokens"] <= 3
    demo.close()


def test_failure_of_the_model_process_reveals_no_paths(tokens: Any, tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "broken", tokens)
    demo = Demo(str(folder))
    (folder / "model.safetensors").write_bytes(b"nothing")
    with pytest.raises(StudioError) as error:
        demo.fill_mask("", "a <mask>")
    assert str(tmp_path) not in str(error.value)
    assert "can't answer" in str(error.value)
    demo.close()


def test_invalid_model_reference_is_refused(tmp_path: Path) -> None:
    for reference in (str(tmp_path / "nowhere"), "name", "../x", "a/b@", "https://x/y"):
        with pytest.raises(ConfigError, match="STUDIO_MODEL"):
            find_checkpoint(reference)


def test_space_without_a_model_shows_instructions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPACE_ID", "owner/name")
    page = build_instructions()
    shown = "".join(str(block.value) for block in page.blocks.values() if hasattr(block, "value"))
    assert "STUDIO_MODEL=owner/name" in shown
    assert "spaces/owner/name/settings" in shown
    assert not page.fns
