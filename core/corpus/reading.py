"""Streams a corpus's documents from its source again at each pass, always in the same order."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from core.config import CorpusConfig, fingerprint_of
from core.corpus.cleaned import CleanedSource
from core.corpus.docs import DocsSource
from core.corpus.documents import Document, Tally, as_document, sum_tallies
from core.corpus.files import FilesSource
from core.corpus.holdout import WindowSet, held_out_below
from core.corpus.hub import HubSource
from core.corpus.lines import encoding_named
from core.corpus.parts import PART_BYTES, SPLITS, CorpusPart, PartCounts
from core.corpus.report import Facts, ReadingReport
from core.corpus.source import Source, SourcePart, Split
from core.errors import CorpusError
from core.events import Reporter
from core.workspace import Workspace, write_atomically, writing_whole_file
from core.workspace.places import make_folder

# Increment when the same settings yield other documents.
_READING = 2
_DOCUMENTS_BETWEEN_REPORTS = 1000
# Fingerprinted only if not default, to keep older fingerprints valid.
_READING_OPTIONS = ("encoding", "encoding_errors", "csv_header", "delimiter", "quoting")


@dataclass
class PartReader:
    """Reads and counts non-blank documents up to the limit."""

    source: Source
    part: Split
    limit: int | None
    blank_skipped: int = 0
    complete: bool = False

    def __iter__(self) -> Iterator[Document]:
        read = 0
        for text in self.source.documents(self.part):
            if not text or text.isspace():
                self.blank_skipped += 1
                continue
            yield as_document(text)
            read += 1
            if read == self.limit:
                break
        self.complete = True


class Corpus:
    """A stream of documents in two splits; raises CorpusError if there are none.

    Args:
        cache: Folder for counts and hashes.
    """

    def __init__(
        self, config: CorpusConfig, source: Source, cache: Path, reporter: Reporter
    ) -> None:
        self.config = config
        self._source = source
        self._reporter = reporter
        self.fingerprint = _fingerprint(config, source)
        self._cache = cache
        self._counts_path = cache / f"{self.fingerprint}.json"
        self._passes: dict[str, dict[str, int]] = _read_json(self._counts_path)
        self._threshold = self._find_threshold()
        self._announce()

    @property
    def reading(self) -> dict[str, Any]:
        return _report_of(self._source, self.config).to_dict()

    @property
    def input_fingerprint(self) -> str:
        """Fingerprint of the cleaned corpus, else of what is read."""
        source = self._source
        return source.identity if isinstance(source, CleanedSource) else self.fingerprint

    @property
    def cleaning(self) -> dict[str, Any]:
        """Summary of the cleaning of a cleaned corpus."""
        source = self._source
        return {"cleaning": source.summary()} if isinstance(source, CleanedSource) else {}

    @property
    def holds_out(self) -> bool:
        """Returns whether there are documents for validation."""
        return self._source.has_validation or self._threshold > 0

    def check_holds_out(self) -> None:
        """Raises CorpusError without validation text."""
        if not self.holds_out:
            raise self._no_validation_error()

    def _announce(self) -> None:
        report = _report_of(self._source, self.config)
        self._told = report.describe_files()
        for line in self._told:
            self._reporter.note(line, reading=True)
        if skipped := report.describe_skipped():
            self._reporter.warn(skipped)

    def _announce_rest(self) -> None:
        report = _report_of(self._source, self.config)
        for line in [*report.describe_files(), *report.describe_findings()]:
            if line not in self._told:
                self._told.append(line)
                self._reporter.note(line, reading=True)

    @property
    def counts(self) -> dict[str, int]:
        """Document counts; cached by the first complete pass.

        The counts of splits include dropped documents.
        """
        counts = _merged_counts(self._passes)
        if set(self._parts()) - set(self._passes):
            counts = {name: count for name, count in counts.items() if "validation" not in name}
        if counts and "_dropped" in self.__dict__:
            counts["validation_dropped"] = len(self._dropped)
        return counts

    def documents(self, split: Split) -> Iterator[str]:
        """Yields a split's documents; raises CorpusError without validation text."""
        if split == "train":
            return (document.text for document in self._train())
        return (document.text for document in self._kept_validation())

    def labelled_documents(self) -> Iterator[tuple[Split, str]]:
        """Yields (split, document) in one pass; raises CorpusError without validation text."""
        self.check_holds_out()
        dropped = self._dropped
        for part in self._parts():
            for split, document in self._read(part):
                if split == "train" or document.hash not in dropped:
                    yield split, document.text

    def parts(
        self, target_bytes: int = PART_BYTES, splits: Sequence[Split] = SPLITS
    ) -> list[CorpusPart]:
        """Plans parts; with a limit of documents, there is one per split of the source.

        Args:
            splits: The needed ones.

        Raises:
            CorpusError: A file can't be read.
        """
        dropped = np.array(sorted(self._dropped), np.uint64)
        planned: list[CorpusPart] = []
        limit = self.config.limit
        for split in self._parts():
            if self._source.has_validation and split not in splits:
                continue
            first = SourcePart(self._source, f"the first {limit} documents", 0)
            for part in [first] if limit else self._source.parts(split, target_bytes):
                number = len(planned)
                planned.append(CorpusPart(number, part, split, self._threshold, dropped, limit))
        return planned

    def record_parts(
        self, counts: Sequence[tuple[Split, PartCounts]], *, are_all: bool = True
    ) -> None:
        """Keeps the counts of parts, in order, as a pass over the documents does.

        Args:
            are_all: Whether no part was skipped; otherwise only the reading report is kept.
        """
        for part in self._parts():
            own = [one for split, one in counts if split == part]
            if own and are_all and part not in self._passes:
                tallies = {split: sum_tallies(one.splits[split] for one in own) for split in SPLITS}
                self._keep_counts(part, tallies, sum(one.blank_skipped for one in own))
        if isinstance(self._source, FilesSource):
            self._source.report.take([one.report for _, one in counts if one.report is not None])
        self._announce_rest()

    def _train(self) -> Iterator[Document]:
        return (document for split, document in self._read("train") if split == "train")

    def _validation(self) -> Iterator[Document]:
        part: Split = "validation" if self._source.has_validation else "train"
        return (document for split, document in self._read(part) if split == "validation")

    def _kept_validation(self) -> Iterator[Document]:
        dropped = self._dropped
        kept = (document for document in self._validation() if document.hash not in dropped)
        first = next(kept, None)
        if first is None:
            raise self._no_validation_error()
        yield first
        yield from kept

    def _parts(self) -> list[Split]:
        return ["train", "validation"] if self._source.has_validation else ["train"]

    def _read(self, part: Split) -> Iterator[tuple[Split, Document]]:
        reader = PartReader(self._source, part, self.config.limit)
        tallies: dict[Split, Tally] = {"train": Tally(), "validation": Tally()}
        for document in reader:
            held_out = part == "validation" or document.hash < self._threshold
            split: Split = "validation" if held_out else "train"
            tallies[split].add(document)
            yield split, document
        self._announce_rest()
        if part not in self._passes:
            self._keep_counts(part, tallies, reader.blank_skipped)

    def _find_threshold(self) -> int:
        reader = iter(PartReader(self._source, "train", self.config.limit))
        first = next(reader, None)
        if first is None:
            raise _empty_error(self.config)
        if self._source.has_validation:
            self._check_validation()
            return 0
        hashes = (document.hash for document in chain([first], reader))
        return held_out_below(hashes, self.config.validation_percent)

    def _check_validation(self) -> None:
        if next(iter(PartReader(self._source, "validation", self.config.limit)), None) is None:
            field = "validation_split" if self.config.source == "hub" else "validation_path"
            raise _empty_error(self.config, field)

    @cached_property
    def _dropped(self) -> frozenset[int]:
        """Hashes of validation documents that overlap with training documents."""
        if not _drops_overlapping(self.config):
            return frozenset()
        path = self._cache / f"{self.fingerprint}.dropped.npy"
        dropped = _load_hashes(path)
        if dropped is None:
            dropped = self._find_overlapping()
            _save_atomically(path, dropped)
        return frozenset(dropped.tolist())

    def _find_overlapping(self) -> npt.NDArray[np.uint64]:
        hashes: list[int] = []
        windows = WindowSet.of(_data_of(self._validation(), hashes))
        owners = windows.owners_sharing_with(self._reported(self._train()))
        dropped = np.unique(np.array(hashes, np.uint64)[owners])
        self._reporter.note(
            f"Dropped {len(dropped):,} of {len(hashes):,} held-out documents that share 20 words "
            "in a row with a training document"
        )
        return dropped

    def _reported(self, documents: Iterator[Document]) -> Iterator[bytes]:
        total = self.counts.get("train_documents")
        for number, document in enumerate(documents, start=1):
            if number % _DOCUMENTS_BETWEEN_REPORTS == 0:
                self._reporter.raise_if_stopped()
                note = "comparing held-out documents with training documents"
                self._reporter.progress(number, total, "documents", note)
            yield document.data

    def _keep_counts(self, part: Split, tallies: dict[Split, Tally], blank_skipped: int) -> None:
        train, validation = tallies["train"], tallies["validation"]
        self._passes[part] = {
            **_sum_counts(asdict(train), asdict(validation)),
            "blank_skipped": blank_skipped,
            **{f"train_{name}": getattr(train, name) for name in ("documents", "bytes")},
            **{f"validation_{name}": getattr(validation, name) for name in ("documents", "bytes")},
        }
        make_folder(self._cache)
        write_atomically(self._counts_path, json.dumps(self._passes, indent=2))

    def _no_validation_error(self) -> CorpusError:
        if self._dropped:
            return CorpusError(
                "No document remains for validation",
                expected="a held-out document that shares no 20 words in a row with a training "
                "document",
                received=f"{len(self._dropped)} held-out documents, all with shared words",
                fix="raise validation_percent, or set drop_overlapping_validation to false",
                field="drop_overlapping_validation",
            )
        return CorpusError(
            "There are too few documents to hold some out for validation",
            expected="at least two different documents", received="one",
            fix="add text, set text_unit to line or paragraph, or set validation_path to other "
            "text",
            field="text_unit" if self.config.source == "files" else "validation_percent",
        )  # fmt: skip


