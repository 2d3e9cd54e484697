"""Where to run: fields that compose an address, checks of machines, prices and costs."""

from __future__ import annotations

import getpass
import json
from collections.abc import Iterator
from pathlib import Path
from threading import BoundedSemaphore

import gradio as gr
import pytest

from core.config.preflight import PreflightConfig
from core.config.train import TrainConfig
from core.errors import ConfigError, StudioError
from core.targets import flavors
from core.targets.flavors import Flavor
from core.targets.saved import read_machines
from core.workspace.workspace import Workspace
from tests.core.training.test_trainer import make_inputs
from tests.ports import free_port
from tests.targets.hub_jobs_server import JobServer
from tests.targets.ssh_server import SshServer, running_ssh_server
from tests.ui.browser import Visitor, find_chromium, running_app, visiting
from tests.ui.test_preflight import FITTING, put_report
from ui.forms import Form
from ui.parts import cost, where

pytestmark = pytest.mark.long

TPU = "tpu://v5e-8?zone=us-west4-a&spot=1"


def rows(config: TrainConfig, *hours: float) -> dict[str, str]:
    return dict(cost.cost_rows(config, hours))


def test_check_tells_of_the_machine_or_why_it_cannot_be_reached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace = Workspace(tmp_path / "workspace")
    with running_ssh_server(tmp_path / "ssh") as server:
        monkeypatch.setenv("STUDIO_SSH_COMMAND", server.command)
        assert "GB of disk free" in where.describe_target(server.address, "", workspace)
        answer = where._test_function(workspace)({"address": server.address, "mirror": ""})
        assert "disk free" in answer["text"]
        answer = where._test_function(workspace)({"address": "ssh://127.0.0.1:1", "mirror": ""})
        assert "127.0.0.1 can't be reached" in answer["failed"]["problem"]


def test_check_confines_the_mirror_and_refuses_what_is_no_address(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path / "workspace")
    with pytest.raises(ConfigError, match="no access"):
        where.describe_target("ssh://host", "file:///etc", workspace)
    for address in ("ftp://host", "ssh://", "ssh://-oProxyCommand=x", "ssh://a b"):
        with pytest.raises(StudioError):
            where.describe_target(address, "", workspace)


def test_only_a_few_checks_run_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(where, "_checks", BoundedSemaphore(1))
    check = where._test_function(Workspace(tmp_path))
    with where._taking(where._checks):
        assert "Too many" in check({"address": "ssh://host"})["problem"]["problem"]
    assert "Too many" not in check({"address": "ftp://host"})["problem"]["problem"]


class _Hardware:
    """What the Hub tells of a machine."""

    def __init__(self, name: str, cost: object, unit: str = "minute") -> None:
        self.name, self.pretty_name = name, f"1x {name}\nx"
        self.unit_cost_usd, self.unit_label = cost, unit


def test_price_of_a_flavor_is_per_hour_and_unknown_if_the_hub_tells_nonsense() -> None:
    found = {
        one.name: flavors._flavor(one).price_per_hour
        for one in (
            _Hardware("l4x1", 0.8 / 60),
            _Hardware("daily", 24.0, "day"),
            _Hardware("text", "cheap"),
            _Hardware("minus", -1.0),
        )
    }
    assert found == {"l4x1": 0.8, "daily": None, "text": None, "minus": None}
    assert flavors._flavor(_Hardware("l4x1", 1.0)).title == "1x l4x1 x"


