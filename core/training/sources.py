"""Opens the shards that a run trains on: one, or the sources of a mixture."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from core.config.base import fingerprint_of
from core.config.mixture import MixtureSource, distinct_names, parse_mixture
from core.config.train import TrainConfig
from core.errors import ConfigError, ShardError
from core.records.events import Reporter
from core.shards.read import Shards, open_shards
from core.training.batches import SequenceOrder, SequenceSource, ShuffledOrder, limit_sequences
from core.training.mixture import (
    BLOCK,
    ConcatenatedSequences,
    MixtureOrder,
    OrderedSequences,
    integer_shares,
    temperature_weights,
)
from core.workspace.manifests import MANIFEST_FILE
from core.workspace.verified import find_damage
from core.workspace.workspace import Workspace

# The most sequences by which a beginning of the order departs from the shares.
_SPREAD = 8


@dataclass(frozen=True)
class TrainingSource:
    """Shards that a run trains on.

    Attributes:
        name: Distinguishes it in metrics and tables.
        share: Its part of the training sequences, of `BLOCK`.
    """

    name: str
    shards: Shards
    share: int
    train_rows: SequenceSource
    validation_rows: SequenceSource


@dataclass(frozen=True)
class TrainingSources:
    """The sources of a run.

    Attributes:
        epoch_length: Training sequences.
        from_mixture: Whether the user gave a mixture, perhaps of one source.
    """

    all: tuple[TrainingSource, ...]
    epoch_length: int
    from_mixture: bool = False

    @property
    def first(self) -> TrainingSource:
        """Says how the sequences of all sources are laid out."""
        return self.all[0]

    @property
    def is_mixture(self) -> bool:
        return len(self.all) > 1

    @property
    def train_rows(self) -> SequenceSource:
        """All training sequences, in the order of the sources."""
        return _concatenated(source.train_rows for source in self.all)

    @property
    def epoch_rows(self) -> SequenceSource:
        """The training sequences of one epoch, in proportion."""
        if not self.is_mixture:
            return self.first.train_rows
        return OrderedSequences(self.train_rows, self._mixture_order(0))

    @property
    def validation_rows(self) -> SequenceSource:
        return _concatenated(source.validation_rows for source in self.all)

    def order(self, seed: int) -> SequenceOrder:
        """Returns the order in which training takes `train_rows`."""
        if not self.is_mixture:
            return ShuffledOrder(self.epoch_length, seed)
        return self._mixture_order(seed)

    def epochs(self, sequences: int) -> dict[str, float]:
        """Returns how often each source is read in a number of training sequences."""
        epochs = self._mixture_order(0).epochs(sequences)
        return {source.name: epoch for source, epoch in zip(self.all, epochs, strict=True)}

    def token_counts(self, vocab_size: int) -> NDArray[np.int64]:
        """Counts ids in the training split, or in one epoch of a mixture, int64 (vocab_size,)."""
        counts = np.zeros(vocab_size, np.float64)
        for source in self.all:
            own = source.shards.token_counts
            counts = np.pad(counts, (0, max(0, len(own) - len(counts))))
            counts[: len(own)] += own * self._times_read(source)
        return np.rint(counts).astype(np.int64)

    @property
    def counted_sequences(self) -> int:
        """Number of sequences behind `token_counts`."""
        return self.epoch_length if self.is_mixture else len(self.first.shards.train)

    @property
    def fingerprints(self) -> dict[str, str]:
        """Returns the fingerprint of the whole as `shards`, and of a mixture's sources."""
        if not self.is_mixture:
            return {"shards": self.first.shards.fingerprint}
        shares = [[source.shards.fingerprint, source.share] for source in self.all]
        named = {f"shards/{source.name}": source.shards.fingerprint for source in self.all}
        return {"shards": fingerprint_of([shares, self.epoch_length]), **named}

    def _times_read(self, source: TrainingSource) -> float:
        if not self.is_mixture:
            return 1.0
        return source.share / BLOCK * self.epoch_length / len(source.train_rows)

    def _mixture_order(self, seed: int) -> MixtureOrder:
        return MixtureOrder(
            tuple(source.share for source in self.all),
            tuple(len(source.train_rows) for source in self.all),
            seed,
            self.epoch_length,
        )


