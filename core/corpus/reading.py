"""Streams a corpus's documents from its source again at each pass, always in the same order."""

from __future__ import annotations

import itertools
import json
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from core.automatic.rules import choose_validation_percent
from core.config.base import fingerprint_of
from core.config.corpus import CorpusConfig
from core.config.options import settled
from core.corpus.addresses import has_address
from core.corpus.cleaned import CleanedSource
from core.corpus.documents import Document, Tally, as_document, sum_tallies
from core.corpus.files import FilesSource
from core.corpus.folding import fold
from core.corpus.holdout import WindowSet, held_out_below
from core.corpus.lines import encoding_named
from core.corpus.members import (
    Member,
    choose_members,
    naming_source,
    open_members,
    stored_bytes,
)
from core.corpus.parts import PART_BYTES, SPLITS, CorpusPart, PartCounts, files_of
from core.corpus.report import ReadingReport, count_skipped, describe_skipped
from core.corpus.source import Source, SourcePart, Split
from core.errors import ConfigError, CorpusError
from core.foreign_files import read_object
from core.messages.values import byte_count
from core.records.events import Reporter
from core.workspace.atomic import write_atomically, writing_whole_file
from core.workspace.places import make_folder
from core.workspace.workspace import Workspace

# Increment when the same settings yield other documents.
_READING = 2
# Another name when documents are counted or compared in another way: fingerprints stay.
_COUNTS_FOLDER = "corpora-2"
_DOCUMENTS_BETWEEN_REPORTS = 1000
# Fingerprinted only if not default, to keep older fingerprints valid.
_READING_OPTIONS = (
    "encoding", "encoding_errors", "csv_header", "delimiter", "quoting", "max_document_characters"
)  # fmt: skip


class LabelledDocument(NamedTuple):
    """A document, its split and the name of its source; empty without named sources."""

    split: Split
    source: str
    text: str


@dataclass
class PartReader:
    """Reads and counts non-blank documents up to the limit.

    Attributes:
        skipped_bytes: Size of the parts whose files are skipped if they can't be read; None: none
            are.
        files_skipped: How many were.
    """

    source: Source
    split: Split
    limit: int | None
    skipped_bytes: int | None = None
    blank_skipped: int = 0
    files_skipped: int = 0
    complete: bool = False

    def __iter__(self) -> Iterator[Document]:
        read = 0
        for text in self._texts():
            if not text or text.isspace():
                self.blank_skipped += 1
                continue
            yield as_document(text)
            read += 1
            if read == self.limit:
                break
        self.complete = True

    def _texts(self) -> Iterator[str]:
        if self.skipped_bytes is None:
            yield from self.source.documents(self.split)
            return
        has_text = False
        failed: ConfigError | CorpusError | None = None
        for part in self.source.parts(self.split, self.skipped_bytes):
            for source in files_of(part.source, self.split):
                try:
                    for text in source.documents(self.split):
                        has_text = True
                        yield text
                except (ConfigError, CorpusError) as error:
                    if error.is_passing:
                        raise
                    self.files_skipped += 1
                    failed = failed or error
        if failed and not has_text:
            raise failed


