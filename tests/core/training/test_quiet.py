"""Terminal and logs contain our own lines only, and the libraries' important messages."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from core.backends.stderr import is_hidden
from tests.core.runs.support import delete_folder
from tests.hub_server import HubServer
from tests.texts import write_sentences

ROOT = Path(__file__).parent.parent.parent.parent
INFORMATION = (
    b"I0000 00:00:1795576362.004190    8592 port.cc:153] oneDNN custom operations are on.\n"
)
OLD_INFORMATION = b"2024-05-01 10:00:00.123456: I tensorflow/core/util/port.cc:113] oneDNN is on.\n"
CUDA = b"E0000 00:00:1795576365.853443    8592 cuda_platform.cc:52] failed call to cuInit\n"
ERROR = b"E0000 00:00:1795576365.853443    8592 executor.cc:7] The disk is on fire\n"
FATAL = b"F0000 00:00:1795576365.853443    8592 cuda.cc:52] This can't go on\n"
NOTICE = b"WARNING: All log messages before absl::InitializeLog() is called are written to STDERR\n"
PLAIN = b"The TensorFlow library was compiled to use AVX instructions, which are not available\n"


def clean_environment(**more: str) -> dict[str, str]:
    """An environment without the variables that these tests set to silence libraries."""
    libraries = ("TF_", "CUDA_", "JAX_", "XLA_", "KERAS_", "GRPC_", "ABSL_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(libraries)}
    # Keep the compilation cache that all tests share.
    kept |= {name: value for name, value in os.environ.items() if name.startswith("JAX_")}
    return {**kept, "PYTHONPATH": str(ROOT), **more}


def run_python(*arguments: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env=clean_environment(**environment),
        capture_output=True,
        timeout=300,
        check=False,
    )


needs_no_gpu = pytest.mark.skipif(
    Path("/proc/driver/nvidia").exists(), reason="needs a machine without an NVIDIA driver"
)
LOAD = """
import sys
from core.backends.imports import import_for
keras = import_for(sys.argv[1], "keras")
print(float(keras.ops.sum(keras.ops.ones((2, 2)) @ keras.ops.ones((2, 2)))))
"""


@needs_no_gpu
@pytest.mark.slow(6)
@pytest.mark.parametrize("backend", ["tensorflow", pytest.param("jax", marks=pytest.mark.long)])
def test_backend_starts_silently(backend: str) -> None:
    done = run_python("-c", LOAD, backend, KERAS_BACKEND=backend)
    assert (done.stderr.decode(), done.stdout) == ("", b"8.0\n")


@needs_no_gpu
@pytest.mark.long
@pytest.mark.slow(6)
def test_user_can_request_all_library_messages() -> None:
    done = run_python(
        "-c", LOAD, "tensorflow", KERAS_BACKEND="tensorflow", TF_CPP_MIN_LOG_LEVEL="0"
    )
    assert NOTICE in done.stderr and b"I0000" in done.stderr
    # TensorFlow turns oneDNN on, and says so, on processors with these instructions only.
    if "avx512_vnni" in Path("/proc/cpuinfo").read_text():
        assert b"oneDNN" in done.stderr


def test_lines_are_filtered_by_their_severity() -> None:
    lines = (NOTICE, INFORMATION, OLD_INFORMATION, CUDA, ERROR, FATAL, PLAIN)

    def shown(level: int, *, cuda: bool) -> list[bytes]:
        return [line for line in lines if not is_hidden(line, level, cuda=cuda)]

    assert shown(0, cuda=False) == list(lines)
    assert shown(2, cuda=True) == [CUDA, ERROR, FATAL, PLAIN]
    assert shown(2, cuda=False) == [ERROR, FATAL, PLAIN]
    assert shown(3, cuda=True) == [FATAL, PLAIN]


FILTERED = """
import os, sys
from core.backends.stderr import filtered_stderr
with filtered_stderr(2, cuda=False):
    for line in {lines!r}:
        os.write(2, line)
    {end}
os.write(2, b"after\\n")
"""


@pytest.mark.parametrize(
    ("end", "said"),
    [
        ("pass", b"after\n"),
        ("raise ImportError('libfoo.so: no such file')", b"libfoo.so"),
        ("os.abort()", b""),
        ("os._exit(3)", b""),
    ],
)
def test_important_messages_are_shown_even_if_the_import_ends_the_process(
    end: str, said: bytes
) -> None:
    lines = [NOTICE, INFORMATION, PLAIN, ERROR, b"half a line"]
    done = run_python("-c", FILTERED.format(lines=lines, end=end))
    assert done.stderr.startswith(PLAIN + ERROR + b"half a line")
    assert said in done.stderr
    assert b"oneDNN" not in done.stderr and b"absl::" not in done.stderr


def test_imports_work_in_a_process_without_stderr() -> None:
    code = FILTERED.format(lines=[], end="print('done', flush=True)").replace(
        "import os, sys", "import os, sys; os.close(2)"
    )
    assert run_python("-c", code.replace('os.write(2, b"after\\n")', "")).stdout == b"done\n"


SCRIPT = """
import sys
from core import CorpusConfig, ShardConfig, TokenizerConfig, TrainConfig, Workspace
from core import build_shards, fill_mask, train, train_tokenizer

