"""Generates the command line and script of a config."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from typing import Any

from core.config.base import StageConfig
from core.config.named_source import NamedSource
from core.config.options import flag_of, plain_type
from core.config.values import changed_values
from core.stages.registry import STAGES


def shell_line(stage: str, config: StageConfig, workspace: str = "") -> str:
    """Returns a config's `python -m core ...` command."""
    words = ["python", "-m", "core", stage, *_flags(config)]
    if workspace:
        words += ["--workspace", workspace]
    return shlex.join(words)


def python_lines(stage: str, config: StageConfig, workspace: str = "") -> str:
    return python_script([(stage, config)], workspace)


def python_script(stages: Sequence[tuple[str, StageConfig]], workspace: str = "") -> str:
    imports = {("core", "Workspace")} if workspace else set()
    for stage, config in stages:
        imports |= {STAGES[stage].api_home, *map(_home_of, _config_models(config))}
    place = f", Workspace({_literal(workspace)})" if workspace else ""
    *firsts, last = [
        f"{STAGES[stage].api_home[1]}({_call(config)}{place})" for stage, config in stages
    ]
    names: dict[str, list[str]] = {}
    for module, name in sorted(imports):
        names.setdefault(module, []).append(name)
    lines = [
        f"from {module} import {', '.join(names_of_module)}"
        for module, names_of_module in names.items()
    ]
    return "\n".join([*lines, "", *firsts, f"artifact = {last}", "print(artifact.path)"])


def _flags(config: StageConfig) -> list[str]:
    words: list[str] = []
    for name, value in changed_values(config).items():
        field = type(config).model_fields[name]
        if isinstance(value, dict):
            words += _flags(getattr(config, name))
        elif isinstance(value, tuple):
            words += [
                word for member in value for word in (f"--{flag_of(name, field)}", _added(member))
            ]
        elif isinstance(value, bool):
            words.append(f"--{flag_of(name, field)}" if value else f"--no-{flag_of(name, field)}")
        elif value is None and plain_type(field)[0] is bool:
            words.append(f"--auto-{flag_of(name, field)}")
        else:
            words += [f"--{flag_of(name, field)}", "none" if value is None else str(value)]
    return words


def _added(source: NamedSource) -> str:
    """Returns a source as an argument of --add."""
    values = {"name": source.name, **changed_values(source)}
    return source.address or json.dumps(values, ensure_ascii=False)


def _call(config: StageConfig) -> str:
    arguments = [
        f"{name}={_call(getattr(config, name)) if isinstance(value, dict) else _argument(value)}"
        for name, value in changed_values(config).items()
    ]
    return f"{type(config).__name__}({', '.join(arguments)})"


def _argument(value: Any) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(map(_call, value))}]"
    return _literal(value)


def _home_of(model: type[StageConfig]) -> tuple[str, str]:
    is_ours = model.__module__.startswith("core.config.")
    return ("core" if is_ours else model.__module__, model.__name__)


def _config_models(config: StageConfig) -> set[type[StageConfig]]:
    nested = [
        getattr(config, name)
        for name, value in changed_values(config).items()
        if isinstance(value, dict)
    ]
    lists = [value for value in changed_values(config).values() if isinstance(value, tuple)]
    nested += [member for value in lists for member in value]
    return {
        type(config),
        *(model for nested_config in nested for model in _config_models(nested_config)),
    }


def _literal(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)