class Corpus:
    """A stream of documents in two splits; raises CorpusError if there are none.

    Its sources follow one another. All decide which documents are held out, also if some of them
    are chosen.

    Args:
        cache: Folder for counts and hashes.
        skipped_bytes: Size of the parts that are skipped if they can't be read; None: none are.
    """

    def __init__(
        self,
        config: CorpusConfig,
        members: Sequence[Member],
        cache: Path,
        reporter: Reporter,
        skipped_bytes: int | None = None,
    ) -> None:
        self.config = config
        self._skipped_bytes = skipped_bytes
        self._members = list(members)
        self._chosen = choose_members(config, members)
        self._reporter = reporter
        # Whether the documents are those of all files, as far as they were read.
        self._is_complete = True
        self._whole_fingerprint = _fingerprint(config, members)
        self.fingerprint = _with_choice(self._whole_fingerprint, config)
        self._cache = cache
        self._counts_path = cache / f"{self.fingerprint}.json"
        self._passes: dict[str, dict[str, dict[str, int]]] = _read_passes(self._counts_path)
        self._incomplete: dict[str, dict[str, dict[str, int]]] = {}
        self._documents_read: dict[str, dict[str, Any]] = {}
        self._threshold = self._find_threshold()
        self._announce()

    @property
    def reading(self) -> dict[str, Any]:
        by_source = {
            member.name: {**member.report.to_dict(), **self._documents_read.get(member.name, {})}
            for member in self._chosen
        }
        return {"sources": by_source} if self.source_names else by_source[self._chosen[0].name]

    @property
    def source_names(self) -> list[str]:
        """The named sources that are read, in order."""
        return [member.name for member in self._chosen if member.name]

    @property
    def input_fingerprint(self) -> str:
        """Fingerprint of the cleaned corpus, else of what is read."""
        source = self._members[0].source
        is_cleaned = self.config.source == "corpus"
        return source.identity if is_cleaned else self.fingerprint

    @property
    def stored_bytes(self) -> int | None:
        """Size of the files; None if it isn't known."""
        return stored_bytes(self._chosen)

    @property
    def cleaning(self) -> dict[str, Any]:
        """Summary of the cleaning of a cleaned corpus."""
        source = self._members[0].source
        if self.config.source != "corpus" or not isinstance(source, CleanedSource):
            return {}
        return {"cleaning": source.summary()}

    @property
    def holds_out(self) -> bool:
        """Returns whether there are documents for validation."""
        return self._threshold > 0 or any(member.source.has_validation for member in self._chosen)

    def check_holds_out(self) -> None:
        """Raises CorpusError without validation text."""
        if not self.holds_out:
            raise self._no_validation_error()

    def _announce(self) -> None:
        describe = ReadingReport.describe_files
        self._told = [line for member in self._chosen for line in _lines_of(member, describe)]
        for line in self._told:
            self._reporter.note(line, reading=True)
        for member in self._chosen:
            if skipped := member.report.describe_skipped():
                self._reporter.warn(f"Source {member.name}: {skipped}" if member.name else skipped)

    def _announce_rest(self) -> None:
        for line in [line for member in self._chosen for line in _lines_of(member, _all_lines)]:
            if line not in self._told:
                self._told.append(line)
                self._reporter.note(line, reading=True)

    def _tell_counts(self, split: Split, counts: dict[str, dict[str, int]]) -> None:
        """Reports the documents of a split that were kept and skipped, once."""
        for member in self._chosen:
            if not (count := counts.get(member.name)):
                continue
            read = count_skipped(count["documents"], count["blank_skipped"], member.report.rows)
            own = self._documents_read.setdefault(member.name, {})
            if split not in own.setdefault("documents", {}):
                own["documents"][split] = read
                name = f"Source {member.name}, {split}: " if member.name else ""
                self._reporter.note(name + describe_skipped(read), reading=True)

    @property
    def counts(self) -> dict[str, int]:
        """Document counts; cached by the first complete pass, else of the parts that were read.

        The counts of splits include dropped documents.
        """
        counts = self._counts_of(list(self._known_passes.values()))
        if counts and "_dropped" in self.__dict__:
            counts["validation_dropped"] = len(self._dropped)
        return counts

    @property
    def source_counts(self) -> dict[str, dict[str, int]]:
        """Document counts by named source, as far as they are known."""
        by_source = {
            name: self._counts_of(
                [{name: counts[name]} for counts in self._known_passes.values() if name in counts]
            )
            for name in self.source_names
        }
        return {name: counts for name, counts in by_source.items() if counts}

    @property
    def _known_passes(self) -> dict[str, dict[str, dict[str, int]]]:
        return {**self._incomplete, **self._passes}

    def _counts_of(self, passes: list[dict[str, dict[str, int]]]) -> dict[str, int]:
        counts = _merged_counts(itertools.chain.from_iterable(map(dict.values, passes)))
        if set(self._splits()) - set(self._known_passes):
            return {name: count for name, count in counts.items() if "validation" not in name}
        return counts

    def documents(self, split: Split) -> Iterator[str]:
        """Yields a split's documents; raises CorpusError without validation text."""
        documents = self.training_documents() if split == "train" else self.validation_documents()
        return (document.text for document in documents)

    def labelled_documents(self) -> Iterator[tuple[Split, str]]:
        """Yields (split, document) in one pass; raises CorpusError without validation text."""
        return ((split, text) for split, _, text in self.sourced_documents())

    def sourced_documents(self) -> Iterator[LabelledDocument]:
        """Yields documents with split and source in one pass, as `labelled_documents`."""
        self.check_holds_out()
        dropped = self._dropped
        for own in self._splits():
            for split, source, document in self._read(own, self._chosen):
                if split == "train" or document.hash not in dropped:
                    yield LabelledDocument(split, source, document.text)

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
        for split in self._splits():
            for member in self._chosen:
                has_own = member.source.has_validation
                if split not in splits if has_own else split == "validation":
                    continue
                limit, below = member.config.limit, 0 if has_own else self._threshold
                with naming_source(member.name):
                    source_parts = (
                        [_limited_part(member.source, split, limit)]
                        if limit
                        else list(member.source.parts(split, target_bytes))
                    )
                for source_part in source_parts:
                    planned.append(CorpusPart(
                        len(planned), source_part, split, below, dropped, limit, member.name
                    ))  # fmt: skip
        return planned

    def record_parts(
        self, counts: Sequence[tuple[Split, PartCounts]], *, are_all: bool = True
    ) -> None:
        """Keeps the counts of all parts of a split or both, in order, as a pass over them does.

        Args:
            are_all: Whether no part was skipped; otherwise later stages count again.
        """
        for member in self._chosen:
            if isinstance(member.source, FilesSource):
                reports = [part.report for _, part in counts if part.source == member.name]
                member.source.report.take(report for report in reports if report is not None)
        for split in self._splits():
            parts = {
                member.name: [
                    part for own, part in counts if own == split and part.source == member.name
                ]
                for member in self._chosen
                if split == "train" or member.source.has_validation
            }
            by_source = {name: _counts_of_parts(own) for name, own in parts.items() if own}
            self._tell_counts(split, by_source)
            if split in self._passes:
                continue
            if not are_all:
                self._incomplete[split] = by_source
            elif len(by_source) == len(parts):
                self._keep_counts(split, by_source)
        self._announce_rest()

    def training_documents(self) -> Iterator[LabelledDocument]:
        """Yields the documents to train on with their source."""
        for split, source, document in self._read("train", self._chosen):
            if split == "train":
                yield LabelledDocument(split, source, document.text)

    def validation_documents(self) -> Iterator[LabelledDocument]:
        """Yields the held-out documents with their source, as `documents`."""
        dropped = self._dropped
        documents = (
            LabelledDocument(split, source, document.text)
            for split, source, document in self._labelled_validation(self._chosen)
            if document.hash not in dropped
        )
        first = next(documents, None)
        if first is None:
            raise self._no_validation_error()
        yield first
        yield from documents

    def _train(self, members: Sequence[Member]) -> Iterator[Document]:
        read = self._read("train", members)
        return (document for split, _, document in read if split == "train")

    def _validation(self, members: Sequence[Member]) -> Iterator[Document]:
        return (document for _, _, document in self._labelled_validation(members))

    def _labelled_validation(
        self, members: Sequence[Member]
    ) -> Iterator[tuple[Split, str, Document]]:
        needed: dict[Split, bool] = {
            "train": not all(member.source.has_validation for member in members),
            "validation": any(member.source.has_validation for member in members),
        }
        for split in [split for split, is_needed in needed.items() if is_needed]:
            for document_split, source, document in self._read(split, members):
                if document_split == "validation":
                    yield document_split, source, document

    def _splits(self) -> list[Split]:
        has_validation = any(member.source.has_validation for member in self._chosen)
        return ["train", "validation"] if has_validation else ["train"]

    def _read(
        self, split: Split, members: Sequence[Member]
    ) -> Iterator[tuple[Split, str, Document]]:
        """Yields split, source and document; keeps the counts of the chosen sources."""
        counts: dict[str, dict[str, int]] = {}
        skipped = 0
        for member in members:
            if split == "validation" and not member.source.has_validation:
                continue
            reader = PartReader(member.source, split, member.config.limit, self._skipped_bytes)
            tallies: dict[Split, Tally] = {"train": Tally(), "validation": Tally()}
            below = 0 if member.source.has_validation else self._threshold
            with naming_source(member.name):
                for document in reader:
                    is_held_out = split == "validation" or document.hash < below
                    document_split: Split = "validation" if is_held_out else "train"
                    tallies[document_split].add(document)
                    yield document_split, member.name, document
            counts[member.name] = _counts_from(tallies, reader.blank_skipped)
            skipped += reader.files_skipped
        self._is_complete = self._is_complete and not skipped
        if members is not self._chosen:
            return
        self._announce_rest()
        self._tell_counts(split, counts)
        if split not in self._passes and not skipped:
            self._keep_counts(split, counts)

    def _find_threshold(self) -> int:
        for member in self._members:
            with naming_source(member.name):
                _check_text(member, self._skipped_bytes)
        rest = [member for member in self._members if not member.source.has_validation]
        if not rest:
            return 0
        return held_out_below(
            (document.hash for document in _documents_of(rest, self._skipped_bytes)),
            settled(self.config.validation_percent),
        )

    @cached_property
    def _dropped(self) -> frozenset[int]:
        """Hashes of validation documents that overlap with training documents."""
        if not _drops_overlapping(self.config):
            return frozenset()
        path = self._cache / f"{self._whole_fingerprint}.dropped.npy"
        dropped = _load_hashes(path)
        if dropped is None:
            dropped = self._find_overlapping()
            if self._is_complete:
                _save_atomically(path, dropped)
        return frozenset(dropped.tolist())

    def _find_overlapping(self) -> npt.NDArray[np.uint64]:
        hashes: list[int] = []
        # Without a choice this pass counts the documents, too.
        members = self._members if self.config.only else self._chosen
        windows = WindowSet.of(_data_of(self._validation(members), hashes))
        owners = windows.owners_sharing_with(self._reported(self._train(members)))
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
            yield fold(document.text)

    def _keep_counts(self, split: Split, counts: dict[str, dict[str, int]]) -> None:
        self._passes[split] = counts
        for name, source_counts in counts.items():
            if name:
                self._reporter.note(_describe_counts(name, split, source_counts), reading=True)
        make_folder(self._cache)
        write_atomically(self._counts_path, json.dumps(self._passes, indent=2))

    def _no_validation_error(self) -> CorpusError:
        if self._dropped:
            return CorpusError(
                "No document remains for validation",
                expected="a held-out document that shares no 20 words in a row with a training "
                "document",
                received=f"{len(self._dropped)} held-out documents, all with shared words",
                fix="raise ⟬validation_percent⟭, or set ⟬drop_overlapping_validation⟭ to false",
                field="drop_overlapping_validation",
            )
        return CorpusError(
            "There are too few documents to hold some out for validation",
            expected="at least two different documents",
            fix="add text, set ⟬text_unit⟭ to line or paragraph, or set ⟬validation_path⟭ to other "
            "text",
            field="text_unit" if self.config.source == "files" else "validation_percent",
        )  # fmt: skip


