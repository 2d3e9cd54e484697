"""Applies `core.network.outbound` to the Hub's client."""

from __future__ import annotations


def guard_hub() -> None:
    """Guards the Hub client's connections and redirects."""
    from huggingface_hub import set_client_factory

    from core.network.http import guarded_hub_client

    if guarded_hub_client.is_set:
        return
    guarded_hub_client.is_set = True
    set_client_factory(guarded_hub_client)
