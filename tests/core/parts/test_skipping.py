"""Skipped parts: what is left out, what is kept, and what needs credentials."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from core import CorpusConfig, Workspace
from core.corpus.part_steps import PartStep, count_skipped, run_step
from core.corpus.parts import CorpusPart, PartCounts
from core.corpus.reading import open_corpus
from core.errors import ConfigError
from core.parts.pool import open_pool
from core.parts.store import PartResult, PartStore
from core.records.events import Reporter


def read_part(part: CorpusPart, folder: Path) -> dict[str, Any]:
    return {"texts": [document.text for _, document in part.documents(PartCounts())]}


def run(folder: Path, home: Path, part_bytes: int, *, skips: bool) -> list[PartResult]:
    config = CorpusConfig(sources=[f"web={folder}"])
    corpus = open_corpus(config, Workspace(home), skipped_bytes=part_bytes if skips else None)
    reporter = Reporter()
    step = PartStep(read_part, PartStore(home / "store", "recipe"), skips)
    return list(run_step(step, corpus.parts(part_bytes), partial(open_pool, 1, reporter), reporter))


@pytest.mark.parametrize(("part_bytes", "kind"), [(1, "parts_skipped"), (9999, "files_skipped")])
def test_file_without_the_column_is_skipped_alone(
    tmp_path: Path, part_bytes: int, kind: str
) -> None:
    folder, home = tmp_path / "data", tmp_path / "home"
    folder.mkdir()
    for name in "ac":
        rows = "".join(f'{{"text": "{name} {n}"}}\n' for n in range(20))
        (folder / f"{name}.jsonl").write_text(rows)
    (folder / "b.jsonl").write_text('{"other": 1}\n')
    with pytest.raises(ConfigError, match="of the source web"):
        run(folder, home, part_bytes, skips=False)
    results = run(folder, home, part_bytes, skips=True)
    assert count_skipped(results) == {kind: 1}
    assert sum(len(one.values.get("texts", [])) for one in results) == 40
    # The stored result isn't taken for a complete one.
    with pytest.raises(ConfigError, match="of the source web"):
        run(folder, home, part_bytes, skips=False)


def test_any_source_elsewhere_needs_credentials() -> None:
    assert CorpusConfig(sources=["a=x.txt", "wiki=hub:o/x"]).reads_elsewhere
    assert CorpusConfig(sources=["a=gs://bucket/x.txt"]).reads_elsewhere
    assert not CorpusConfig(sources=["a=x.txt"]).reads_elsewhere
