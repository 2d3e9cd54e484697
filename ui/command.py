"""The `studio` command: `studio app` starts the web app; the rest is `python -m core`."""

from __future__ import annotations

import sys

from core.messages.redaction import hide_secrets_in_output


def main() -> int:
    """Runs the command line and returns its exit code."""
    hide_secrets_in_output()
    if sys.argv[1:2] == ["app"]:
        # The web app, which takes longer to import than the commands.
        import app

        sys.argv = ["studio app", *sys.argv[2:]]
        return app.main()
    # Not needed by the web app.
    from core.__main__ import main as run_core

    return run_core(prog="studio", epilog="studio app starts the web app; see studio app --help.")