@dataclass(frozen=True)
class CorpusPreview:
    """Samples and counts; `complete` unless a limit ended reading."""

    samples: list[str]
    documents: int
    bytes: int
    characters: int
    longest_characters: int
    blank_skipped: int
    complete: bool
    columns: list[str] = field(default_factory=list)
    text_column: str = ""
    reading: list[str] = field(default_factory=list)


def open_corpus(
    config: CorpusConfig, workspace: Workspace, reporter: Reporter | None = None
) -> Corpus:
    """Opens a corpus and checks that it has text.

    Raises:
        ConfigError: A path or column is missing or ambiguous.
        CorpusError: There is no readable text.
    """
    reporter = reporter or Reporter()
    source = _open_source(config, workspace, reporter)
    return Corpus(config, source, workspace.cache / "corpora", reporter)


def preview(
    config: CorpusConfig,
    workspace: Workspace,
    documents: int = 5,
    scan_limit: int | None = None,
    scan_seconds: float | None = None,
) -> CorpusPreview:
    """Returns the first documents and counts; raises like `open_corpus`.

    Args:
        scan_limit: Most documents counted; None chooses a few seconds' worth.
    """
    source = _open_source(config, workspace, Reporter())
    most = min(scan_limit or _SCAN_LIMITS[config.source], config.limit or _UNLIMITED)
    reader = PartReader(source, "train", most)
    samples: list[str] = []
    tally = Tally()
    deadline = time.monotonic() + scan_seconds if scan_seconds else None
    in_time = True
    for document in reader:
        tally.add(document)
        if len(samples) < documents:
            samples.append(document.text)
        if deadline and time.monotonic() > deadline:
            in_time = False
            break
    if not tally.documents:
        raise _empty_error(config)
    columns, text_column = source.columns()
    complete = in_time and (tally.documents < most or most == config.limit)
    return CorpusPreview(
        samples, **asdict(tally), blank_skipped=reader.blank_skipped, complete=complete,
        columns=columns, text_column=text_column, reading=_report_of(source, config).lines(),
    )  # fmt: skip


