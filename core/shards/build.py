"""Builds shards: tokenises and packs the parts of a corpus, and brings their files together.

Output: train/ and validation/ with dataset-{shard}-{records}.tfrecord, tokenizer/, token_counts.npy
(training, without padding) and manifest.json. The number of processes doesn't change it.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from core.automatic.rules import USUAL_LENGTH, choose_sequence_length
from core.config.base import fingerprint_of
from core.config.shards import ShardConfig
from core.corpus.part_steps import SKIPPED, PartStep, count_skipped, run_step
from core.corpus.parts import (
    SPLITS,
    CorpusPart,
    PartCounts,
    bytes_of_parts,
    count_useful,
    plan_parts,
)
from core.corpus.reading import Corpus, open_corpus
from core.corpus.source import Split
from core.errors import ShardError
from core.messages.system_errors import is_disk_full
from core.objectives.registry import create_objective
from core.parts.store import PartResult, PartStore, open_store
from core.parts.versions import find_versions
from core.parts.workers import open_workers
from core.processes.cores import usable_cores
from core.records.events import Reporter
from core.shards.destination import new_destination
from core.shards.layout import check_options, objective_settings
from core.shards.packing import Packing, pack_part, tail_file, token_counts_file
from core.shards.read import TOKEN_COUNTS_FILE, TOKENIZER_FOLDER, TRAIN, VALIDATION
from core.storage.files import is_address
from core.tokenizer.loading import StudioTokenizer, load
from core.tokenizer.vocabulary import vocabulary_of
from core.workspace.manifests import Artifact
from core.workspace.workspace import Workspace

# Each holds about 150 MB; further cores speed up single batches.
_MOST_THREADS = 8
# Increment when the same settings yield other files.
_FORMAT = 3
# Behind those of all parts.
_LAST_FILE = 10**15

_REPORTED_COUNTS = ("train_rows", "validation_rows", "train_tokens", "tokens_dropped")
_ADJECTIVES = {TRAIN: "training", VALIDATION: "validation"}


def build(config: ShardConfig, workspace: Workspace, reporter: Reporter | None = None) -> Artifact:
    """Builds shards from a corpus.

    Raises:
        ConfigError: A name is taken, or the tokenizer lacks a token.
        CorpusError, TokenizerError: The corpus or tokenizer can't be used.
        ShardError: The text is too short, or the destination not writable.
        RunStopped: Finished parts are kept for the next run with these settings.
    """
    reporter = reporter or Reporter()
    check_options(config)
    name = config.name or derive_name(config)
    with ExitStack() as opened, new_destination(config.output_dir, workspace) as destination:
        with workspace.new_artifact("shards", name, exact=bool(config.name)) as draft:
            tokenizer = load_tokenizer(config, workspace)
            skipped = bytes_of_parts(config.part_mb) if config.skip_failing_parts else None
            corpus = open_corpus(config.corpus, workspace, reporter, skipped_bytes=skipped)
            folder = destination.folder(draft)
            config = _fitted(config, corpus, reporter)
            draft.config = config.model_dump(mode="json")
            inputs = {"corpus": corpus.input_fingerprint, "tokenizer": tokenizer.fingerprint}
            draft.inputs = inputs
            plan = _plan(config, corpus, tokenizer)
            store = opened.enter_context(
                open_store(workspace.cache / "parts", "shards", plan.recipe)
            )
            uploads = destination.begin(plan.recipe, store, has_parts=len(plan.parts) > 1)
            plan = replace(plan, packing=replace(plan.packing, uploads=uploads))
            results = _pack_parts(config, plan, store, corpus.counts.get("documents"), reporter)
            destination.collect(results)
            counts = _merge(plan.packing, corpus, plan.parts, results, folder, reporter)
            tokenizer.copy_to(folder / TOKENIZER_FOLDER)
            draft.counts = {**counts, "reading": corpus.reading, **corpus.cleaning}
            draft.location = destination.location
            draft.fingerprint = destination.publish(draft, reporter)
        # Not before: when an upload fails, the finished parts are still there.
        store.remove()
        for name, source_counts in draft.counts.get("sources", {}).items():
            reporter.note(f"Source {name}: {_describe_source(source_counts)}", reading=True)
        reporter.metrics(0, {name: draft.counts[name] for name in _REPORTED_COUNTS})
    assert draft.artifact
    return draft.artifact


def derive_name(config: ShardConfig) -> str:
    """Returns a default name such as docs-words-512; without the length if it is automatic."""
    tokenizer = re.sub(r"[^A-Za-z0-9._-]+", "-", Path(config.tokenizer).name).strip("-.")
    kind = "" if config.objective == "mlm" else f"-{config.objective}"
    lines = "-lines" if config.line_by_line else ""
    length = f"-{config.max_seq_length}" if config.max_seq_length else ""
    fit = "-fit" if config.packing == "best_fit" else ""
    return f"{config.corpus.short_name}-{tokenizer[:60]}{length}{kind}{lines}{fit}"


def _fitted(config: ShardConfig, corpus: Corpus, reporter: Reporter) -> ShardConfig:
    """Returns the config with the settings that follow from the text."""
    chosen: dict[str, Any] = {"corpus": corpus.config}
    if config.max_seq_length is None:
        length = choose_sequence_length(corpus.stored_bytes)
        reporter.note(f"Sequence length: {length.reason}")
        chosen["max_seq_length"] = length.value
    config = config.model_copy(update=chosen)
    settings = {"max_seq_length": config.max_seq_length}
    reporter.event("resolved", settings=settings)
    return config


def load_tokenizer(config: ShardConfig, workspace: Workspace) -> StudioTokenizer:
    """Loads the tokenizer and checks the objective's tokens."""
    tokenizer = load(config.tokenizer, workspace)
    vocabulary = vocabulary_of(tokenizer)
    fitted = config.model_copy(update={"max_seq_length": config.max_seq_length or USUAL_LENGTH})
    create_objective(config.objective, objective_settings(fitted), vocabulary)
    if config.objective == "clm":
        vocabulary.require("eos_id", config.objective)
    return tokenizer