def test_cost_is_price_times_hours_and_limits_are_in_money(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert rows(TrainConfig(target=TPU)) == {
        "price per hour": "unknown", "cost, roughly": "unknown", "at most": "no limit",
    }  # fmt: skip
    config = TrainConfig(target=TPU, price_per_hour=9.6, max_hours=10.0, max_cost=50.0)
    assert rows(config, 1.0, 2.5) == {
        "price per hour": "$9.60", "cost, roughly": "$9.60 – $24.00", "at most": "$50.00",
    }  # fmt: skip
    monkeypatch.setattr(where._prices, "_known", [Flavor("l4x1", "1x L4", 0.8)])
    assert rows(TrainConfig(target="hf://l4x1", max_hours=3.0))["at most"] == "$2.40"
    assert rows(TrainConfig(target="ssh://host")) == {}
    assert rows(TrainConfig(target="ssh://host", max_hours=3.0)) == {"at most": "3 h"}


def test_hours_of_a_tpu_come_from_the_newest_check_with_the_same_settings(
    tmp_path: Path,
) -> None:
    workspace = Workspace(tmp_path / "workspace")
    checked = PreflightConfig(shards="rows", size="base", topology="v3-8")
    put_report(workspace, checked, FITTING)
    put_report(workspace, PreflightConfig(shards="rows", size="tiny", topology="v3-8"), FITTING)
    same = {"shards": "rows", "size": "base", "name": "any", "max_hours": 40.0}
    config = TrainConfig(target="tpu://v3-8?zone=us-central1-a", price_per_hour=2.0, **same)
    hours = cost.estimate_hours(config, workspace)
    assert hours == (10.7, 29.4)
    assert cost.describe_hours(hours) == "11 – 29 h"
    assert rows(config, *hours)["cost, roughly"] == "$21.40 – $58.80"
    for others in ({"target": TPU}, {"target": "ssh://host"}, {"hidden_size": 64}):
        other = TrainConfig(**{**config.model_dump(), **others})
        assert cost.estimate_hours(other, workspace) == ()
    assert cost.describe_hours(()) == ""


def test_missing_limit_is_warned_of_only_if_the_machine_costs_money() -> None:
    assert "no limit" in cost.place_note(TrainConfig(target=TPU))
    assert "no limit" not in cost.place_note(TrainConfig(target=TPU, max_hours=1.0))
    assert "no limit" not in cost.place_note(TrainConfig(target="ssh://host"))


def test_check_on_a_tpu_takes_no_machine_from_the_train_form(tmp_path: Path) -> None:
    with gr.Blocks():
        base = Form(TrainConfig, "train", Workspace(tmp_path))
        base.render()
        form = Form(PreflightConfig, "preflight", Workspace(tmp_path), base=base)
        form.render()
    config = form.parse({}, {"target": TPU, "max_hours": "3", "hidden_size": "64"})
    assert (config.target, config.max_hours, config.hidden_size) == ("", None, 64)
    with pytest.raises(ConfigError, match="runs on this machine"):
        PreflightConfig(target=TPU)


# In a browser.


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshServer]:
    find_chromium()
    with running_ssh_server(tmp_path_factory.mktemp("machine") / "ssh") as server:
        yield server


@pytest.fixture(scope="module")
def studio(
    browser: None, tmp_path_factory: pytest.TempPathFactory, server: SshServer
) -> Iterator[tuple[Workspace, str]]:
    workspace = make_inputs(tmp_path_factory.mktemp("where") / "workspace")
    with running_app(workspace.root, STUDIO_SSH_COMMAND=server.command) as url:
        yield workspace, url


def choose(visitor: Visitor, title: str, tab: str = "train") -> None:
    """Chooses a card, or a kind of machine in the form of a new one."""
    form = visitor.page.locator(f"#{tab}")
    if title in where.TITLES.values():
        form.get_by_label("Add a machine", exact=True).check()
    form.get_by_label(title, exact=True).check()


def wait_for_address(visitor: Visitor, address: str) -> None:
    field = visitor.field("train-target")
    visitor.wait_for(lambda: field.input_value() == address, 15, address)


def value(visitor: Visitor, name: str) -> str:
    return str(visitor.page.locator(f"#train-where-{name} :is(input, select)").input_value())


