"""The process that answers for models, one for all tabs."""

from __future__ import annotations

from functools import cache

from core.serving.playground import PlaygroundClient
from core.workspace.workspace import Workspace


@cache
def shared_client(workspace: Workspace) -> PlaygroundClient:
    """Returns the client of a workspace; its process starts with the first request."""
    return PlaygroundClient(workspace)
