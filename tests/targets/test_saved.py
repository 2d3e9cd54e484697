"""Saved machines: names, addresses, prices and checks; what is stored is untrusted."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from core import pretrain
from core.cli.fields import config_values
from core.cli.main import build_parser, main
from core.config.pretrain import PretrainConfig
from core.config.train import TrainConfig
from core.errors import ConfigError, StudioError
from core.pretraining.stages import pretrain_stages
from core.sweeps.client import checked, parse_sweep
from core.targets import saved
from core.targets.errors import UnavailableError
from core.targets.saved import (
    MACHINES_FILE,
    check_target,
    find_machine,
    read_machines,
    remove_machine,
    save_machine,
)
from core.workspace.workspace import Workspace
from tests.ports import free_port
from tests.targets.ssh_server import running_ssh_server


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return Workspace(tmp_path / "workspace")


def test_machines_are_kept_changed_and_removed(workspace: Workspace) -> None:
    assert read_machines(workspace) == []
    save_machine(workspace, "ssh://me@gpu-box:2222?python=/opt/python", price_per_hour=0.0)
    save_machine(workspace, "tpu://v5e-8?zone=us-west4-a&spot=1", "tpu", 9.6)
    assert [(one.name, one.state, one.price) for one in read_machines(workspace)] == [
        ("gpu-box-2222", "not checked", "$0 an hour"), ("tpu", "not checked", "$9.60 an hour"),
    ]  # fmt: skip
    save_machine(workspace, "ssh://me@other", "gpu", replaces="gpu-box-2222")
    assert [one.name for one in read_machines(workspace)] == ["gpu", "tpu"]
    with pytest.raises(ConfigError, match="taken by ssh://me@other"):
        save_machine(workspace, "ssh://third", "gpu")
    remove_machine(workspace, "gpu")
    with pytest.raises(ConfigError, match="no saved machine 'gpu'"):
        remove_machine(workspace, "gpu")


@pytest.mark.parametrize(
    ("address", "name", "price"),
    [
        ("ssh://me:passphrase@box", "", None),
        ("hf://l4x1?token=hf_abcdefghijklmnopqrstuvwxyz0123456789", "", None),
        ("ssh://-oProxyCommand=x", "", None),
        ("ssh://box/folder", "", None),
        ("ftp://box", "", None),
        ("box", "", None),
        ("", "", None),
        ("ssh://box", "my box", None),
        ("ssh://box", "../box", None),
        ("ssh://box", "", -1.0),
        ("ssh://box", "", float("nan")),
    ],
)
def test_what_is_no_machine_is_refused(
    workspace: Workspace, address: str, name: str, price: float | None
) -> None:
    with pytest.raises(StudioError) as caught:
        save_machine(workspace, address, name, price)
    assert "passphrase" not in str(caught.value)
    assert not (workspace.root / MACHINES_FILE).exists()


GOOD: dict[str, Any] = {"name": "box", "target": "ssh://box"}


@pytest.mark.parametrize(
    "content",
    [
        "{",
        "[]",
        '{"machines": 5}',
        "[" * 100_000,
        *(
            json.dumps({"machines": [{**GOOD, **changed}]})
            for changed in (
                {"name": "../x"},
                {"name": 5},
                {"target": ""},
                {"target": "file:///etc"},
                {"target": "ssh://me:word@box"},
                {"target": "ssh://box\x1b[2J"},
                {"price_per_hour": -1},
                {"price_per_hour": 10**30},
                {"check": {"time": "never", "passed": True, "answer": ""}},
                {"check": {"time": 1, "passed": True, "answer": "x" * 501}},
            )
        ),
    ],
)
def test_a_file_that_this_program_did_not_write_is_refused(
    workspace: Workspace, content: str
) -> None:
    workspace.make_root()
    (workspace.root / MACHINES_FILE).write_text(content)
    with pytest.raises(ConfigError, match="can't be read"):
        read_machines(workspace)


@pytest.mark.parametrize(
    ("age", "passed", "state"),
    [
        (60, True, "reachable"),
        (60, False, "not reachable"),
        (25 * 3600, True, "not checked"),
        (-3600, True, "not checked"),
    ],
)
def test_a_check_holds_for_a_day(
    workspace: Workspace, age: float, passed: bool, state: str
) -> None:
    check = {"time": time.time() - age, "passed": passed, "answer": "a\x1b[2Jb", "later": 1}
    workspace.make_root()
    file = workspace.root / MACHINES_FILE
    file.write_text(json.dumps({"machines": [{**GOOD, "check": check}], "later": 1}))
    [machine] = read_machines(workspace)
    assert machine.state == state
    assert machine.check and machine.check.answer == "a [2Jb"
    # Another address: the check was not of it.
    assert save_machine(workspace, "ssh://two", "box", replaces="box").check is None


@pytest.mark.slow(4)
def test_check_keeps_what_the_machine_says(
    workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running_ssh_server(tmp_path / "ssh") as server:
        monkeypatch.setenv("STUDIO_SSH_COMMAND", server.command)
        save_machine(workspace, server.address, "box")
        answer = check_target(workspace, server.address)
    assert "Python 3." in answer and "GPU" in answer and "GB of disk free" in answer
    machine = find_machine(workspace, "box")
    assert machine.has_passed and machine.check and machine.check.answer == answer
    monkeypatch.setattr(saved, "CHECK_HOLDS_SECONDS", 0.0)
    assert not machine.has_passed


def test_target_may_be_the_name_of_a_saved_machine(
    workspace: Workspace, capsys: pytest.CaptureFixture[str]
) -> None:
    place, address = ["--workspace", str(workspace.root)], f"ssh://me@127.0.0.1:{free_port()}"
    adding = ["machines", "add", "gpu-box", address, "--price-per-hour", "1.5", *place]
    assert main(adding) == UnavailableError.exit_code
    assert "ssh -p" in capsys.readouterr().err
    assert main(["machines", "list", "--json", *place]) == 0
    [listed] = json.loads(capsys.readouterr().out)
    assert (listed["state"], listed["check"]["passed"]) == ("not reachable", False)

    def values(*words: str, model: Any = TrainConfig) -> dict[str, Any]:
        return config_values(build_parser().parse_args([*words, *place]), model)

    named = values("train", "--target", "gpu-box")
    assert named == {"target": address, "price_per_hour": 1.5}
    given = values("train", "--target", "gpu-box", "--price-per-hour", "2")
    assert given["price_per_hour"] == "2"
    config = PretrainConfig.parse(values("pretrain", "--target", "gpu-box", model=PretrainConfig))
    *_, (_, training) = pretrain_stages(config, workspace, {})
    assert (training.target, training.price_per_hour) == (address, 1.5)  # type: ignore[attr-defined]
    sweep = parse_sweep('base.shards = "rows"\nbase.target = "gpu-box"\noptions.seed = [1, 2]')
    base = checked(sweep, workspace).base
    assert (base["target"], base["price_per_hour"]) == (address, 1.5)
    with pytest.raises(ConfigError, match="did you mean gpu-box"):
        pretrain("text.txt", workspace, target="gpubox")
    with pytest.raises(ConfigError, match="did you mean gpu-box"):
        values("train", "--target", "gpubox")
    assert main(["machines", "remove", "gpu-box", *place]) == 0
    assert read_machines(workspace) == []
