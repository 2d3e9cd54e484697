"""Shortens the import of Gradio.

It would write a stub file for each component, half of the time, and import the SDK of MCP servers,
which the web app doesn't use.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import ModuleType

_OF_STUBS, _OF_SERVERS = "gradio.component_meta", "gradio.mcp"
_SDK = "mcp"


class _Finder(PathFinder):
    @classmethod
    def find_spec(
        cls, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in (_OF_STUBS, _OF_SERVERS):
            return None
        spec = super().find_spec(fullname, path, target)
        if spec and spec.origin:
            spec.loader = _Loader(fullname, spec.origin)
        return spec


class _Loader(SourceFileLoader):
    def exec_module(self, module: ModuleType) -> None:
        with _without_sdk():
            super().exec_module(module)
        if module.__name__ == _OF_STUBS:
            vars(module)["create_or_modify_pyi"] = lambda *_: None


@contextmanager
def _without_sdk() -> Iterator[None]:
    """Lets an import of the SDK fail, as if it weren't installed."""
    imported = sys.modules.get(_SDK)
    sys.modules[_SDK] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules[_SDK]
        if imported is not None:
            sys.modules[_SDK] = imported


def write_no_stubs() -> None:
    """Takes effect if Gradio isn't imported yet."""
    if not any(finder is _Finder for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder)
