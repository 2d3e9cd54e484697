"""Options of sending a run's figures to services, which several stages share."""

from __future__ import annotations

from typing import Any, Literal

from core.config.options import PROJECT_PATTERN, WEBHOOK_PATTERN, option
from core.processes import reporters

WebhookFormat = Literal["auto", "slack", "discord", "json"]
_GROUP = "Reporting"


def report_to_option() -> Any:
    return option(
        "",
        f"Services that receive the figures: {', '.join(reporters.SERVICES)}.",
        details=(
            "Several with commas. Sent by a process of its own, which can't disturb the run. "
            "Needs requirements-reporting.txt: docs/reporting.md."
        ),
        title="Report to",
        group=_GROUP,
        choices=reporters.CHOICES,
        pattern=reporters.PATTERN,
        is_list=True,
        identity=False,
    )


def project_option() -> Any:
    return option(
        "",
        "Project or experiment of these services; empty: pretrain-studio.",
        title="Project",
        group=_GROUP,
        pattern=PROJECT_PATTERN,
        identity=False,
    )


def webhook_option() -> Any:
    return option(
        "",
        "Address that is told of the run's end, preemptions, alerts and limits.",
        details=(
            "A secret: it is kept in memory only. STUDIO_WEBHOOK_URL sets it for all runs. "
            "Slack, Discord or JSON: docs/reporting.md."
        ),
        group=_GROUP,
        pattern=WEBHOOK_PATTERN,
        secret=True,
        identity=False,
    )


def webhook_format_option() -> Any:
    return option(
        "auto",
        "Format of the webhook's messages.",
        options={
            "auto": ("Automatic", "by the address"),
            "slack": ("Slack", ""),
            "discord": ("Discord", ""),
            "json": ("JSON", "an object with event, run, state and figures"),
        },
        group=_GROUP,
        identity=False,
    )