workspace = Workspace(sys.argv[1])
corpus = CorpusConfig(source="files", path=sys.argv[2])
tokenizer = train_tokenizer(TokenizerConfig(corpus=corpus, vocab_size=150), workspace)
shards = build_shards(
    ShardConfig(corpus=corpus, tokenizer=tokenizer.name, max_seq_length=16), workspace
)
model = train(
    TrainConfig(shards=shards.name, size="tiny", hidden_size=32, num_hidden_layers=1,
                num_attention_heads=2, num_train_steps=3), workspace
)
print(len(fill_mask(model.path, "The [MASK].", top_k=5)))
"""
SMALL = (
    "--size tiny --num-hidden-layers 1 --hidden-size 32 --num-attention-heads 2 "
    "--per-replica-batch-size 8 --num-train-steps 3"
).split()
# A run's progress, its metrics, and the path of its artifact.
OURS = re.compile(r"[a-z]+-\d{8}-\d{6}-\w{4}  .*|  step \d+: .*|/\S+|Read /\S+: text, UTF-8")


def lines_of_events(folder: Path) -> set[str]:
    """Lines allowed in a run's log: the messages that the run reported."""
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    messages = {event["message"] for event in events if event["kind"] == "note"}
    warnings = {f"warning: {event['message']}" for event in events if event["kind"] == "warning"}
    return messages | warnings


@needs_no_gpu
@pytest.mark.thorough
@pytest.mark.slow(120)
def test_every_stage_prints_only_its_own_lines(tmp_path: Path) -> None:
    text = write_sentences(tmp_path / "sentences.txt", 600)
    workspace = tmp_path / "workspace"
    hub = HubServer()

    def command(*arguments: str, ours: Callable[[str], object] = OURS.fullmatch) -> None:
        done = run_python(
            *("-m", "core", *arguments, "--workspace", str(workspace)),
            HF_ENDPOINT=hub.url,
            HF_HOME=str(tmp_path / "hub"),
        )
        assert done.returncode == 0, done.stderr.decode()
        lines = (done.stdout + done.stderr).decode().splitlines()
        assert [line for line in lines if line.strip() and not ours(line)] == []

    corpus = ("--source", "files", "--path", str(text))
    rows = ("--tokenizer", "words", "--max-seq-length", "16")
    try:
        command("tokenizer", *corpus, "--vocab-size", "150", "--name", "words")
        command("shards", *corpus, *rows, "--name", "rows")
        command("shards", *corpus, *rows, "--objective", "clm", "--name", "blocks")
        command("train", "--shards", "rows", "--name", "filler", *SMALL)
        command("train", "--shards", "rows", "--name", "other", "--engine", "jax", *SMALL)
        command("train", "--shards", "blocks", "--name", "writer", "--family", "gpt2", *SMALL)
        figures = re.compile(r" *(?:-|[\d.]+)  .*|\w*perplexity .*|loss .*|.*tokens.*").fullmatch
        command("fill-mask", "filler", "The [MASK] walks.", ours=figures)
        command("perplexity", "writer", "The old teacher walks.", ours=figures)
        words = re.compile(r"[\w\s.,]*").fullmatch
        command("generate", "writer", "The old", "--max-new-tokens", "3", ours=words)
        advice = re.compile(r"(?!WARNING|[IWE]\d{4}).*").fullmatch
        command("suggest", "--shards", "rows", "--tokens", "50000", ours=advice)
        command(
            *("push", "--model", "filler", "--repo-id", "me/filler", "--dry-run"),
            ours=lambda line: OURS.fullmatch(line) or advice(line),
        )
        script = run_python("-c", SCRIPT, str(workspace), str(text))
        assert (script.stderr.decode(), script.stdout) == ("", b"5\n")
    finally:
        hub.close()
    logs = [path for path in workspace.glob("runs/*/log.txt") if path.stat().st_size]
    assert len(logs) >= 6
    for log in logs:
        reported = lines_of_events(log.parent)
        lines = [line for line in log.read_text().splitlines() if not line.startswith("step ")]
        assert [line for line in lines if line not in reported] == [], log
    delete_folder(workspace)
