"""Starts the page: `python app.py`, then http://127.0.0.1:7860."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from pathlib import Path

from core.errors import StudioError
from core.messages.redaction import hide_secrets_in_output
from core.workspace.workspace import Workspace
from ui.serve import serve


def main() -> int:
    """Serves the page until Ctrl+C or a SIGTERM and returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    option = parser.add_argument
    host, port = (os.environ.get(f"GRADIO_SERVER_{name}") for name in ("NAME", "PORT"))
    option("--host", default=host or "127.0.0.1", help="address to listen on")
    option("--port", type=int, default=port or 7860, help="port to listen on")
    option("--workspace", type=Workspace, default="", help="STUDIO_HOME or ./workspace by default")
    option("--allow", type=Path, action="append", default=[], help="let the page read this folder")
    option("--quickstart", action="store_true", help="train a first model if nothing has run yet")
    # By itself a SIGTERM, as containers are stopped with, would leave the demo's folder behind.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        serve(**vars(parser.parse_args()))
    except StudioError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    hide_secrets_in_output()
    sys.exit(main())
