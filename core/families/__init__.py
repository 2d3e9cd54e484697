"""Registry of the model families; each module here declares one as `FAMILY`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from pkgutil import iter_modules

from core.architecture.architecture import Architecture
from core.architecture.family import Dimensions, Family, Size
from core.architecture.weight_mapping import WeightMapping
from core.errors import ConfigError

_families: dict[str, Family] = {}


def register(family: Family) -> None:
    """Adds or replaces a family."""
    assert family.architecture.model_type == family.name, "config.json holds the name"
    _families[family.name] = family


def list_families() -> list[Family]:
    """Lists the families in menu order."""
    return sorted(_families.values(), key=lambda family: (family.menu_position, family.name))


def list_family_names() -> list[str]:
    """Lists the families' names."""
    return [family.name for family in list_families()]


def find_family(name: str) -> Family:
    """Finds a family by its `model_type`, or raises ConfigError."""
    if name not in _families:
        raise ConfigError(
            f"The family {name!r} is unknown",
            expected=" or ".join(list_family_names()),
            received=name,
            fix="choose a listed family",
            field="family",
        )
    return _families[name]


def objectives_of_family(name: str) -> tuple[str, ...]:
    """Lists a family's objectives, the default first."""
    return _families[name].objectives if name in _families else ()


def families_of_objective(objective: str) -> tuple[str, ...]:
    """Lists the families of an objective."""
    return tuple(family.name for family in list_families() if objective in family.objectives)


def sizes_of_family(name: str) -> Mapping[Size, Dimensions]:
    """Returns a family's sizes, none of an unknown one."""
    return _families[name].sizes if name in _families else {}


def title_of_family(name: str) -> str:
    """Returns a family's title, or the unknown name."""
    return _families[name].title if name in _families else name


def weight_mappings(architecture: Architecture) -> Iterator[WeightMapping]:
    """Yields a model's weight mapping."""
    return find_family(architecture.model_type).weight_mapping(architecture)


for _module in iter_modules(__path__, f"{__name__}."):
    register(import_module(_module.name).FAMILY)
