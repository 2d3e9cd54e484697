"""Tests of the election that creates an object, in memory, where requests fail at random."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from core.targets import election
from core.targets.election import hold_election
from core.targets.errors import UnavailableError

PATH, FOLDER = "claims/1", ".elections/claims/1"


class Files:
    """Files in memory; some requests are slow, and some end with an error, done or not."""

    def __init__(self, seed: int, failing: float) -> None:
        self.files: dict[str, str] = {}
        self.contents: list[str] = []
        self._random, self._failing, self._lock = random.Random(seed), failing, threading.Lock()

    def add(self, files: Sequence[tuple[Path | bytes, str]]) -> None:
        for data, path in files:
            assert isinstance(data, bytes)
            self._request(lambda data=data, path=path: self._put(data.hex(), path))

    def copy(self, copies: Sequence[tuple[str, str]]) -> None:
        for content, path in copies:
            self._request(lambda content=content, path=path: self._put(content, path))

    def list_files(self, prefix: str) -> list[SimpleNamespace]:
        found = self._request(lambda: sorted(self.files.items()))
        return [
            SimpleNamespace(path=path, xet_hash=content)
            for path, content in found  # type: ignore[attr-defined]
            if path.startswith(prefix)
        ]

    def has(self, path: str) -> bool:
        return bool(self._request(lambda: path in self.files))

    def remove(self, paths: Sequence[str]) -> None:
        for path in paths:
            self._request(lambda path=path: self.files.pop(path, None))

    def _put(self, content: str, path: str) -> None:
        self.files[path] = content
        if path == PATH:
            self.contents.append(content)

    def _request(self, action: object) -> object:
        with self._lock:
            delays = [self._random.random() * 0.001 for _ in range(2)]
            chance = self._random.random()
        time.sleep(delays[0])
        if chance < self._failing / 2:
            raise UnavailableError("before it is done")
        with self._lock:
            answer = action()  # type: ignore[operator]
        time.sleep(delays[1])
        if chance < self._failing:
            raise UnavailableError("after it is done")
        return answer


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(election, "_SHORTEST_PAUSE_SECONDS", 0.0)


def race(files: Files, writers: int) -> tuple[list[bytes], list[bytes]]:
    """Returns the contents of the writers that won, and of those that know nothing."""
    won: list[bytes] = []
    failed: list[bytes] = []

    def write(data: bytes) -> None:
        try:
            if hold_election(files, FOLDER, PATH, data):
                won.append(data)
        except UnavailableError:
            failed.append(data)

    threads = [threading.Thread(target=write, args=(b"%d" % i,)) for i in range(writers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return won, failed


@pytest.mark.parametrize("seed", range(30))
def test_one_of_six_writers_wins_and_nothing_is_left_behind(seed: int) -> None:
    files = Files(seed, failing=0.0)
    won, failed = race(files, 6)
    assert (len(won), failed) == (1, [])
    assert {path for path in files.files if not path.startswith(f"{FOLDER}/won-")} == {PATH}
    assert set(files.contents) == {won[0].hex()}
    assert not hold_election(files, FOLDER, PATH, b"late")
    assert set(files.contents) == {won[0].hex()}


@pytest.mark.parametrize("seed", range(60))
def test_writers_that_fail_at_any_request_leave_one_content(seed: int) -> None:
    files = Files(seed, failing=0.06)
    won, failed = race(files, 5)
    assert len(won) + len(failed) >= 1
    files._failing = 0.0
    if hold_election(files, FOLDER, PATH, b"last"):
        won.append(b"last")
    # The object has one content for ever, and it is that of the only winner.
    assert len(set(files.contents)) == 1
    assert len(won) <= 1
    assert all(data.hex() == files.contents[0] for data in won)


def test_equal_contents_have_one_winner() -> None:
    files = Files(1, failing=0.0)
    won: list[bool] = []
    threads = [
        threading.Thread(target=lambda: won.append(hold_election(files, FOLDER, PATH, b"same")))
        for _ in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(won) == [False] * 5 + [True]


def test_listing_that_lags_behind_is_noticed() -> None:
    files = Files(1, failing=0.0)
    files.list_files = lambda prefix: []  # type: ignore[method-assign]
    with pytest.raises(UnavailableError, match="a listing that shows"):
        hold_election(files, FOLDER, PATH, b"data")
    assert PATH not in files.files
