"""Hours and cost of a run on another machine, before it starts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from urllib.parse import urlsplit

from core.config.remote import RemoteConfig
from core.config.targets import TARGETS, members_of
from core.config.topologies import Topology, find_topology
from core.config.train import TrainConfig
from core.errors import StudioError
from core.targets.target import LABELS
from core.workspace.workspace import Workspace
from ui.parts import markup
from ui.parts.preflight import find_report, time_span
from ui.parts.where import known_price
from ui.present import escape

_UNKNOWN = "unknown"


def topology_of(config: TrainConfig) -> Topology | None:
    """Returns the TPU slice of a target; None for another machine."""
    parts = urlsplit(config.target)
    try:
        return find_topology(parts.netloc) if parts.scheme == "tpu" else None
    except StudioError:
        return None  # A type without published figures.


def estimate_hours(config: TrainConfig, workspace: Workspace) -> Sequence[float]:
    """Returns the least and most hours of the check on a TPU of this type, or ()."""
    topology = topology_of(config)
    report = find_report(config, topology.name, workspace) if topology else None
    return tuple(report["hours"] or ()) if report else ()


def describe_hours(hours: Sequence[float]) -> str:
    return time_span([3600 * estimate for estimate in hours]) if hours else ""


def cost_rows(config: RemoteConfig, hours: Sequence[float]) -> Iterator[tuple[str, str]]:
    """Yields price, cost and limit as (name, value)."""
    price, limit = known_price(config), _limit(config)
    is_free = price is None and not _is_billed(config)
    if not is_free:
        yield "price per hour", _UNKNOWN if price is None else markup.dollars(price)
        costs = _UNKNOWN
        if price is not None and (hours or price == 0):
            costs = markup.dollar_span([estimate * price for estimate in hours or (0.0,)])
        yield "cost, roughly", costs
    if limit or not is_free:
        yield "at most", limit or "no limit"


def tiles_of(config: RemoteConfig) -> str:
    """Renders price and limit of another machine; "" for this one."""
    return markup.tiles(cost_rows(config, ()), rows=True) if config.target else ""


def _scheme(config: RemoteConfig) -> str:
    return urlsplit(config.target).scheme


def _limit(config: RemoteConfig) -> str:
    """Describes the tighter limit, in money if the price is known."""
    price = known_price(config)
    by_hours = None if price is None or config.max_hours is None else config.max_hours * price
    costs = [cost for cost in (config.max_cost, by_hours) if cost is not None]
    if costs:
        return markup.dollars(min(costs))
    return "" if config.max_hours is None else f"{config.max_hours:g} h"


def _is_billed(config: RemoteConfig) -> bool:
    kinds = [TARGETS.get(urlsplit(address).scheme) for address in members_of(config.target)]
    return any(kind is None or kind.is_billed for kind in kinds)


def place_note(config: TrainConfig) -> str:
    """Renders a note about the machine, in place of the one about this machine."""
    scheme = _scheme(config)
    note = (
        f'<p class="ps-note">The run uses another machine: <b>{escape(LABELS.get(scheme, scheme))}'
        "</b>. Code, settings and shards are sent there; curves, checkpoints and the model come "
        "back.</p>"
    )
    if topology := topology_of(config):
        note += (
            '<p class="ps-note">For hours and cost, check on a TPU below, with the topology '
            f"{topology.name}.</p>"
        )
    has_limit = config.max_hours is not None or config.max_cost is not None
    if has_limit or not _is_billed(config):
        return note
    return (
        f'{note}<p class="ps-warning">There is no limit of hours or cost. The machine is deleted '
        "when the run ends, and costs money until then.</p>"
    )
