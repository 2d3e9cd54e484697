"""The README and the docs match the code: commands run; flags, files, links and tests exist."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from core.__main__ import build_parser
from core.config.analyse import AnalyseConfig
from core.config.clean import CleanConfig
from core.config.options import flag_of
from core.config.topologies import TOPOLOGIES, find_topology, runtime_version
from core.corpus.cleaning.rules import RULES
from core.runs.start import child_environment
from core.stages.registry import STAGES
from core.store import Store
from core.workspace.workspace import Workspace
from tests.ports import free_port
from tests.targets.homes import ssh_machine, stopped_at_the_end
from tests.texts import write_sentences

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text("utf-8")
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
FLAGS = (ROOT / "docs" / "flags.md").read_text("utf-8")
ACCELERATORS = "".join((ROOT / "docs" / f"{name}.md").read_text("utf-8") for name in ("tpu", "gpu"))

# Options that make a README command small enough for a test.
SMALLER = {
    "pretrain": ["--minutes", "0.02"],
    "quickstart": ["--limit", "1000", "--num-train-steps", "5"],
    "tokenizer": ["--vocab-size", "80"],
    "shards": ["--max-seq-length", "32"],
    "preflight": shlex.split(
        "--vocab-size 512 --max-seq-length 32 --num-hidden-layers 1 --hidden-size 32"
        " --num-attention-heads 2 --topology v5e-1 --no-largest-batch"
    ),
    "train": shlex.split(
        "--num-train-steps 10 --num-hidden-layers 2 --hidden-size 16 --num-attention-heads 2"
        " --intermediate-size 32"
    ),
    "finetune": shlex.split("--num-train-epochs 1 --num-seeds 1 --learning-rates 1e-3 --limit 60"),
}
TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.md"))


def all_blocks(page: str) -> list[tuple[str, str]]:
    """Returns language and text of each code block."""
    return re.findall(r"^```(\w*)\n(.*?)^```$", page, flags=re.DOTALL | re.MULTILINE)


def blocks(language: str, page: str = README) -> list[str]:
    return [text for name, text in all_blocks(page) if name == language]


def shell_commands(*texts: str) -> list[list[str]]:
    """Returns the words of each command, of the README's blocks by default."""
    whole = [text.replace("\\\n", "") for text in texts or blocks("sh")]
    lines = [line for text in whole for line in text.splitlines() if line.strip()]
    return [shlex.split(line, comments=True) for line in lines]


def core_commands(*texts: str) -> list[list[str]]:
    """Returns the arguments of commands that run `studio`, or the same as a module."""
    prefixes = (["python", "-m", "core"], ["studio"])
    return [
        command[len(prefix) :]
        for command in shell_commands(*texts)
        for prefix in prefixes
        if command[: len(prefix)] == prefix
    ]


def smaller(arguments: list[str]) -> list[str]:
    if arguments[0] == "tokenizer" and "llama" in arguments:
        return ["--vocab-size", "300"]  # 256 of them are the bytes.
    return SMALLER.get(arguments[0], [])


def run_core(arguments: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "core", *arguments, *smaller(arguments)],
        cwd=folder,
        env=child_environment(),
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )


@pytest.mark.slow(200)
@pytest.mark.long
def test_every_stage_command_of_the_readme_works(tmp_path: Path) -> None:
    write_sentences(tmp_path / "my-text.txt", 600)
    run_commands = [command for command in core_commands() if command[0] == "runs"]
    others = [command for command in core_commands() if command[0] != "runs"]
    assert {command[0] for command in others} == {
        "pretrain",
        "quickstart",
        "fill-mask",
        "tokenizer",
        "shards",
        "train",
        "preflight",
        "push",
        "generate",
        "perplexity",
    }
    for command in others:
        result = run_core(command, tmp_path)
        assert result.returncode == 0, (command, result.stderr)
    store = Store.open(Workspace(tmp_path / "workspace"))
    done = store.list_runs()[-1].id
    expected = {"stop": 1, "resume": 1}  # A finished run can be neither stopped nor resumed.
    for command in run_commands:
        result = run_core([done if word == "RUN" else word for word in command], tmp_path)
        assert result.returncode == expected.get(command[1], 0), (command, result.stderr)