@dataclass(frozen=True)
class CorpusPreview:
    """Samples and counts; `complete` unless a limit ended reading.

    Attributes:
        sources: The source of each sample; empty without named sources.
        by_source: Documents and bytes.
    """

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
    sources: list[str] = field(default_factory=list)
    by_source: dict[str, dict[str, int]] = field(default_factory=dict)


def open_corpus(
    config: CorpusConfig,
    workspace: Workspace,
    reporter: Reporter | None = None,
    *,
    skipped_bytes: int | None = None,
) -> Corpus:
    """Opens a corpus and checks that it has text.

    Args:
        skipped_bytes: Size of the parts that are skipped if they can't be read; None: none are.

    Raises:
        ConfigError: A path or column is missing or ambiguous.
        CorpusError: There is no readable text.
    """
    reporter = reporter or Reporter()
    members = open_members(config, workspace, reporter, keep_unreadable=skipped_bytes is not None)
    config, members = _with_validation_percent(config, members)
    return Corpus(config, members, workspace.cache / _COUNTS_FOLDER, reporter, skipped_bytes)


def _with_validation_percent(
    config: CorpusConfig, members: list[Member]
) -> tuple[CorpusConfig, list[Member]]:
    """Chooses the percentage that is held out, if it is automatic; all sources have the same."""
    if config.validation_percent is not None:
        return config, members
    percent = choose_validation_percent(stored_bytes(members)).value
    chosen = {"validation_percent": percent}
    return config.model_copy(update=chosen), [
        replace(member, config=member.config.model_copy(update=chosen)) for member in members
    ]


