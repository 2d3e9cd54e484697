"""The command `mcp`."""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

from core.cli.parser import add_command, parse_count


def add_mcp(commands: Any, common: argparse.ArgumentParser) -> None:
    about = "Serve tools to agents (MCP): corpora, training, evaluation, curves."
    parser = add_command(commands, common, "mcp", about, "agents:serve_agents")
    about = "most runs that agents may start (default: 20)"
    parser.add_argument("--max-runs", type=parse_count, default=20, metavar="N", help=about)
    about = "most US dollars that they may spend (default: 0, only machines that cost nothing)"
    parser.add_argument("--max-cost", type=_dollars, default=0.0, metavar="DOLLARS", help=about)
    about = "folder whose texts agents may read; may be repeated (default: this folder)"
    parser.add_argument("--allow", type=Path, action="append", default=[], help=about)
    about = "serve over HTTP, not standard input and output; STUDIO_AUTH sets a password"
    parser.add_argument("--http", action="store_true", help=about)
    about = "address to listen on (default: 127.0.0.1)"
    parser.add_argument("--host", default="127.0.0.1", help=about)
    parser.add_argument("--port", type=int, default=7861, help="port (default: 7861)")


def _dollars(text: str) -> float:
    try:
        amount = float(text)
    except ValueError:
        amount = math.nan
    if not 0 <= amount < math.inf:
        wanted = "US dollars, 0 or more, such as 2.50"
        raise argparse.ArgumentTypeError(f"expected {wanted}; received {text}")
    return amount
