"""Scripts find modules and members under the names of the version a050c92."""

from __future__ import annotations

import importlib
from importlib.util import find_spec
from pathlib import Path

import pytest

from core.earlier_names import _MODULES

LINES = Path(__file__).with_name("earlier_names.txt").read_text("utf-8").splitlines()
MEMBERS = dict(line.split(": ") for line in LINES if ": " in line)


@pytest.mark.parametrize("package", MEMBERS)
def test_members_of_packages_are_found(package: str) -> None:
    module = importlib.import_module(package)
    assert not {name for name in MEMBERS[package].split() if not hasattr(module, name)}
    with pytest.raises(AttributeError, match="nothing"):
        module.nothing  # noqa: B018


def test_every_module_is_found() -> None:
    names = [line.partition(":")[0] for line in LINES]
    assert len(names) > 400
    for name in names:
        assert find_spec(_MODULES.get(name, name)), name


@pytest.mark.parametrize("name", ["core.events", "core.hub.push", "core.models.families.bert"])
def test_module_is_the_same_under_both_names(name: str) -> None:
    module = importlib.import_module(name)
    assert module is importlib.import_module(_MODULES[name])
    assert module.__name__ == module.__spec__.name == _MODULES[name]