def open_sources(
    config: TrainConfig, workspace: Workspace, reporter: Reporter | None = None
) -> TrainingSources:
    """Opens the shards or the mixture of a config.

    Raises:
        ConfigError: Shards don't exist, or can't be mixed.
        ShardError: A file is damaged or can't be fetched.
    """
    if not config.mixture:
        shards = open_shards(config.shards, workspace, reporter)
        rows = limit_sequences(shards.train, config.max_train_examples)
        validation = limit_sequences(shards.validation, config.max_eval_examples)
        only = TrainingSource(shards.path.name, shards, BLOCK, rows, validation)
        return TrainingSources((only,), len(rows))
    wanted = parse_mixture(config.mixture)
    opened = [open_shards(source.reference, workspace, reporter) for source in wanted]
    names = distinct_names(wanted)
    for name, shards in zip(names, opened, strict=True):
        _check_is_alike(names[0], opened[0], name, shards)
        _check_has_sequences(name, shards)
    _check_are_different(names, opened)
    if reporter:
        _warn_of_other_splits(names, opened, reporter)
    are_given = wanted[0].weight is not None
    shares = integer_shares(_weights(config, wanted, opened), names, are_given=are_given)
    sources = tuple(
        TrainingSource(name, shards, share, shards.train, rows)
        for name, shards, share, rows in zip(
            names, opened, shares, _validation(config, opened), strict=True
        )
    )
    return TrainingSources(sources, _epoch_length(config, sources), from_mixture=True)


def check_unchanged(sources: TrainingSources, workspace: Workspace) -> None:
    """Compares the files of a mixture with their hashes, once per file and change.

    Raises ShardError for a changed or missing file.
    """
    for source in sources.all if sources.from_mixture else ():
        shards = source.shards
        if not (shards.path / MANIFEST_FILE).is_file():
            continue  # Nothing states the hashes.
        if problems := find_damage(shards.path, shards.manifest, workspace.cache):
            raise ShardError(
                f"The source {source.name} of the mixture has changed",
                expected=f"the files that its manifest in {shards.path} lists",
                received=", ".join(problems[:3]),
                fix="restore the files from a copy, or build the shards again",
                field="mixture",
            )


def check_epochs(config: TrainConfig, sources: TrainingSources, sequences: int) -> None:
    """Raises ConfigError if a run reads a source of a mixture too often.

    Args:
        sequences: All training sequences that the run reads.
    """
    if not sources.from_mixture:
        return
    epochs = sources.epochs(sequences)
    name = _find_excess(config, sources, sequences)
    if name is not None:
        raise ConfigError(
            f"The run would read the source {name} too often",
            expected=f"at most {config.max_source_epochs:g} epochs of each source",
            received=describe_epochs(epochs, digits=6),
            fix="train for fewer steps, "
            + (f"lower the weight of {name}, " if sources.is_mixture else "")
            + "or raise ⟬max_source_epochs⟭",
            field="max_source_epochs",
        )


def find_most_sequences(config: TrainConfig, sources: TrainingSources) -> int | None:
    """Returns how many sequences a run may read of a mixture; None: any number."""
    if not sources.from_mixture:
        return None
    lengths = sum(len(source.train_rows) + 2 * _SPREAD for source in sources.all)
    too_many = int((config.max_source_epochs + 1) * lengths) + 1
    return -1 + bisect_left(
        range(too_many + 1),
        True,
        key=lambda sequences: _find_excess(config, sources, sequences) is not None,
    )


def _find_excess(config: TrainConfig, sources: TrainingSources, sequences: int) -> str | None:
    """Returns the source that is read most too often; None: none is.

    As many epochs of the mixture are always allowed, if one ends before any source is repeated.
    Otherwise the order's departure from the shares is, up to a hundredth of the limit.
    """
    most = config.max_source_epochs
    if config.mixture_stop == "first_exhausted" and sequences <= most * sources.epoch_length:
        return None
    spread = 2 * _SPREAD if sources.is_mixture else 0
    epochs = sources.epochs(sequences)
    excess = {
        source.name: epochs[source.name] - most - min(spread / len(source.train_rows), most / 100)
        for source in sources.all
    }
    name = max(excess, key=lambda source: excess[source])
    return name if excess[name] > 0 else None