@pytest.mark.slow(15)
def test_fields_compose_the_address_and_follow_it(studio: tuple[Workspace, str]) -> None:
    with visiting(studio[1]) as visit:
        visitor: Visitor = visit("/#train")
        page = visitor.page
        address = page.locator("#train-target")
        assert not address.is_visible()
        choose(visitor, "SSH machine")
        address.wait_for()
        visitor.see(page.locator("#train-start"), "Name the machine")
        assert page.locator("#tab-train :is(.ps-hint, .ps-problem)").count() == 0
        page.get_by_label("Host", exact=True).press_sequentially("me@box:2222", delay=15)
        wait_for_address(visitor, "ssh://me@box:2222")
        page.get_by_label("Interpreter", exact=True).fill("/opt/my env/python")
        wait_for_address(visitor, "ssh://me@box:2222?python=/opt/my%20env/python")
        choose(visitor, "Cloud TPU")
        page.get_by_label("Zone", exact=True).fill("us-west4-a")
        wait_for_address(visitor, TPU)
        page.locator("#train-where-spot input").uncheck()
        page.get_by_label("TPU type", exact=True).select_option("v6e-8")
        wait_for_address(visitor, "tpu://v6e-8?zone=us-west4-a&spot=0")
        # By hand: an unlisted type, and a parameter that has no field.
        visitor.type("train-target", "tpu://v7-4?zone=europe-west4-b&network=mine")
        visitor.wait_for(lambda: value(visitor, "zone") == "europe-west4-b", 15, "the zone")
        assert value(visitor, "type") == "v7-4"
        page.get_by_label("Project", exact=True).fill("my-project")
        whole = "tpu://v7-4?zone=europe-west4-b&spot=1&project=my-project&network=mine"
        wait_for_address(visitor, whole)
        choose(visitor, "Other cloud (SkyPilot)")
        page.get_by_label("Resources", exact=True).fill("A100:8")
        wait_for_address(visitor, "sky://A100:8")
        choose(visitor, "This computer")
        wait_for_address(visitor, "")
        assert visitor.errors == []


@pytest.mark.slow(15)
@pytest.mark.parametrize("tab", ["finetune", "evaluate"])
def test_machine_of_another_stage_is_chosen_tested_and_named_by_its_button(
    studio: tuple[Workspace, str], server: SshServer, tab: str
) -> None:
    with visiting(studio[1]) as visit:
        visitor: Visitor = visit(f"/#{tab}")
        page, form = visitor.page, visitor.page.locator(f"#{tab}")
        address = page.locator(f"#{tab}-target")
        form.get_by_label("This computer", exact=True).wait_for()
        assert not address.is_visible()
        assert page.locator(".ps-where [id]").evaluate_all(
            "all => all.length === new Set(all.map(({ id }) => id)).size"
        )
        choose(visitor, "SSH machine", tab)
        host = server.address.removeprefix("ssh://")
        form.get_by_label("Host", exact=True).press_sequentially(host)
        form.get_by_label("Name", exact=True).last.fill("box")
        form.get_by_text("Test and save", exact=True).click()
        visitor.see(form.locator(".ps-where-answer"), "Ready: ", "GB of disk free")
        assert visitor.field(f"{tab}-target").input_value() == server.address
        visitor.type(f"{tab}-model", "owner/model")
        visitor.field(f"{tab}-model").press("Tab")
        if tab == "finetune":
            visitor.type("finetune-dataset_name", "owner/data")
        visitor.see(page.locator(f"#{tab}-start"), "on box")
        choose(visitor, "This computer", tab)
        visitor.wait_for(lambda: not address.is_visible(), 15, "no address")
        assert visitor.errors == []


