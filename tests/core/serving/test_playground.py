"""The playground's model process, over its real socket."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import h5py
import psutil
import pytest

from core.errors import ConfigError, RunError, StudioError
from core.serving.playground import LOG_FILE, PlaygroundClient, answer_request
from core.workspace.workspace import Workspace
from tests.checkpoints import LENGTH, make_tokenizer, write_checkpoint, write_writer

TEXT = "the small [MASK] runs"
ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    workspace = Workspace(tmp_path_factory.mktemp("workspace"))
    tokenizer = make_tokenizer(workspace, "unigram")
    with workspace.new_artifact("model", "small") as draft:
        write_checkpoint(draft.folder, tokenizer)
    with workspace.new_artifact("model", "writer") as draft:
        write_writer(draft.folder, tokenizer, "gpt2")
    return workspace


@pytest.fixture(scope="module")
def client(workspace: Workspace) -> Iterator[PlaygroundClient]:
    client = PlaygroundClient(workspace)
    yield client
    client.close()


def poke(client: PlaygroundClient) -> int | None:
    """Sends a request that needs no backend; returns the id of the process that answered."""
    with pytest.raises(ConfigError, match="The model 'nowhere' was not found"):
        client.fill_mask("nowhere", TEXT)
    return client.pid


def wait_until(condition: Callable[[], bool], seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_client_fills_masks(client: PlaygroundClient) -> None:
    predictions = client.fill_mask("small", TEXT, 3)
    assert len(predictions) == 3
    assert set(predictions[0]) == {"score", "token", "token_str", "sequence"}
    nested = client.fill_mask("small", f"{TEXT} [MASK]")
    assert [len(one) for one in nested] == [5, 5]


def test_client_scores_a_text(client: PlaygroundClient) -> None:
    found = client.perplexity("small", "the small house")
    assert found["kind"] == "pseudo" and found["num_tokens"] > 1


def read_out(stream: Generator[str, None, Any]) -> tuple[list[str], Any]:
    pieces = []
    while True:
        try:
            pieces.append(next(stream))
        except StopIteration as end:
            return pieces, end.value


def test_generated_text_is_streamed(client: PlaygroundClient) -> None:
    pieces, result = read_out(client.generate("writer", "the small", max_new_tokens=10, seed=1))
    assert len(pieces) > 3
    assert "".join(pieces) == result["text"]
    again = read_out(client.generate("writer", "the small", max_new_tokens=10, seed=1))
    assert again == (pieces, result)
    assert client.fill_mask("small", TEXT)


def test_unsupported_method_error_names_the_supported_one(client: PlaygroundClient) -> None:
    with pytest.raises(ConfigError, match="fill_mask"):
        next(client.generate("small", "the small"))
    with pytest.raises(ConfigError, match="generate"):
        client.fill_mask("writer", TEXT)
    with pytest.raises(ConfigError) as caught:
        next(client.generate("writer", "the small", top_p=2))
    assert caught.value.field == "top_p"


def test_generation_stops_when_the_stream_is_closed() -> None:
    written: list[str] = []
    ended: list[bool] = []

    def write() -> Generator[str, None, str]:
        try:
            for number in range(100):
                written.append(str(number))
                yield written[-1]
            return "all"
        finally:
            ended.append(True)

    answers = answer_request(b'{"id": 3, "method": "write"}', {"write": write})
    assert next(answers) == {"id": 3, "part": "0"}
    answers.close()
    assert (written, ended) == (["0"], [True])
    *parts, last = answer_request(b'{"id": 3, "method": "write"}', {"write": write})
    assert len(parts) == 100
    assert last == {"id": 3, "result": "all"}


def test_process_keeps_serving_after_a_stream_is_closed(client: PlaygroundClient) -> None:
    stream = client.generate("writer", "the small", max_new_tokens=LENGTH)
    next(stream)
    pid = client.pid
    stream.close()
    assert client.fill_mask("small", TEXT)
    assert client.pid == pid


def test_client_imports_no_backend(client: PlaygroundClient) -> None:
    code = (
        "import sys; from core.serving.playground import PlaygroundClient; "
        "from core.workspace import Workspace; "
        f"c = PlaygroundClient(Workspace({str(client._workspace.root)!r})); "
        f"c.fill_mask('small', {TEXT!r}); c.close(); "
        "print([name for name in ('tensorflow', 'jax', 'keras') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr


def test_process_has_its_own_session_and_logs_to_a_file(
    client: PlaygroundClient,
) -> None:
    client.fill_mask("small", TEXT)
    assert client.pid is not None
    assert os.getsid(client.pid) == client.pid
    environment = psutil.Process(client.pid).environ()
    assert environment.get("STUDIO_AUTH") is None
    # Output goes to a file: the process does not block on a pipe.
    assert os.readlink(f"/proc/{client.pid}/fd/1").endswith(LOG_FILE)


def test_socket_is_accessible_to_its_owner_only(client: PlaygroundClient) -> None:
    client.fill_mask("small", TEXT)
    assert client._socket_path is not None
    assert client._socket_path.parent.stat().st_mode & 0o777 == 0o700
    assert client._socket_path.stat().st_mode & 0o077 == 0


def test_errors_keep_their_fields(client: PlaygroundClient) -> None:
    with pytest.raises(ConfigError) as caught:
        client.fill_mask("small", "no mask")
    assert caught.value.field == "text"
    assert "[MASK]" in caught.value.expected
    assert caught.value.fix


def test_unknown_model_is_refused(client: PlaygroundClient) -> None:
    with pytest.raises(ConfigError) as caught:
        client.fill_mask("nowhere", TEXT)
    assert caught.value.field == "model"


@pytest.mark.parametrize("way", ["absolute", "relative"])
def test_model_outside_the_workspace_is_refused(
    client: PlaygroundClient, workspace: Workspace, tmp_path: Path, way: str
) -> None:
    from core.tokenizer.loading import load

    outside = write_checkpoint(tmp_path / "model", load("unigram", workspace))
    models = workspace.folder("model")
    name = str(outside) if way == "absolute" else os.path.relpath(outside, models)
    with pytest.raises(ConfigError, match="has no access to"):
        client.fill_mask(name, TEXT)


def test_overlong_text_is_refused(client: PlaygroundClient) -> None:
    with pytest.raises(ConfigError, match="too long"):
        client.fill_mask("small", "x" * (2 << 20))


def test_concurrent_requests_are_answered_alike(client: PlaygroundClient) -> None:
    with ThreadPoolExecutor(16) as threads:
        answers = list(threads.map(lambda _: client.fill_mask("small", TEXT), range(100)))
    for answer in answers:
        assert [one["token"] for one in answer] == [one["token"] for one in answers[0]]
        assert scores_of(answer) == pytest.approx(scores_of(answers[0]), rel=1e-4)


def test_batched_requests_have_the_scores_of_separate_requests(client: PlaygroundClient) -> None:
    texts = [TEXT, "[MASK] and [MASK]", "the " * 12 + "[MASK]", "old [MASK]", "a [MASK] ship"] * 8
    alone = {text: client.fill_mask("small", text) for text in set(texts)}
    with ThreadPoolExecutor(20) as threads:
        together = list(threads.map(lambda text: client.fill_mask("small", text), texts))
    for text, found in zip(texts, together, strict=True):
        assert scores_of(found) == pytest.approx(scores_of(alone[text]), rel=1e-4, abs=1e-7)


def scores_of(found: list[Any]) -> list[float]:
    return [
        score
        for one in found
        for score in (scores_of(one) if isinstance(one, list) else [one["score"]])
    ]


def test_concurrent_first_requests_start_one_process(workspace: Workspace) -> None:
    client = PlaygroundClient(workspace)
    try:
        with ThreadPoolExecutor(8) as threads:
            pids = set(threads.map(lambda _: poke(client), range(8)))
        assert len(pids) == 1
    finally:
        client.close()


@pytest.mark.slow(3)
def test_killed_process_is_restarted(client: PlaygroundClient) -> None:
    before = client.fill_mask("small", TEXT)
    killed = client.pid
    assert killed is not None
    os.kill(killed, signal.SIGKILL)
    wait_until(lambda: client.pid is None)
    assert client.fill_mask("small", TEXT) == before
    assert client.pid != killed


def test_process_killed_during_a_request_is_reported(client: PlaygroundClient) -> None:
    client.fill_mask("small", TEXT)
    assert client.pid is not None
    os.kill(client.pid, signal.SIGSTOP)
    with ThreadPoolExecutor(1) as threads:
        asked = threads.submit(client.fill_mask, "small", TEXT)
        time.sleep(0.3)
        os.kill(client.pid, signal.SIGKILL)
        with pytest.raises(RunError, match="SIGKILL"):
            asked.result(timeout=30)
    assert client.fill_mask("small", TEXT)


def test_hanging_process_times_out(workspace: Workspace) -> None:
    client = PlaygroundClient(workspace, answer_seconds=30)
    try:
        pid = poke(client)
        assert pid is not None
        client._answer_seconds = 0.3
        os.kill(pid, signal.SIGSTOP)
        with pytest.raises(RunError, match="did not answer for"):
            client.fill_mask("nowhere", TEXT)
        os.kill(pid, signal.SIGCONT)
    finally:
        client.close()


def test_idle_process_ends_and_the_next_request_starts_another(workspace: Workspace) -> None:
    client = PlaygroundClient(workspace, idle_seconds=0.5)
    try:
        first = poke(client)
        assert client._socket_path is not None
        folder = client._socket_path.parent
        wait_until(lambda: client.pid is None)
        assert not folder.exists()
        assert poke(client) != first
    finally:
        client.close()


def test_process_ends_when_its_parent_is_gone(workspace: Workspace) -> None:
    code = (
        "import os; from core.errors import ConfigError; "
        "from core.serving.playground import PlaygroundClient; "
        "from core.workspace import Workspace; "
        f"c = PlaygroundClient(Workspace({str(workspace.root)!r})); c._running(); "
        "print(c.pid, c._socket_path, flush=True); os.kill(os.getpid(), 9)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    pid, path = done.stdout.split()
    wait_until(lambda: not psutil.pid_exists(int(pid)))
    assert not Path(path).parent.exists()


def test_close_leaves_no_process_and_no_files(workspace: Workspace) -> None:
    client = PlaygroundClient(workspace)
    pid, path = poke(client), client._socket_path
    assert pid is not None and path is not None
    client.close()
    assert not psutil.pid_exists(pid)
    assert not path.parent.exists()
    client.close()


def test_workspace_with_a_long_path_works(tmp_path: Path) -> None:
    client = PlaygroundClient(Workspace(tmp_path / ("x" * 100) / ("y" * 100)))
    try:
        poke(client)
    finally:
        client.close()


@pytest.mark.parametrize(
    "line", [b"", b"{", b"[]", b"{}", b'{"id": 1, "method": "open"}', b'{"params": []}', b"\xff"]
)
def test_invalid_request_gets_an_error(line: bytes) -> None:
    (answer,) = answer_request(line, {"fill_mask": list})
    assert answer["error"]["kind"] == "ConfigError"


def test_unexpected_failure_is_logged_and_reported(capfd: pytest.CaptureFixture[str]) -> None:
    def fail() -> None:
        raise ZeroDivisionError("on purpose")

    (answer,) = answer_request(b'{"id": 7, "method": "fail"}', {"fail": fail})
    assert answer["id"] == 7
    assert "ZeroDivisionError: on purpose" in answer["error"]["received"]
    assert "Traceback" in capfd.readouterr().err


def test_one_connection_serves_several_requests(client: PlaygroundClient) -> None:
    client.fill_mask("small", TEXT)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.connect(str(client._socket_path))
        file = connection.makefile("rwb")
        for number in (1, 2):
            request = {
                "id": number,
                "method": "fill_mask",
                "params": {"model": "small", "text": TEXT},
            }
            file.write(json.dumps(request).encode() + b"\n")
            file.flush()
            answer = json.loads(file.readline())
            assert answer["id"] == number
            assert len(answer["result"]) == 5


def _panicking_tokenizer(folder: Path) -> None:
    """Gives a tokenizer a regular expression that makes the library panic."""
    path = folder / "tokenizer.json"
    values = json.loads(path.read_text())
    pattern = {"Regex": "(x+x+)+y"}
    split = {"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False}
    values["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [split]}
    values["normalizer"] = None
    path.write_text(json.dumps(values))


def test_panic_of_a_library_is_returned_as_an_error(workspace: Workspace, tmp_path: Path) -> None:
    """A Rust panic is not an `Exception` in Python."""
    from tokenizers import Tokenizer

    shutil.copy(workspace.folder("model") / "small" / "tokenizer.json", tmp_path)
    _panicking_tokenizer(tmp_path)

    def panic() -> None:
        Tokenizer.from_file(str(tmp_path / "tokenizer.json")).encode("x" * 60)

    (answer,) = answer_request(b'{"id": 7, "method": "panic"}', {"panic": panic})
    assert answer["id"] == 7 and answer["error"]["kind"] == "RunError"
    assert "PanicException" in answer["error"]["received"]


@pytest.mark.slow(8)
def test_process_survives_invalid_models(workspace: Workspace, client: PlaygroundClient) -> None:
    """Each model is refused with its problem, and the same process goes on serving."""

    def spoil(name: str, change: Callable[[Path], object]) -> str:
        folder = workspace.folder("model") / name
        shutil.copytree(workspace.folder("model") / "small", folder)
        change(folder)
        return name

    def pipe(folder: Path) -> None:
        (folder / "model.safetensors").unlink()
        os.mkfifo(folder / "model.safetensors")

    def pointer(folder: Path) -> None:
        text = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 438012727\n"
        (folder / "model.safetensors").write_text(text)

    def hdf5(folder: Path) -> None:
        (folder / "model.safetensors").unlink()
        with h5py.File(folder / "tf_model.h5", "w") as file:
            file.attrs["layer_names"] = ["loop"]
            file["loop"] = h5py.SoftLink("/loop")

    deep = "[" * 100_000
    spoiled = {
        spoil("panics", _panicking_tokenizer): ".",
        spoil("pipe", pipe): "a named pipe",
        spoil("pointer", pointer): "Git LFS pointer",
        spoil("loop", hdf5): "soft link",
        spoil("deep", lambda folder: (folder / "config.json").write_text(deep)): "nested",
    }
    before = poke(client)
    for name, said in spoiled.items():
        text = f"{'x' * 60} [MASK]"
        with pytest.raises(StudioError, match=said):
            client.fill_mask(name, text)
        shutil.rmtree(workspace.folder("model") / name)
    assert client.fill_mask("small", TEXT)
    assert client.pid == before