@dataclass(frozen=True)
class _Plan:
    """Parts, and how to pack them.

    Attributes:
        recipe: Hash of everything that decides the results.
    """

    parts: Sequence[CorpusPart]
    packing: Packing
    workers: int
    recipe: str


def _plan(config: ShardConfig, corpus: Corpus, tokenizer: StudioTokenizer) -> _Plan:
    splits: tuple[Split, ...] = SPLITS if config.split == "all" else (config.split,)
    if VALIDATION in splits:
        corpus.check_holds_out()
    parts = plan_parts(partial(corpus.parts, splits=splits), config.part_mb)
    recipe = fingerprint_of(
        {
            "format": _FORMAT,
            # Skipped parts are done again without this option; the others are the same.
            "settings": config.model_copy(update={"skip_failing_parts": False}).fingerprint(),
            "versions": find_versions(),
            "tokenizer": tokenizer.fingerprint,
            "corpus": corpus.fingerprint,
            "parts": [part.recipe() for part in parts],
            # There, the parts' files are not kept here.
            **({"destination": config.output_dir} if is_address(config.output_dir) else {}),
        }
    )
    workers = count_useful(config.workers, config.part_mb, parts)
    # A lone process can use several cores, too.
    cores = config.workers or usable_cores()
    threads = min(_MOST_THREADS, cores) if workers == 1 and not config.cluster else 1
    packing = Packing(config, tokenizer.path, tokenizer.fingerprint, splits, threads)
    return _Plan(parts, packing, workers, recipe)


def _pack_parts(
    config: ShardConfig, plan: _Plan, store: PartStore, total: int | None, reporter: Reporter
) -> list[PartResult]:
    pack = partial(pack_part, plan.packing)
    if len(plan.parts) == 1 and not config.cluster:
        pack = partial(pack, reporter=reporter, total=total)
    step = PartStep(pack, store, config.skip_failing_parts)
    pool = partial(
        open_workers,
        config.workers if config.cluster else plan.workers,
        config.cluster,
        reporter,
        needs_credentials=config.corpus.reads_elsewhere or bool(plan.packing.uploads),
    )
    return list(run_step(step, plan.parts, pool, reporter))


def _merge(
    packing: Packing,
    corpus: Corpus,
    parts: Sequence[CorpusPart],
    results: Sequence[PartResult],
    folder: Path,
    reporter: Reporter,
) -> dict[str, Any]:
    """Brings the files of all parts together, and packs what remained of each."""
    read = [(part, result) for part, result in zip(parts, results, strict=True)
            if SKIPPED not in result.values]  # fmt: skip
    counts = [PartCounts.from_json(result.values["read"]) for _, result in read]
    skipped = count_skipped(results)
    corpus.record_parts(
        [(part.split, part_counts) for (part, _), part_counts in zip(read, counts, strict=True)],
        are_all=not skipped,
    )
    sources = _count_sources(packing.splits, corpus, [result for _, result in read], counts)
    packed = {}
    for split in packing.splits:
        packed[split] = _merge_split(packing, split, [result for _, result in read], folder)
        _check_any_sequence(split, packed[split], packing)
    if TRAIN in packed:
        tokenizer, token_counts = packing.open_tokenizer(), packed[TRAIN].token_counts
        if packing.layout.has_padding:
            token_counts[tokenizer.pad_id] = 0
        np.save(folder / TOKEN_COUNTS_FILE, token_counts)
    if packing.layout.best_fit:
        _note_padding(packing, packed, reporter)
    return {
        **_counts(packing, packed, counts),
        **skipped,
        **({"sources": sources} if sources else {}),
    }


def _note_padding(
    packing: Packing, packed: Mapping[Split, PackedSplit], reporter: Reporter
) -> None:
    stored = sum(total.rows for total in packed.values()) * packing.layout.row_length
    padding = 1 - sum(total.tokens for total in packed.values()) / stored
    note = f"Best-fit packing: {padding:.1%} of {stored:,} tokens are padding"
    reporter.note(note, reading=True)