@pytest.mark.slow(15)
def test_limits_leave_with_the_machine_and_return_with_it(studio: tuple[Workspace, str]) -> None:
    with visiting(studio[1]) as visit:
        visitor: Visitor = visit("/#train")
        hours = visitor.field("train-max_hours")
        choose(visitor, "SSH machine")
        visitor.type("train-max_hours", "5")
        choose(visitor, "This computer")
        visitor.wait_for(lambda: hours.input_value() == "", 15, "no limit")
        visitor.page.wait_for_timeout(500)
        assert not visitor.page.locator("#train-max_hours").is_visible()
        assert visitor.page.locator("#tab-train .ps-problem").count() == 0
        choose(visitor, "Cloud TPU")
        visitor.wait_for(lambda: hours.input_value() == "5", 15, "the limit")
        assert visitor.page.locator("#train-mirror").is_visible()
        assert visitor.errors == []


@pytest.mark.slow(15)
@pytest.mark.long
def test_machine_survives_a_reload_and_arrives_with_imported_settings(
    studio: tuple[Workspace, str], tmp_path: Path
) -> None:
    with visiting(studio[1]) as visit:
        visitor: Visitor = visit("/#train")
        choose(visitor, "SSH machine")
        visitor.page.get_by_label("Host", exact=True).fill("me@box")
        wait_for_address(visitor, "ssh://me@box")
        visitor.settle(30)
        visitor.reload()
        visitor.wait_for(lambda: value(visitor, "host") == "me@box", 30, "the host")
        assert visitor.page.get_by_label("SSH machine", exact=True).is_checked()
        config = TrainConfig(target=TPU, mirror="gs://bucket/folder", max_cost=20.0)
        settings = {"stage": "train", "config": config.model_dump(mode="json")}
        (tmp_path / "settings.json").write_text(json.dumps(settings))
        visitor.open("Workspace")
        visitor.page.locator(".ps-import input").set_input_files(tmp_path / "settings.json")
        visitor.wait_for(lambda: value(visitor, "zone") == "us-west4-a", 30, "the zone")
        assert visitor.field("train-max_cost").input_value() == "20"
        assert visitor.field("train-mirror").input_value() == "gs://bucket/folder"
        assert visitor.errors == []


@pytest.mark.slow(15)
@pytest.mark.long
def test_machine_is_chosen_and_checked_by_keyboard_on_a_phone(
    studio: tuple[Workspace, str],
) -> None:
    with visiting(studio[1], width=390) as visit:
        visitor: Visitor = visit("/#train")
        page = visitor.page
        page.locator("#tab-train .ps-where-machines input:checked").focus()
        page.keyboard.press("ArrowLeft")
        assert page.locator(".ps-where-answer > *").count() == 0
        page.keyboard.press("Tab")
        page.keyboard.press("Tab")
        page.keyboard.type("no-such-host.invalid")
        wait_for_address(visitor, "ssh://no-such-host.invalid")
        for _ in range(5):
            page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.id") == "train-where-check"
        page.keyboard.press("Enter")
        page.locator(".ps-where-answer .ps-error").wait_for()
        too_wide = "document.documentElement.scrollWidth > document.documentElement.clientWidth"
        assert not page.evaluate(too_wide)
        # Saved nevertheless. Another machine: the answer no longer holds.
        visitor.see(page.locator(".ps-saved", has_text="no-such-host.invalid"), "not reachable")
        choose(visitor, "Add a machine")
        visitor.wait_for(lambda: page.locator(".ps-where-answer > *").count() == 0, 15, "no answer")
        assert visitor.errors == []


