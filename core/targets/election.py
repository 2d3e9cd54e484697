"""Creates an object once, in a store that can only write, copy, list and delete.

The writers hold an election with files whose names carry their votes (Disk Paxos with one disk).
It needs nothing but this: a listing shows every file whose writing was acknowledged before the
listing began. Clocks, delays and crashes don't matter for safety: at most one writer is ever told
that it created the object, and all that is ever written under the object's name is its content.

A writer takes a ballot, a number that is its own, and then:

1. It writes a file for the ballot, and lists. If there is a higher ballot, it takes a higher one.
2. It votes for the value of the highest vote, or else for its own, and lists again. If there is
   still no higher ballot, the value has won.
3. It copies the winner's content to the object's name, and deletes its own files.

Whoever would win with a higher ballot sees this vote in its first listing, so it votes for the same
value. Files are deleted only once the object exists; an election that ends then is void. A writer
that completes the work of another one leaves a file that tells it so.

Source: Gafni and Lamport, Disk Paxos, https://lamport.azurewebsites.net/pubs/disk-paxos.pdf
"""

from __future__ import annotations

import random
import re
import secrets
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from core.targets.errors import TargetError, UnavailableError

ELECTIONS_FOLDER = ".elections"
_FILE = re.compile(r"(\d{6})-([0-9a-f]{16})(?:-([0-9a-f]{16}))?")
_LONGEST_SECONDS = 300.0
_SHORTEST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.1, 10.0


class Files(Protocol):
    """The part of a store that an election needs."""

    def add(self, files: Sequence[tuple[Path | bytes, str]]) -> None: ...

    def copy(self, copies: Sequence[tuple[str, str]]) -> None: ...

    def list_files(self, prefix: str) -> Sequence[Any]: ...

    def has(self, path: str) -> bool: ...

    def remove(self, paths: Sequence[str]) -> None: ...


class Ballot(NamedTuple):
    """Ballots are ordered by number, then by writer."""

    number: int
    writer: str


@dataclass(frozen=True)
class Entry:
    """A file of an election: a ballot's beginning, or its vote.

    Attributes:
        value: The writer whose content is voted for; "" at the beginning.
        content: The content's hash.
    """

    ballot: Ballot
    value: str
    content: str

    @property
    def name(self) -> str:
        vote = f"-{self.value}" if self.value else ""
        return f"{self.ballot.number:06d}-{self.ballot.writer}{vote}"


def hold_election(files: Files, folder: str, path: str, data: bytes) -> bool:
    """Creates a file with this content, or another writer's; returns whether this one has won.

    Args:
        folder: For the files of the election; nobody else writes there.
    """
    return _Election(files, folder, path).hold(data)


class _Election:
    def __init__(self, files: Files, folder: str, path: str) -> None:
        self._files, self._folder, self._path = files, folder, path
        self._writer = secrets.token_hex(8)
        self._written: list[str] = []

    def hold(self, data: bytes) -> bool:
        own = Entry(Ballot(1, self._writer), "", "")
        self._files.add([(data, self._note(own))])
        deadline, pause = time.monotonic() + _LONGEST_SECONDS, _SHORTEST_PAUSE_SECONDS
        while True:
            began = time.monotonic()
            entries = self._list(own.ballot)
            own = next(entry for entry in entries if entry.ballot == own.ballot)
            vote = self._vote(own, entries)
            if vote and not self._is_outbid(vote):
                return self._finish(vote)
            if time.monotonic() > deadline:
                raise self._contested()
            # The writer with the higher ballot gets the time that a ballot takes.
            pause = min(max(pause, 2 * (time.monotonic() - began)), _LONGEST_PAUSE_SECONDS)
            time.sleep(random.uniform(0, pause))
            if self._files.has(self._path):
                return self._leave()
            highest = max(entry.ballot.number for entry in self._list(own.ballot))
            own = Entry(Ballot(highest + 1, self._writer), "", own.content)
            self._files.copy([(own.content, self._note(own))])

    def _vote(self, own: Entry, entries: Sequence[Entry]) -> Entry | None:
        """Returns the vote that this ballot may cast; None if there is a higher one."""
        if any(entry.ballot > own.ballot for entry in entries):
            return None
        votes = [entry for entry in entries if entry.value]
        if not votes:
            return Entry(own.ballot, self._writer, own.content)
        last = max(votes, key=lambda entry: entry.ballot)
        return Entry(own.ballot, last.value, last.content)

    def _is_outbid(self, vote: Entry) -> bool:
        """Casts a vote; returns whether a higher ballot has begun."""
        self._files.copy([(vote.content, self._note(vote))])
        return any(entry.ballot > vote.ballot for entry in self._list(vote.ballot))

    def _finish(self, vote: Entry) -> bool:
        """Creates the object as the vote says, unless it exists: then the vote is void."""
        if self._files.has(self._path):
            return self._leave()
        if vote.value != self._writer:
            self._files.copy([(vote.content, self._message(vote.value))])
        self._files.copy([(vote.content, self._path)])
        self._clean_up()
        return vote.value == self._writer

    def _leave(self) -> bool:
        """Returns whether another writer has completed the object with this one's content."""
        message = self._message(self._writer)
        is_told = self._files.has(message)
        self._written += [message] if is_told else []
        self._clean_up()
        return is_told

    def _clean_up(self) -> None:
        # Files that are left behind do no harm.
        with suppress(TargetError):
            self._files.remove(self._written)

    def _list(self, own: Ballot) -> list[Entry]:
        """Returns all files of the election, among them that of an own ballot."""
        entries = []
        for file in self._files.list_files(f"{self._folder}/"):
            match = _FILE.fullmatch(str(file.path).removeprefix(f"{self._folder}/"))
            if match:
                ballot = Ballot(int(match[1]), match[2])
                entries.append(Entry(ballot, match[3] or "", str(file.xet_hash)))
        if not any(entry.ballot == own for entry in entries):
            raise UnavailableError(
                f"{self._path} can't be created",
                expected="a listing that shows what was just written",
                fix="it is tried again",
            )
        return entries

    def _note(self, entry: Entry) -> str:
        """Returns the path of an own file, which is deleted at the end."""
        self._written.append(f"{self._folder}/{entry.name}")
        return self._written[-1]

    def _message(self, winner: str) -> str:
        return f"{self._folder}/won-{winner}"

    def _contested(self) -> UnavailableError:
        return UnavailableError(
            f"{self._path} can't be created",
            expected="one writer at a time",
            received=f"others that tried the same for {_LONGEST_SECONDS:.0f} seconds",
            fix="end the other processes of this run; it is tried again",
        )
