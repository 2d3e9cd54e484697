"""Imports an engine, or OpenVINO, without what it would load for features that nobody uses here.

TensorFlow loads JAX for its converters, Keras loads pandas for data frames and pyplot for galleries
of images, each only if it is installed. Together that is a third of the time an engine takes to
import. OpenVINO loads telemetry.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType
from typing import Any

from core.cores import thread_settings

_UNUSED = {
    "tensorflow": ("jax", "pandas", "matplotlib.pyplot"),
    "jax": ("pandas", "matplotlib.pyplot"),
    # It would tell Google Analytics of each import, from a process of its own.
    "openvino": ("openvino_telemetry",),
}


def import_for(engine: str, module: str) -> ModuleType:
    """Imports a module of an engine, or Keras on it, and nothing it can do without.

    What is left out can be imported afterwards as ever. In a container an engine has as many
    threads as the container has cores, unless the environment says otherwise.

    Args:
        engine: tensorflow, jax or openvino.
        module: The module's name.
    """
    for name, value in thread_settings().items():
        os.environ.setdefault(name, value)
    with _hidden(_UNUSED.get(engine, ())):
        return import_module(module)


@contextmanager
def _hidden(names: tuple[str, ...]) -> Iterator[None]:
    """Makes packages look as if they weren't installed, unless they are loaded already."""
    modules: dict[str, Any] = sys.modules
    hidden = [name for name in names if name not in modules]
    # For Python's import system None means: there is no such module.
    modules.update(dict.fromkeys(hidden))
    try:
        yield
    finally:
        for name in hidden:
            if modules.get(name) is None:
                modules.pop(name, None)