def run_block(language: str, text: str, folder: Path, machine: str) -> None:
    """Saves a script by the name in its first line, or runs commands, with a machine of the test.

    RUN is the newest run.
    """
    if language == "python":
        (name,) = re.findall(r"\A# (\w+\.py)\n", text)
        (folder / name).write_text(text, "utf-8")
        return
    for program, *words in shell_commands(text):
        command = [word.replace("ssh://me@gpu-box", machine) for word in words]
        if "RUN" in command:
            (newest, *_) = Store.open(Workspace(folder / "workspace")).list_runs()
            command[command.index("RUN")] = newest.id
        if program == "python":
            subprocess.run([sys.executable, *command], cwd=folder, timeout=300, check=True)
        else:
            assert program == "studio"
            result = run_core(command, folder)
            assert result.returncode == 0, (command, result.stdout, result.stderr)


@pytest.mark.slow(60)
@pytest.mark.long
@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)
def test_every_block_of_a_tutorial_works(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "tutorial"
    write_sentences(folder / "my-text.txt", 600)
    with (
        ssh_machine(tmp_path, monkeypatch) as server,
        stopped_at_the_end(Workspace(folder / "workspace")),
    ):
        for language, text in all_blocks(path.read_text("utf-8")):
            if language != "console":
                run_block(language, text, folder, f"{server.address}?python={sys.executable}")
    shown = re.findall(r"--output (\S+)", path.read_text("utf-8"))
    assert all("data:image/svg" in (folder / name).read_text("utf-8") for name in shown)


@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)
def test_tutorial_is_short_and_its_commands_are_parsed(path: Path) -> None:
    """Blocks of the kind `console` need an account, or serve until they are stopped."""
    text = path.read_text("utf-8")
    assert len(text.split()) <= 500
    assert f"({path.relative_to(ROOT)})" in README
    commands = core_commands(*(block for name, block in all_blocks(text) if name != "python"))
    assert commands
    for command in commands:
        build_parser().parse_args(command)


