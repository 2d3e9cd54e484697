"""Generates the command line and the Python script that are equivalent to a config."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from typing import Any

from core.config import StageConfig, changed_values, flag_of
from core.stages.registry import STAGES


def shell_line(stage: str, config: StageConfig, workspace: str = "") -> str:
    """Returns the `python -m core ...` command for a config, with flags for non-default fields."""
    words = ["python", "-m", "core", stage, *_flags(config)]
    if workspace:
        words += ["--workspace", workspace]
    return shlex.join(words)


def python_lines(stage: str, config: StageConfig, workspace: str = "") -> str:
    return python_script([(stage, config)], workspace)


def python_script(stages: Sequence[tuple[str, StageConfig]], workspace: str = "") -> str:
    names = {"Workspace"} if workspace else set()
    for stage, config in stages:
        names |= {STAGES[stage].api, *_config_names(config)}
    place = f", Workspace({_literal(workspace)})" if workspace else ""
    *firsts, last = [f"{STAGES[stage].api}({_call(config)}{place})" for stage, config in stages]
    imports = f"from core import {', '.join(sorted(names))}"
    return "\n".join([imports, "", *firsts, f"artifact = {last}", "print(artifact.path)"])


def _flags(config: StageConfig) -> list[str]:
    words: list[str] = []
    for name, value in changed_values(config).items():
        field = type(config).model_fields[name]
        if isinstance(value, dict):
            words += _flags(getattr(config, name))
        elif isinstance(value, bool):
            words.append(f"--{flag_of(name, field)}" if value else f"--no-{flag_of(name, field)}")
        else:
            words += [f"--{flag_of(name, field)}", "none" if value is None else str(value)]
    return words


def _call(config: StageConfig) -> str:
    arguments = [
        f"{name}={_call(getattr(config, name)) if isinstance(value, dict) else _literal(value)}"
        for name, value in changed_values(config).items()
    ]
    return f"{type(config).__name__}({', '.join(arguments)})"


def _config_names(config: StageConfig) -> set[str]:
    nested = [
        getattr(config, name)
        for name, value in changed_values(config).items()
        if isinstance(value, dict)
    ]
    return {type(config).__name__, *(name for one in nested for name in _config_names(one))}


def _literal(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)