def read_documents(config: CorpusConfig, workspace: Workspace) -> Iterator[str]:
    """Yields the documents to train on, none held out; raises like `open_corpus`."""
    source = _open_source(config, workspace, Reporter())
    reader = iter(PartReader(source, "train", config.limit))
    first = next(reader, None)
    if first is None:
        raise _empty_error(config)
    for document in chain([first], reader):
        yield document.text


_SCAN_LIMITS = {"docs": 1_000_000, "files": 500_000, "hub": 1_000, "corpus": 500_000}
_UNLIMITED = 1 << 62


def _open_source(config: CorpusConfig, workspace: Workspace, reporter: Reporter) -> Source:
    if config.source == "docs":
        return DocsSource(workspace, reporter)
    if config.source == "files":
        return FilesSource(config)
    if config.source == "corpus":
        found = workspace.find("corpus", config.corpus_name, field="corpus_name")
        return CleanedSource(config, found)
    return HubSource(config)


def _report_of(source: Source, config: CorpusConfig) -> ReadingReport:
    if isinstance(source, FilesSource | CleanedSource):
        return source.report
    report = ReadingReport(found=1)
    if config.source == "hub":
        _, column = source.columns()
        report.add(config.dataset_name, Facts("dataset of the Hub", column=column))
    else:
        report.add("the documentation of the installed packages", Facts("docstrings"))
    return report


