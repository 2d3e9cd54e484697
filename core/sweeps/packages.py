"""Checks the packages that methods and pruners need beside the program's own."""

from __future__ import annotations

import importlib
from importlib.util import find_spec
from typing import Any

from core.config.sweep import SweepConfig
from core.errors import ConfigError

OPTUNA_METHODS = ("tpe", "gp")
_PACKAGES = {"tpe": ("optuna",), "gp": ("optuna", "torch"), "cmaes": ("cmaes",)}
_REQUIREMENTS = "pip install -c constraints.txt -r requirements-sweeps.txt"
# Importing these takes seconds.
_SLOW = ("torch",)
_FIXES = {"torch": "pip install torch --index-url https://download.pytorch.org/whl/cpu"}


def uses_optuna(config: SweepConfig) -> bool:
    return config.method in OPTUNA_METHODS or config.pruner != "none"


def check_packages(config: SweepConfig) -> None:
    """Raises ConfigError for a package that the method or the pruner needs."""
    for package in _PACKAGES.get(config.method, ()):
        _check(package, "method", config.method)
    if config.pruner != "none":
        _check("optuna", "pruner", config.pruner)


def missing_packages(field: str, value: str) -> list[str]:
    """Returns the packages that a method or pruner needs and that aren't installed."""
    packages = _PACKAGES.get(value, ()) if field == "method" else ()
    if field == "pruner" and value != "none":
        packages = ("optuna",)
    return [package for package in packages if not find_spec(package)]


def import_optuna() -> Any:
    """Imports Optuna and silences its notes."""
    optuna = importlib.import_module("optuna")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def _check(package: str, field: str, value: str) -> None:
    missing = _why_missing(package)
    if missing:
        raise ConfigError(
            f"The package {package} is not installed, which {field} {value} needs",
            expected=f"the package {package}",
            received=missing,
            fix=_FIXES.get(package, _REQUIREMENTS),
            field=field,
        )


def _why_missing(package: str) -> str:
    """Returns why a package can't be imported, or ""."""
    if package in _SLOW:
        return "" if find_spec(package) else "no such package"
    try:
        importlib.import_module(package)
    except ImportError as error:
        return str(error)
    return ""
