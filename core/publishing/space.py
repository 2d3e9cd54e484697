"""Builds a Space: this app with `STUDIO_MODEL` set."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import core
from core.errors import HubError
from core.publishing.bundle import CARD_FILE, Bundle, Upload

_FILES = ("app.py", "requirements.txt", "LICENSE")
_FOLDERS = ("core", "ui")
_SKIPPED = ("__pycache__", ".pyc")
# Defaults, which this repository's README overrides.
_HEADER = {"sdk": "gradio", "app_file": "app.py", "python_version": "3.12"}


def space_bundle(model_id: str, license: str = "") -> Bundle:
    """Returns a Space's files."""
    root = Path(core.__file__).parent.parent
    missing = [name for name in (*_FILES[:2], *_FOLDERS) if not (root / name).exists()]
    if missing:
        raise HubError(
            "Files of this program that a Space needs are missing",
            expected=f"app.py, requirements.txt, core and ui in {root}",
            received=f"no {', '.join(missing)}",
            fix="push the Space from a checkout of the repository",
            field="space",
        )
    uploads = [Upload(name, root / name) for name in _FILES if (root / name).is_file()]
    for folder in _FOLDERS:
        paths = sorted(path for path in (root / folder).rglob("*") if path.is_file())
        uploads += [
            Upload(path.relative_to(root).as_posix(), path)
            for path in paths
            if _is_sent(path.relative_to(root))
        ]
    card = _card(model_id, license, root)
    return Bundle("space", (Upload(CARD_FILE, card.encode("utf-8")), *uploads), card)


def _is_sent(path: Path) -> bool:
    hidden = any(part.startswith(".") for part in path.parts)
    return not hidden and not any(part in str(path) for part in _SKIPPED)


def _card(model_id: str, license: str, root: Path) -> str:
    from huggingface_hub import SpaceCardData

    values: dict[str, Any] = {**_HEADER, **_sdk_version(), **_own_header(root)}
    repo_id = model_id.partition("@")[0]
    values |= {"title": repo_id.rsplit("/", 1)[-1], "models": [repo_id]}
    if license:
        values["license"] = license
    data = SpaceCardData(**values)
    address = "https://hf.co/" + model_id.replace("@", "/tree/")
    return (
        f"---\n{data.to_yaml()}\n---\n\n"
        f"[{model_id}]({address}), to try in the browser. Made with Pretrain "
        "Studio.\n"
    )


def _sdk_version() -> dict[str, str]:
    from importlib import metadata

    return {"sdk_version": metadata.version("gradio")}


def _own_header(root: Path) -> dict[str, Any]:
    from huggingface_hub import SpaceCard

    path = root / CARD_FILE
    if not path.is_file() or not path.read_text("utf-8").startswith("---\n"):
        return {}
    data = SpaceCard(path.read_text("utf-8"), ignore_metadata_errors=True).data
    return dict(data.to_dict())  # type: ignore[no-untyped-call]
