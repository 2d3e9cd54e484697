"""Shows a run's progress: one line in place on a terminal, a line for each change elsewhere."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Self

from core.cli.output import colour, describe_progress, describe_state, is_terminal, say
from core.errors import escape_controls

if TYPE_CHECKING:
    from core.store import RunRow


class Progress:
    """Prints what a follower learns about a run.

    Args:
        quiet: Leaves out all but warnings.
    """

    def __init__(self, *, quiet: bool = False) -> None:
        self._quiet = quiet
        self._last_line = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Ends the display."""

    def note(self, line: str) -> None:
        if not self._quiet:
            say(escape_controls(line))

    def warn(self, message: str) -> None:
        say(f"{colour('warning:', 'yellow', sys.stderr)} {escape_controls(message)}")

    def metrics(self, step: int, values: dict[str, float]) -> None:
        self.note(f"  step {step}: " + describe_metrics(values))

    def update(self, row: RunRow) -> None:
        line = f"{row.id}  {describe_state(row)}  {describe_progress(row)}"
        if line != self._last_line:
            self._last_line = line
            self.note(line)


class LiveProgress(Progress):
    """Keeps the progress of a run in one line, below the lines that stay."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.live import Live
        from rich.spinner import Spinner

        super().__init__()
        console = Console(file=sys.stderr, force_terminal=True, highlight=False)
        self._live = Live(console=console, auto_refresh=False, transient=True)
        self._spinner = Spinner("dots")
        self._newest = ""

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def metrics(self, step: int, values: dict[str, float]) -> None:
        """Prints evaluations; other figures are in the line until newer ones come."""
        if any(name.startswith("eval") for name in values):
            super().metrics(step, values)
        else:
            self._newest = describe_metrics(values)

    def update(self, row: RunRow) -> None:
        self._live.update(self._line(row), refresh=True)

    def _line(self, row: RunRow) -> Any:
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        about = ", ".join(filter(None, (describe_progress(row), self._newest)))
        line = Table.grid(padding=(0, 1))
        line.add_column(no_wrap=True)
        line.add_column(no_wrap=True)
        line.add_column(width=20)
        line.add_column(no_wrap=True, overflow="ellipsis")
        line.add_row(
            self._spinner,
            Text(f"{escape_controls(row.id)} {describe_state(row)}"),
            ProgressBar(total=row.total, completed=row.done) if row.total else Text(),
            Text(escape_controls(about)),
        )
        return line


def open_progress(*, quiet: bool = False) -> Progress:
    """Chooses the display that suits standard error."""
    return LiveProgress() if is_terminal(sys.stderr) and not quiet else Progress(quiet=quiet)


def describe_metrics(values: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.5g}" for name, value in values.items())