@pytest.mark.slow(15)
@pytest.mark.long
def test_saved_machines_are_cards_and_a_start_needs_one_that_has_passed_its_test(
    studio: tuple[Workspace, str], server: SshServer
) -> None:
    port = server.address.rpartition(":")[2]
    user = getpass.getuser()
    with visiting(studio[1]) as visit:
        visitor: Visitor = visit("/#train")
        page, start = visitor.page, visitor.page.locator("#train-start")
        choose(visitor, "SSH machine")
        page.get_by_label("Host", exact=True).fill(f"{user}@127.0.0.1:{port}")
        visitor.see(start, f"Check 127.0.0.1:{port} first")
        page.get_by_label("Name", exact=True).fill("gpu-box")
        page.get_by_label("Dollars per hour", exact=True).fill("0")
        page.get_by_role("button", name="Test and save", exact=True).click()
        card = page.locator(".ps-saved", has_text="gpu-box")
        visitor.see(card, "reachable · $0 an hour")
        assert page.get_by_label("gpu-box", exact=True).is_checked()
        visitor.see(page.locator(".ps-where-answer"), "Ready: ", "GB of disk free")
        visitor.see(start, "Train ", "on gpu-box")
        assert visitor.field("train-price_per_hour").input_value() == "0"
        visitor.shoot("machine-reachable")
        # One that refuses.
        choose(visitor, "Add a machine")
        page.get_by_label("Host", exact=True).fill(f"{user}@127.0.0.1:{free_port()}")
        page.get_by_label("Name", exact=True).fill("old-box")
        visitor.see(start, "Check ")
        start.click()
        visitor.see(page.locator(".ps-where-answer .ps-error"), f"{user}@127.0.0.1", "refused")
        visitor.see(page.locator(".ps-saved", has_text="old-box"), "not reachable")
        visitor.see(start, "Check old-box first")
        visitor.see(page.locator("#tab-train .ps-hint"), "old-box has not passed its last check")
        visitor.shoot("machine-unreachable")
        visitor.reload()
        visitor.see(page.locator(".ps-where-answer"), "Not reachable: ", "refused")
        # A pool, one of whose members answers.
        choose(visitor, "Pool of machines")
        members = f"ssh://{user}@127.0.0.1:{port}?gpu=0 ssh://{user}@127.0.0.1:{free_port()}?gpu=1"
        page.get_by_label("Members", exact=True).fill(members)
        page.get_by_label("Name", exact=True).fill("lab")
        visitor.see(start, "Check ", "?gpu=0")
        start.click()
        visitor.see(page.locator(".ps-saved", has_text="lab"), "reachable")
        visitor.see(page.locator(".ps-where-answer"), "Ready: ", f"{port}?gpu=0: ", "refused")
        visitor.see(start, "Train ", "on lab")
        assert visitor.field("train-target").input_value() == members
        page.get_by_role("button", name="Change", exact=True).click()
        assert page.get_by_label("Members", exact=True).input_value() == members
        page.get_by_label("gpu-box", exact=True).check()
        visitor.see(start, "Train ", "on gpu-box")
        page.get_by_label("old-box", exact=True).check()
        for name in ("Remove", "Remove old-box from the list"):
            page.get_by_role("button", name=name, exact=True).click()
        visitor.wait_for(
            lambda: page.get_by_label("This computer", exact=True).is_checked(), 20, "it is gone"
        )
        assert page.get_by_label("old-box", exact=True).count() == 0
        assert [one.name for one in read_machines(studio[0]) if "-box" in one.name] == ["gpu-box"]
        assert visitor.errors == []


@pytest.mark.slow(15)
@pytest.mark.long
def test_flavors_are_listed_with_the_prices_of_the_hub(tmp_path: Path) -> None:
    find_chromium()
    with JobServer() as server:
        server.add_user("ada", "hf_of_ada")
        access = {"HF_ENDPOINT": server.url, "HF_TOKEN": "hf_of_ada"}
        with running_app(tmp_path / "workspace", **access) as url, visiting(url) as visit:
            visitor: Visitor = visit("/#train")
            choose(visitor, "Hugging Face Jobs")
            menu = visitor.page.get_by_label("Flavour", exact=True)
            menu.locator("option", has_text="l4x1 · 1x Nvidia L4 · $0.80 per hour").wait_for(
                state="attached"
            )
            menu.select_option("l4x1")
            wait_for_address(visitor, "hf://l4x1")
            visitor.page.get_by_role("button", name="Test and save", exact=True).click()
            visitor.page.locator(".ps-where-answer", has_text="Ready: l4x1").wait_for()
            assert visitor.errors == []