def describe_epochs(epochs: dict[str, float], digits: int = 3) -> str:
    """Returns a text such as "2.5 epochs of english, 0.3 of korean"."""
    first, *others = [f"{count:.{digits}g} of {name}" for name, count in epochs.items()]
    number, rest = first.split(" ", 1)
    return ", ".join([f"{number} epochs {rest}", *others])


def _concatenated(sequences: Iterable[SequenceSource]) -> SequenceSource:
    sources = tuple(sequences)
    return sources[0] if len(sources) == 1 else ConcatenatedSequences(sources)


def _weights(
    config: TrainConfig, wanted: Sequence[MixtureSource], opened: Sequence[Shards]
) -> list[float]:
    given = [source.weight for source in wanted if source.weight is not None]
    if given:
        return given
    return temperature_weights(
        [len(shards.train) for shards in opened], config.mixture_temperature or 1
    )


def _validation(config: TrainConfig, opened: Sequence[Shards]) -> list[SequenceSource]:
    """Limits the validation sequences of all sources in proportion."""
    most = config.max_eval_examples
    total = sum(len(shards.validation) for shards in opened)
    if most is None or most >= total:
        return [shards.validation for shards in opened]
    return [
        limit_sequences(shards.validation, max(1, most * len(shards.validation) // total))
        for shards in opened
    ]


def _epoch_length(config: TrainConfig, sources: Sequence[TrainingSource]) -> int:
    if len(sources) == 1:
        return len(sources[0].train_rows)
    if config.mixture_stop == "all_exhausted":
        return max(_surely_read(len(source.train_rows), source.share) for source in sources)
    return max(1, int(min(len(source.train_rows) * BLOCK / source.share for source in sources)))


def _surely_read(length: int, share: int) -> int:
    """Returns after how many sequences of a mixture a source was read once, with any seed."""
    # Whole blocks hold exact shares.
    return min(-(-(length + _SPREAD) * BLOCK // share), -(-length // share) * BLOCK)


def _check_is_alike(first: str, expected: Shards, name: str, shards: Shards) -> None:
    for what, wanted, received in (
        ("tokenizer", expected.tokenizer_fingerprint, shards.tokenizer_fingerprint),
        ("sequence length", expected.row_length, shards.row_length),
        ("model sequence length", expected.max_seq_length, shards.max_seq_length),
        ("objective", expected.objective, shards.objective),
        ("⟬line_by_line⟭", expected.line_by_line, shards.line_by_line),
        ("masking settings", expected.noise, shards.noise),
    ):
        if wanted != received:
            raise ConfigError(
                f"The shards {first} and {name} can't be mixed: they differ in the {what}",
                expected=f"{wanted}, as in {first}",
                received=f"{received or 'unknown'} in {name}",
                fix=f"build {name} again with the settings and the tokenizer of {first}",
                field="mixture",
            )


def _check_has_sequences(name: str, shards: Shards) -> None:
    for split in ("train", "validation"):
        if not len(getattr(shards, split)):
            raise ConfigError(
                f"The source {name} of the mixture has no {split} sequences",
                expected="at least one training and one validation sequence in each source",
                received=f"0 {split} sequences",
                fix=f"build {name} from more text or with a larger ⟬validation_percent⟭, or leave "
                "it out",
                field="mixture",
            )


def _check_are_different(names: Sequence[str], opened: Sequence[Shards]) -> None:
    """Raises ConfigError for the same sequences twice: their epochs would not be counted."""
    known: dict[str, str] = {}
    for name, shards in zip(names, opened, strict=True):
        if (same := known.setdefault(shards.fingerprint, name)) != name:
            raise ConfigError(
                f"The sources {same} and {name} of the mixture are the same shards",
                expected="other sequences in each source",
                received=f"two sources with the fingerprint {shards.fingerprint}",
                fix=f"leave {name} out, and give {same} the sum of both weights",
                field="mixture",
            )


def _warn_of_other_splits(
    names: Sequence[str], opened: Sequence[Shards], reporter: Reporter
) -> None:
    shares = {name: _held_out(shards) for name, shards in zip(names, opened, strict=True)}
    if len({round(share, 3) for share in shares.values()}) > 1:
        stated = ", ".join(f"{share:.1%} of {name}" for name, share in shares.items())
        reporter.note(f"The sources of the mixture hold out different shares: {stated}")


def _held_out(shards: Shards) -> float:
    return len(shards.validation) / (len(shards.train) + len(shards.validation))
