"""Tells a webhook of a run's end, preemptions, alerts and limits."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from core.errors import StudioError
from core.finetuning.names import METRICS, RANDOM_INIT
from core.network.http import guarded_session
from core.network.outbound import OutboundError, check_url
from core.records.events import LIMIT

_RETRY_SECONDS = (0.0, 2.0, 10.0, 30.0)
_MOST_RETRY_SECONDS = 60.0
_TIMEOUT_SECONDS = 20.0
# A damaged run may raise an alert at every step.
MOST_ALERTS = 20
# Discord accepts 2,000 characters.
_LONGEST_TEXT = 1_500
_SHOWN_FIGURES = (
    "eval_loss", "eval_perplexity", "eval_accuracy", "loss", "perplexity", "bits_per_byte",
)  # fmt: skip
_HOSTS = {
    "slack": ("hooks.slack.com", "hooks.slack-gov.com"),
    "discord": ("discord.com", "discordapp.com", "ptb.discord.com", "canary.discord.com"),
}


@dataclass(frozen=True)
class Message:
    """A message about a run.

    Attributes:
        event: done, failed, preempted, alert or limit.
        state: The run's state after the event, as `runs list` names it.
    """

    event: str
    state: str
    text: str
    figures: dict[str, float]


def message_of(event: dict[str, Any]) -> Message | None:
    """Returns the message about an event of a run; None for other events."""
    kind = event["kind"]
    if kind == "finished":
        return _about_end(event)
    if kind == "warning" and event.get("alert"):
        return Message("alert", "running", str(event.get("message", "")), {})
    if kind == "remote" and event.get("phase") == "preempted":
        text = "The machine was preempted; another one goes on."
        return Message("preempted", "running", text, {})
    if kind == "remote" and event.get("phase") == "lost":
        return Message("alert", "running", "The machine has been silent for a while.", {})
    return None


def _about_end(event: dict[str, Any]) -> Message | None:
    state, reason = event.get("state"), event.get("reason")
    results = {
        name: float(value)
        for name, value in dict(event.get("results") or {}).items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }
    if state == "done":
        shown = [f"{name} {results[name]:.4g}" for name in _SHOWN_FIGURES if name in results]
        shown = [*_metrics(results), *shown]
        return Message("done", "done", "Done. " + ", ".join(shown), results)
    if state == "failed":
        error = event.get("error")
        text = StudioError(**error).describe() if isinstance(error, dict) else str(reason or "")
        return Message("failed", "failed", f"Failed: {text}", results)
    if reason == "preempted":
        # The worker queues it again.
        return Message("preempted", "queued", "Preempted; the run is queued again.", results)
    if reason == LIMIT:
        return Message("limit", "stopped", "Stopped at the limit of hours or costs.", results)
    return None


def _metrics(results: Mapping[str, float]) -> Iterator[str]:
    """Yields the metrics of a task on its test set, each with its baselines."""
    constant = "mean" if "mse" in results else "majority"
    for name in METRICS:
        if name in results:
            baselines = {"random weights": f"{RANDOM_INIT}{name}", constant: f"majority_{name}"}
            told = [
                f"{title} {results[metric]:.4g}"
                for title, metric in baselines.items()
                if metric in results
            ]
            yield f"{name} {results[name]:.4g}" + (f" ({', '.join(told)})" if told else "")


def payload(message: Message, run: str, name: str, format: str) -> dict[str, Any]:
    """Returns the JSON to send, in the format slack, discord or json."""
    title = f"{name} ({run})" if name else run
    text = f"{title}: {message.text}".strip()[:_LONGEST_TEXT]
    if format == "slack":
        escaped = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
        return {"text": escaped}
    if format == "discord":
        # Nobody is notified by an @ in a name or an error.
        return {"content": text, "allowed_mentions": {"parse": []}}
    return {
        "event": message.event,
        "run": run,
        "name": name,
        "state": message.state,
        "message": message.text[:_LONGEST_TEXT],
        "figures": message.figures,
        "time": round(time.time(), 3),
    }


def format_of(url: str, format: str) -> str:
    """Returns the format, by the address's host if it is "auto"."""
    if format != "auto":
        return format
    host = (urlsplit(url).hostname or "").lower()
    return next((name for name, hosts in _HOSTS.items() if host in hosts), "json")


def send(url: str, body: dict[str, Any]) -> str:
    """Posts a payload, with retries; returns the problem without the address, or ""."""
    problem = ""
    for seconds in _RETRY_SECONDS:
        time.sleep(seconds)
        problem, wait = asyncio.run(_post(url, body))
        if not problem or wait is None:
            return problem
        time.sleep(min(wait, _MOST_RETRY_SECONDS))
    return problem


async def _post(url: str, body: dict[str, Any]) -> tuple[str, float | None]:
    """Returns the problem, or "", and the seconds until a retry; None: don't retry."""
    try:
        check_url(url)
        timeout = aiohttp.ClientTimeout(total=_TIMEOUT_SECONDS)
        async with (
            await guarded_session(trust_env=True) as session,
            session.post(url, json=body, allow_redirects=False, timeout=timeout) as answer,
        ):
            return _judge(answer)
    except OutboundError as error:
        # Its problem may name the address.
        return f"not allowed: expected {error.expected}; received {error.received}", None
    except (StudioError, aiohttp.InvalidURL, ValueError):
        return "the address is not valid", None
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        return f"{type(error).__name__}: the address doesn't answer", 0.0


def _judge(answer: aiohttp.ClientResponse) -> tuple[str, float | None]:
    if answer.status < 300:
        return "", None
    if answer.status < 400:
        return f"HTTP {answer.status}: a redirect, which isn't followed", None
    if answer.status == 429 or answer.status >= 500:
        after = answer.headers.get("Retry-After", "")
        return f"HTTP {answer.status}", float(after) if after.isdecimal() else 0.0
    return f"HTTP {answer.status}", None
