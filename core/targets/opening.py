"""Opens the store at an address; each kind is imported when it is needed."""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import urlsplit

from core.errors import ConfigError
from core.targets.store import FolderStore, ObjectStore


def open_store(address: str) -> ObjectStore:
    """Opens the store at `gs://…`, `s3://…`, `hf://buckets/…`, `ssh://…` or `file:///folder`.

    Raises ConfigError for another address.
    """
    scheme = urlsplit(address).scheme
    opener = _OPENERS.get(scheme)
    if opener is None:
        raise ConfigError(
            "The mirror's address has an unknown scheme",
            expected="an address that begins with "
            + ", ".join(f"{scheme}://" for scheme in _OPENERS),
            received=address[:200],
            fix="name a bucket, or a folder on a machine that ssh reaches",
            field="mirror",
        )
    return opener(address.rstrip("/"))


def _open_ssh(address: str) -> ObjectStore:
    from core.targets.ssh import SshStore

    return SshStore(address)


def _open_fsspec(address: str) -> ObjectStore:
    from core.targets.cloud_storage import CloudStore

    return CloudStore(address)


def _open_hub(address: str) -> ObjectStore:
    from core.targets.hub_bucket import HubBucketStore

    return HubBucketStore(address)


_OPENERS: dict[str, Callable[[str], ObjectStore]] = {
    "gs": _open_fsspec,
    "s3": _open_fsspec,
    "hf": _open_hub,
    "ssh": _open_ssh,
    "file": FolderStore,
}