@pytest.mark.slow
def test_the_script_of_the_readme_works(tmp_path: Path) -> None:
    write_sentences(tmp_path / "my-text.txt", 600)
    (script,) = blocks("python")
    smaller = script.replace("minutes=10", "minutes=0.02")
    (tmp_path / "script.py").write_text(smaller)
    result = subprocess.run(
        [sys.executable, "script.py"],
        cwd=tmp_path,
        env=child_environment(),
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert "'token_str'" in result.stdout


# `.ci/run` does the same with what a newcomer has.
@pytest.mark.slow
@pytest.mark.thorough
def test_make_run_starts_the_web_app_and_the_quickstart(tmp_path: Path) -> None:
    if not (ROOT / ".venv" / "installed").exists():
        pytest.skip("make has not set this checkout up; get it with: make setup")
    port = free_port()
    process = subprocess.Popen(
        ["make", "run", f"PORT={port}", f"WORKSPACE={tmp_path}"],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        page = wait_for_page(f"http://127.0.0.1:{port}")
        assert b"Pretrain Studio" in page
        stages = [row.stage for row in wait_for_runs(Workspace(tmp_path))]
        assert sorted(stages) == ["shards", "tokenizer", "train"]
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(20)
        end_all_processes_of(tmp_path)


def recipe_of(*arguments: str, **environment: str) -> list[list[str]]:
    """Returns the commands that make would run."""
    ended = subprocess.run(
        ["make", "--dry-run", *arguments],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return [shlex.split(line) for line in ended.stdout.splitlines()]


@pytest.mark.parametrize(("target", "program"), [("run", "app.py"), ("quickstart", "quickstart")])
def test_make_passes_a_workspace_only_if_one_is_given(target: str, program: str) -> None:
    [command] = [line for line in recipe_of(target) if program in line]
    assert "--workspace" not in command
    [command] = [line for line in recipe_of(target, "WORKSPACE=/my runs") if program in line]
    assert command[command.index("--workspace") + 1] == "/my runs"


def test_make_run_ignores_exported_environment_variables() -> None:
    exported = {"HOST": "build-7.example", "PORT": "1", "WORKSPACE": "/home/ci"}
    [command] = [line for line in recipe_of("run", **exported) if "app.py" in line]
    words = "app.py --host 127.0.0.1 --port 7860 --quickstart"
    assert command[1:] == words.split()
    [command] = [line for line in recipe_of("run", "HOST=0.0.0.0", **exported) if "app.py" in line]
    assert "0.0.0.0" in command


def wait_for_page(url: str) -> bytes:
    deadline = time.monotonic() + 120
    while True:
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                return bytes(answer.read())
        except OSError:
            assert time.monotonic() < deadline
            time.sleep(0.3)


def wait_for_runs(workspace: Workspace) -> list:
    deadline = time.monotonic() + 60
    while len(rows := Store.open(workspace).list_runs()) < 3:
        assert time.monotonic() < deadline
        time.sleep(0.3)
    return rows


def end_all_processes_of(folder: Path) -> None:
    """Kills the worker and the runs of a test, which outlive the app on purpose."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes()
        except OSError:
            continue
        if str(folder).encode() in words and int(path.parent.name) != os.getpid():
            os.kill(int(path.parent.name), signal.SIGKILL)


def test_the_readme_shows_its_commands_first_and_is_short() -> None:
    first, second, _, then = shell_commands()[:4]
    assert (first, second) == (["make", "run"], ["make", "test"])
    assert then == ["studio", "pretrain", "my-text.txt"]
    assert len(README.split()) <= 1000


def test_the_map_of_the_code_lists_the_folders_that_exist() -> None:
    (tree,) = [block for block in blocks("", CONTRIBUTING) if "core/" in block]
    named = re.findall(r"^(\s*)([\w.]+/?)\s", tree, flags=re.MULTILINE)
    folders: dict[int, str] = {}
    paths = set()
    for indent, name in named:
        depth = len(indent) // 2
        parent = folders.get(depth - 1, "") if depth else ""
        folders[depth] = f"{parent}{name}" if name.endswith("/") else parent
        paths.add(f"{parent}{name}".rstrip("/"))
    missing = {path for path in paths if not (ROOT / path).exists()}
    assert not missing
    packages = {path.parent for top in ("core", "ui") for path in (ROOT / top).rglob("__init__.py")}
    unnamed = {
        str(package.relative_to(ROOT))
        for package in packages
        if len(package.relative_to(ROOT).parts) <= 2
    } - paths
    assert not unnamed


def test_the_files_to_read_first_exist() -> None:
    (sentence,) = re.findall(
        r"Read these five files first:(.*?)\n\n", CONTRIBUTING, flags=re.DOTALL
    )
    files = re.findall(r"`([\w/]+\.py)`", sentence)
    assert len(files) == 5
    assert not [file for file in files if not (ROOT / file).is_file()]


def test_every_relative_link_in_the_docs_has_a_target() -> None:
    for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\((?!http)([^)#]+)", page.read_text("utf-8")):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_llms_txt_links_every_page_of_the_docs() -> None:
    text = (ROOT / "llms.txt").read_text("utf-8")
    linked = set(re.findall(r"\]\((\S+?)\)", text))
    assert not [target for target in linked if not (ROOT / target).is_file()]
    pages = {path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md")}
    assert pages <= linked


def known_flags() -> set[str]:
    return {
        flag_of(name, field)
        for model in [AnalyseConfig, *(stage.config for stage in STAGES.values())]
        for owner in [model, *(f.annotation for f in model.model_fields.values())]
        if hasattr(owner, "model_fields")
        for name, field in owner.model_fields.items()
    }


def flag_rows() -> list[list[str]]:
    """Returns the cells of the flag table: empty, the original's flag, ours, a note."""
    rows = [line.split("|") for line in FLAGS.splitlines() if line.startswith("| `--")]
    assert rows
    return rows


def test_every_flag_that_the_docs_name_exists() -> None:
    known = known_flags()
    for row in flag_rows():
        for flag in re.findall(r"--([a-z][a-z0-9-]*)", row[2]):
            assert flag in known, flag


def test_thresholds_of_cleaning_in_the_docs_are_the_defaults() -> None:
    text = (ROOT / "docs" / "corpus.md").read_text("utf-8")
    rows = re.findall(r"^\| `--([a-z0-9-]+)` \| .* \| ([\w.]+) \|$", text, flags=re.MULTILINE)
    fields = {flag_of(name, field): field for name, field in CleanConfig.model_fields.items()}
    assert dict(rows) == {flag: str(fields[flag].default) for flag, _ in rows}
    lines = {"c4-end-punctuation", "c4-min-line-words", "c4-max-word-length"}
    rules = {rule.option.replace("_", "-") for rule in RULES}
    assert {flag for flag, _ in rows} == rules | lines
    for flag in re.findall(r"`--([a-z][a-z0-9-]*)", text):
        assert flag in known_flags() | {"workers"}, flag


def test_no_existing_flag_is_documented_as_missing() -> None:
    known = known_flags()
    for row in flag_rows():
        if row[2].strip().startswith("none"):
            for flag in re.findall(r"`--(\w+)`", row[1]):
                assert flag.replace("_", "-") not in known, flag


def core_commands_in(page: str) -> list[list[str]]:
    """Returns the arguments of all `python -m core` lines, those within other commands included."""
    text = page.replace("\\\n", " ")
    return [shlex.split(line) for line in re.findall(r"python -m core ([^\n`\"&;]+)", text)]


@pytest.mark.parametrize(
    "page",
    [
        "README.md",
        *(
            f"docs/{name}.md"
            for name in ("tpu", "gpu", "flags", "hub", "cli", "evaluation", "corpus", "finetuning")
        ),
    ],
)
def test_every_core_command_in_the_docs_is_parsed(page: str) -> None:
    """The gcloud commands are not tried: they need an account and a paid TPU."""
    commands = core_commands_in((ROOT / page).read_text("utf-8"))
    assert commands
    for command in commands:
        options = build_parser().parse_args(command)
        if getattr(options, "topology", ""):
            find_topology(options.topology)


def test_accelerator_docs_show_every_device_option() -> None:
    words = [word for command in core_commands_in(ACCELERATORS) for word in command]
    for flag in (
        *(
            "--topology",
            "--price-per-chip-hour",
            "--num-processes",
            "--process-id",
            "--num-devices",
        ),
        *("--coordinator-address", "--sharding", "--remat", "--dtype-policy", "--device"),
        *("--engine", "--tpu-name", "--tpu-zone", "--gcp-project", "--output-dir"),
    ):
        assert flag in words, flag


def test_every_requirements_file_that_the_docs_name_exists() -> None:
    named = set(re.findall(r"requirements[\w-]*\.txt", README + ACCELERATORS))
    assert {"requirements-tpu.txt", "requirements-gpu.txt", "requirements-preflight.txt"} <= named
    for file in named:
        assert (ROOT / file).exists(), file


def requirements_in(file: str) -> set[str]:
    lines = (ROOT / file).read_text("utf-8").splitlines()
    return {line for line in lines if line and not line.startswith("#")}


def test_tpu_requirements_of_tensorflow_add_only_tensorflow_tpu_and_cloud_packages() -> None:
    usual, there = map(requirements_in, ("requirements.txt", "requirements-tpu-tensorflow.txt"))
    assert not [line for line in usual - there if not line.startswith("tensorflow>")]
    more = {line for line in there - usual if not line.startswith("tensorflow-tpu>")}
    assert more and more <= requirements_in("requirements-cloud.txt")


def test_tpu_table_in_the_docs_matches_the_topologies() -> None:
    rows = [line.split("|") for line in ACCELERATORS.splitlines() if re.match(r"\| v\d", line)]
    table = {
        topology: (accelerator, hosts)
        for row in rows
        for topology, accelerator, hosts in zip(
            row[1].strip().split(", "), _accelerators(row), _hosts(row), strict=True
        )
    }
    assert table == {t.name: (t.accelerator_type, t.hosts) for t in TOPOLOGIES.values()}
    for row in rows:
        assert {f"`{runtime_version(one)}`" for one in _accelerators(row)} == {row[3].strip()}


def _accelerators(row: list[str]) -> list[str]:
    if row[2].strip() == "the same":
        return row[1].strip().split(", ")
    first, *others = re.findall(r"`([\w-]+)`", row[2])
    return [first, *(first.rsplit("-", 1)[0] + other for other in others)]


def _hosts(row: list[str]) -> list[int]:
    hosts = [int(number) for number in row[4].split(",")]
    return hosts if len(hosts) > 1 else hosts * len(row[1].split(","))


@pytest.mark.parametrize("page", ["reliability.md", "security.md"])
def test_every_test_that_the_docs_name_exists(page: str) -> None:
    text = (ROOT / "docs" / page).read_text("utf-8")
    rows = re.findall(r"^\| .* \| (`tests/.*) \|$", text, flags=re.MULTILINE)
    assert len(rows) > 15
    for row in rows:
        for file, name in re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", row):
            found = (ROOT / file).read_text("utf-8")
            assert not name or f"def {name}(" in found, (file, name)
    table = text.partition("| promise | verified by |\n")[2].partition("\n\n")[0]
    assert len(rows) == len(table.strip().splitlines()) - 1, "each promise names its test"


def test_readme_has_a_valid_space_card() -> None:
    from huggingface_hub import SpaceCard

    card = SpaceCard(README)
    data = card.data.to_dict()  # type: ignore[no-untyped-call]
    assert (data["sdk"], data["app_file"]) == ("gradio", "app.py")
    assert (ROOT / data["app_file"]).is_file()
    pinned = (ROOT / "constraints.txt").read_text("utf-8")
    assert f"gradio=={data['sdk_version']}\n" in pinned
    assert data["python_version"] in ("3.11", "3.12", "3.13")
    assert len(data["short_description"]) <= 60
