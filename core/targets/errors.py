"""Errors of mirrors and targets."""

from __future__ import annotations

from core.errors import StudioError


class TargetError(StudioError):
    """A target refused a request, or its machine can't be used."""

    reason = "target"


class UnavailableError(TargetError):
    """A store or target can't be reached now; nothing is known, and a later try may succeed."""

    reason = "unavailable"


class MirrorError(TargetError):
    """A mirror holds something that this program doesn't write."""

    reason = "mirror"


class ForeignMirrorError(TargetError):
    """Somebody else has made a mirror, so that it can only be followed."""

    reason = "foreign"


class UnsignedMirrorError(ForeignMirrorError):
    """Nobody has signed a mirror: an earlier version, or somebody else, has made it."""


class NoRoomError(TargetError):
    """What a mirror holds doesn't fit on this disk; nothing is wrong with the mirror."""

    reason = "disk_full"


class SupersededError(TargetError):
    """A newer incarnation has claimed the run, so this process must not go on."""

    reason = "superseded"