def _count_sources(
    splits: Sequence[Split],
    corpus: Corpus,
    results: Sequence[PartResult],
    read: Sequence[PartCounts],
) -> dict[str, dict[str, int]]:
    """Counts documents, bytes and tokens of named sources; raises ShardError for an empty one."""
    units = [f"{split}_{unit}" for split in splits for unit in ("documents", "tokens")]
    by_source = {name: dict.fromkeys(["bytes", *units], 0) for name in corpus.source_names}
    for result, part_counts in zip(results, read, strict=True):
        if not part_counts.source:
            continue
        counts = by_source[part_counts.source]
        for split in splits:
            documents, size = part_counts.kept(split)
            counts["bytes"] += size
            counts[f"{split}_documents"] += documents
            counts[f"{split}_tokens"] += result.values["packed"][split]["tokens"]
    for name, counts in by_source.items():
        if not counts.get(f"{TRAIN}_documents", 1):
            raise _empty_source(name, counts.get(f"{VALIDATION}_documents", 0))
    return by_source


def _empty_source(name: str, held_out: int) -> ShardError:
    return ShardError(
        f"The source {name} has no training document",
        expected="at least one that is not held out",
        received=f"{held_out} documents, all held out" if held_out else "no document",
        fix="add text to this source, lower ⟬validation_percent⟭, or leave the source out",
        field="validation_percent",
    )


def _describe_source(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{value:,} {name.replace('_', ' ')}" for name, value in counts.items())


@dataclass
class PackedSplit:
    """Totals of a split.

    Attributes:
        token_counts: Int64 (vocab_size,).
    """

    token_counts: NDArray[np.int64]
    rows: int = 0
    tokens: int = 0
    words: int = 0
    dropped: int = 0


def _merge_split(
    packing: Packing, split: Split, results: Sequence[PartResult], folder: Path
) -> PackedSplit:
    last = packing.new_packer(folder / split, packing.open_encoder(), _LAST_FILE)
    total = PackedSplit(last.token_counts)
    for result in results:
        for path in sorted((result.folder / split).glob("*.tfrecord")):
            _link(path, folder / split / path.name)
        packed = result.values["packed"][split]
        total.rows += packed["rows"]
        total.tokens += packed["tokens"]
        total.words += packed["words"]
        total.dropped += packed["truncated"]
        # Adds their counts, if they fill a sequence.
        last.add(np.load(result.folder / tail_file(split), allow_pickle=False))
        total.token_counts += np.load(result.folder / token_counts_file(split), allow_pickle=False)
    last.finish()
    total.rows += last.rows
    total.dropped += last.truncated + len(last.tail)
    return total


def _link(path: Path, final: Path) -> None:
    """Links a file to its place, so that a killed stage still has it; or copies it."""
    try:
        os.link(path, final)
    except OSError:
        _copy(path, final)


def _copy(path: Path, final: Path) -> None:
    try:
        shutil.copyfile(path, final)
    except OSError as error:
        raise ShardError(
            f"The shards can't be written to {final.parent}",
            expected=f"space for {path.stat().st_size:,} more bytes",
            received=error.strerror or str(error),
            fix="free disk space, then start the same command again: the finished parts are kept",
            knows_cause=is_disk_full(error),
        ) from error


def _check_any_sequence(split: str, packed: PackedSplit, packing: Packing) -> None:
    if packed.rows:
        return
    is_cleaned = packing.config.corpus.source == "corpus"
    more = f"{'clean with a larger' if is_cleaned else 'raise'} ⟬validation_percent⟭"
    fixes = {
        TRAIN: "add text, or lower ⟬max_seq_length⟭",
        VALIDATION: f"add text, {more}, lower ⟬max_seq_length⟭, or set ⟬split⟭ to train to write "
        "only training sequences",
    }
    raise ShardError(
        f"The text is too short for a single {_ADJECTIVES[split]} sequence",
        expected=f"at least {packing.layout.row_length} tokens, the length of one sequence",
        received=f"{packed.tokens} tokens of {_ADJECTIVES[split]} text",
        fix=fixes[split],
        field="max_seq_length",
    )


def _counts(
    packing: Packing, packed: Mapping[Split, PackedSplit], read: Sequence[PartCounts]
) -> dict[str, int]:
    row_length = packing.layout.row_length
    kept_documents = {
        split: [part_counts.kept(split) for part_counts in read] for split in packing.splits
    }
    counts = {
        "row_length": row_length,
        "vocab_size": packing.open_tokenizer().vocab_size,
        "bytes": sum(size for some in kept_documents.values() for _, size in some),
        "tokens_dropped": sum(split_total.dropped for split_total in packed.values()),
    }
    for split in SPLITS:
        rows = packed[split].rows if split in packed else 0
        counts |= {
            f"{split}_rows": rows,
            f"{split}_tokens": rows * row_length,
            f"{split}_words": packed[split].words if split in packed else 0,
            f"{split}_documents": sum(number for number, _ in kept_documents.get(split, [])),
        }
    return counts