def _fingerprint(config: CorpusConfig, source: Source) -> str:
    """Hashes what decides documents and splits."""
    settings: dict[str, Any] = {
        "reading": _READING, "source": config.source, "limit": config.limit,
        "drops_overlapping": _drops_overlapping(config),
    }  # fmt: skip
    if config.source == "files":
        settings |= {"text_unit": config.text_unit, **_set_options(config)}
    if config.source != "docs":
        settings |= {"text_column": config.text_column}
    if not source.has_validation:
        settings |= {"validation_percent": config.validation_percent}
    return fingerprint_of({**settings, "identity": source.identity})


def _set_options(config: CorpusConfig) -> dict[str, Any]:
    fields = CorpusConfig.model_fields
    set_here = {
        name: getattr(config, name)
        for name in _READING_OPTIONS
        if getattr(config, name) != fields[name].default
    }
    if "encoding" in set_here:
        set_here["encoding"] = encoding_named(config.encoding)
    return set_here


def _drops_overlapping(config: CorpusConfig) -> bool:
    chosen = config.drop_overlapping_validation
    return config.source == "docs" if chosen is None else chosen


def _data_of(documents: Iterator[Document], hashes: list[int]) -> Iterator[bytes]:
    for document in documents:
        hashes.append(document.hash)
        yield document.data


_FIELDS = {"files": "path", "hub": "dataset_name", "corpus": "corpus_name"}


def _empty_error(config: CorpusConfig, field: str = "") -> CorpusError:
    where = {
        "docs": "The installed documentation", "files": config.path, "corpus": config.corpus_name
    }.get(config.source, config.dataset_name)  # fmt: skip
    if field.startswith("validation"):
        where = config.validation_path or f"{config.dataset_name} ({config.validation_split})"
    return CorpusError(
        f"{where} contains no text", expected="at least one document that isn't blank",
        received="none", fix="choose another text, or check text_column",
        field=field or _FIELDS.get(config.source, "source"),
    )  # fmt: skip


def _merged_counts(passes: dict[str, dict[str, int]]) -> dict[str, int]:
    merged: dict[str, int] = {}
    for counts in passes.values():
        merged = _sum_counts(merged, counts) if merged else dict(counts)
    return merged


def _sum_counts(one: dict[str, int], other: dict[str, int]) -> dict[str, int]:
    return {
        name: max(one[name], other[name]) if name.startswith("longest") else one[name] + other[name]
        for name in one
    }


def _read_json(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return {}  # recounted by the next pass
    return values if isinstance(values, dict) else {}


def _load_hashes(path: Path) -> npt.NDArray[np.uint64] | None:
    try:
        return np.load(path, allow_pickle=False)
    except (OSError, EOFError, ValueError):
        return None  # recomputed by the caller


def _save_atomically(path: Path, values: npt.NDArray[np.uint64]) -> None:
    make_folder(path.parent)
    with writing_whole_file(path) as draft, draft.open("wb") as file:
        np.save(file, values, allow_pickle=False)