def preview(
    config: CorpusConfig,
    workspace: Workspace,
    documents: int = 5,
    scan_limit: int | None = None,
    scan_seconds: float | None = None,
) -> CorpusPreview:
    """Returns the first documents, some of each source, and counts; raises like `open_corpus`.

    Args:
        scan_limit: Most documents counted; None chooses a few seconds' worth.
    """
    members = choose_members(config, open_members(config, workspace, Reporter(), sample=True))
    share = -(-documents // len(members))
    seconds = scan_seconds / len(members) if scan_seconds else None
    seen = []
    for member in members:
        with naming_source(member.name):
            seen.append(_preview_of(member, share, scan_limit, seconds))
    return merge_previews(seen)


def merge_previews(sources: Sequence[CorpusPreview]) -> CorpusPreview:
    """Joins the previews of several sources."""
    if len(sources) == 1:
        return sources[0]
    return CorpusPreview(
        [text for source in sources for text in source.samples],
        **{name: sum(getattr(source, name) for source in sources) for name in _SUMMED},
        longest_characters=max(source.longest_characters for source in sources),
        complete=all(source.complete for source in sources),
        columns=sources[0].columns,
        reading=[line for source in sources for line in source.reading],
        sources=[name for source in sources for name in source.sources],
        by_source={name: counts for source in sources for name, counts in source.by_source.items()},
    )


_SUMMED = ("documents", "bytes", "characters", "blank_skipped")


def _preview_of(
    member: Member, documents: int, scan_limit: int | None, scan_seconds: float | None
) -> CorpusPreview:
    config = member.config
    most = min(scan_limit or _SCAN_LIMITS[config.source], config.limit or _UNLIMITED)
    reader = PartReader(member.source, "train", most)
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
    columns, text_column = member.source.columns()
    # A preview reads only the first file of an address.
    complete = (
        in_time and not has_address(config) and (tally.documents < most or most == config.limit)
    )
    seen = CorpusPreview(
        samples, **asdict(tally), blank_skipped=reader.blank_skipped, complete=complete,
        columns=columns, text_column=text_column, reading=member.report.lines(),
    )  # fmt: skip
    return name_preview(seen, member.name) if member.name else seen


def name_preview(seen: CorpusPreview, name: str) -> CorpusPreview:
    """Marks a preview with the name of its source."""
    counts = {"documents": seen.documents, "bytes": seen.bytes}
    reading = [f"Source {name}: {line}" for line in seen.reading]
    return replace(
        seen, reading=reading, sources=[name] * len(seen.samples), by_source={name: counts}
    )


def read_documents(config: CorpusConfig, workspace: Workspace) -> Iterator[str]:
    """Yields the documents to train on, none held out, from each source in turn.

    Raises like `open_corpus`.
    """
    members = choose_members(config, open_members(config, workspace, Reporter(), sample=True))
    for member in members:
        with naming_source(member.name):
            _check_text(member)
    waiting = deque((member, iter(PartReader(member.source, "train", member.config.limit)))
                    for member in members)  # fmt: skip
    while waiting:
        member, reader = waiting.popleft()
        with naming_source(member.name):
            document = next(reader, None)
        if document is not None:
            waiting.append((member, reader))
            yield document.text


_SCAN_LIMITS = {"docs": 1_000_000, "files": 500_000, "hub": 1_000, "corpus": 500_000}
_UNLIMITED = 1 << 62


def _documents_of(members: Iterable[Member], skipped_bytes: int | None) -> Iterator[Document]:
    for member in members:
        with naming_source(member.name):
            yield from PartReader(member.source, "train", member.config.limit, skipped_bytes)


def _check_text(member: Member, skipped_bytes: int | None = None) -> None:
    """Raises CorpusError for a split without text."""
    config = member.config
    if _first_of(PartReader(member.source, "train", config.limit, skipped_bytes)) is None:
        raise _empty_error(config)
    if not member.source.has_validation or (member.name and config.source == "corpus"):
        return  # A source of a cleaned corpus may be too small to hold documents out.
    if _first_of(PartReader(member.source, "validation", config.limit, skipped_bytes)) is None:
        field = "validation_split" if config.source == "hub" else "validation_path"
        raise _empty_error(config, field)


def _limited_part(source: Source, split: Split, limit: int) -> SourcePart:
    """Returns all files as they are now, so that later changes are noticed."""
    if isinstance(source, FilesSource):
        (whole,) = source.parts(split, _UNLIMITED)
        source = whole.source
    return SourcePart(source, f"the first {limit} documents", 0)


def _first_of(reader: PartReader) -> Document | None:
    return next(iter(reader), None)


def _lines_of(member: Member, describe: Callable[[ReadingReport], list[str]]) -> list[str]:
    lines = describe(member.report)
    return [f"Source {member.name}: {line}" for line in lines] if member.name else lines


def _all_lines(report: ReadingReport) -> list[str]:
    return [*report.describe_files(), *report.describe_findings()]


def _counts_from(tallies: Mapping[Split, Tally], blank_skipped: int) -> dict[str, int]:
    train, validation = tallies["train"], tallies["validation"]
    return {
        **_sum_counts(asdict(train), asdict(validation)),
        "blank_skipped": blank_skipped,
        **{f"train_{name}": getattr(train, name) for name in ("documents", "bytes")},
        **{f"validation_{name}": getattr(validation, name) for name in ("documents", "bytes")},
    }


def _counts_of_parts(parts: Sequence[PartCounts]) -> dict[str, int]:
    tallies = {split: sum_tallies(part.splits[split] for part in parts) for split in SPLITS}
    return _counts_from(tallies, sum(part.blank_skipped for part in parts))


def _describe_counts(name: str, split: str, counts: Mapping[str, int]) -> str:
    held_out = counts["validation_documents"]
    size = byte_count(counts["bytes"])
    if split == "validation":
        return f"Source {name}: {held_out:,} validation documents, {size}"
    return f"Source {name}: {counts['documents']:,} documents, {held_out:,} held out, {size}"


def _fingerprint(config: CorpusConfig, members: Sequence[Member]) -> str:
    if config.source != "several":
        return _fingerprint_of_source(config, members[0].source)
    parts = []
    for member in members:
        with naming_source(member.name):
            parts.append([member.name, _fingerprint_of_source(member.config, member.source)])
    dropping = _drops_overlapping(config)
    return fingerprint_of({"source": "several", "parts": parts, "drops_overlapping": dropping})


def _with_choice(fingerprint: str, config: CorpusConfig) -> str:
    return fingerprint_of([fingerprint, config.names_only]) if config.only else fingerprint


def _fingerprint_of_source(config: CorpusConfig, source: Source) -> str:
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
    kinds = {config.source, *(source.source for source in config.sources)}
    return "docs" in kinds if chosen is None else chosen


def _data_of(documents: Iterator[Document], hashes: list[int]) -> Iterator[bytes]:
    for document in documents:
        hashes.append(document.hash)
        yield fold(document.text)


_FIELDS = {"files": "path", "hub": "dataset_name", "corpus": "corpus_name"}


def _empty_error(config: CorpusConfig, field: str = "") -> CorpusError:
    where = {
        "docs": "The installed documentation", "files": config.path, "corpus": config.corpus_name
    }.get(config.source, config.dataset_name)  # fmt: skip
    if field.startswith("validation"):
        where = config.validation_path or f"{config.dataset_name} ({config.validation_split})"
    return CorpusError(
        f"{where} contains no text", expected="at least one document that isn't blank",
        fix="choose another text, or check ⟬text_column⟭",
        field=field or _FIELDS.get(config.source, "source"),
    )  # fmt: skip


def _merged_counts(passes: Iterable[dict[str, int]]) -> dict[str, int]:
    merged: dict[str, int] = {}
    for counts in passes:
        merged = _sum_counts(merged, counts) if merged else dict(counts)
    return merged


def _sum_counts(total: dict[str, int], added: dict[str, int]) -> dict[str, int]:
    return {
        name: max(count, added[name]) if name.startswith("longest") else count + added[name]
        for name, count in total.items()
    }


def _read_passes(path: Path) -> dict[str, dict[str, dict[str, int]]]:
    """Reads counts by split and source; earlier versions had none by source."""
    return {
        split: counts if all(isinstance(own, dict) for own in counts.values()) else {"": counts}
        for split, counts in read_object(path).items()
    }


def _load_hashes(path: Path) -> npt.NDArray[np.uint64] | None:
    try:
        return np.load(path, allow_pickle=False)
    except (OSError, EOFError, ValueError):
        return None  # recomputed by the caller


def _save_atomically(path: Path, values: npt.NDArray[np.uint64]) -> None:
    make_folder(path.parent)
    with writing_whole_file(path) as draft, draft.open("wb") as file:
        np.save(file, values, allow_pickle=False)
