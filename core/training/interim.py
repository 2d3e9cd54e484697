"""Evaluates a run's weights on minimal pairs and held-out text while it trains.

The weights are written like a checkpoint and scored by a second model in float32, so that training
is bit-identical with and without evaluations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from core.config.evaluate import EvaluateConfig
from core.config.train import TrainConfig
from core.errors import StudioError
from core.evaluation.documents import check_text, no_text_error, read_documents
from core.evaluation.minimal_pairs import score_pairs, summarize_pairs
from core.evaluation.names import metric_names
from core.evaluation.pairs import Pair, read_pairs
from core.evaluation.text import evaluate_text
from core.inference.likelihood import TokenScorer
from core.records.events import Reporter, RunStopped
from core.training.interim_options import evaluation_configs, naming_options

_PAIRS = ("accuracy", "official_accuracy", "mean_over_paradigms", "mean_over_phenomena")
_TEXT = ("loss", "perplexity", "bits_per_byte")
# The data may name any number of phenomena and sources.
_MOST_CURVES = 50
_DOCUMENTS_BETWEEN_REPORTS = 1000


class InterimEvaluation:
    """Evaluates weights of one run; minimal pairs are read once.

    Raises:
        ConfigError, CorpusError, HubError: The data can't be read.
    """

    def __init__(self, config: TrainConfig, reporter: Reporter) -> None:
        self._reporter = _Messages(reporter)
        self._pairs_config, self._text_config = evaluation_configs(config)
        self._pairs: list[Pair] = []
        if self._pairs_config:
            with naming_options(self._pairs_config):
                self._pairs = read_pairs(self._pairs_config, self._reporter)
        self._documents: list[tuple[str, list[str]]] | None = None
        if self._text_config:
            with naming_options(self._text_config):
                self._documents = self._read_dataset(self._text_config)
        self._scorer: TokenScorer | None = None

    def _read_dataset(self, config: EvaluateConfig) -> list[tuple[str, list[str]]] | None:
        """Reads a dataset on the Hub, which may be out of reach later; None for files."""
        if config.path:
            check_text(config)
            return None
        documents = [(name, self._read_all(texts)) for name, texts in read_documents(config)]
        if not any(texts for _, texts in documents):
            raise no_text_error(config)
        return documents

    def _read_all(self, texts: Iterator[str]) -> list[str]:
        read_texts = []
        for number, text in enumerate(texts):
            if number % _DOCUMENTS_BETWEEN_REPORTS == 0:
                self._reporter.raise_if_stopped()
            read_texts.append(text)
        return read_texts

    def run(
        self, folder: Path, write_model: Callable[[Path], None], note: Callable[[str], None]
    ) -> dict[str, float] | None:
        """Returns a model's figures; None after a failure, which is a warning, or a stop request.

        Args:
            folder: Holds the weights for a moment.
            write_model: Writes the weights and the tokenizer into a folder.
            note: Shows progress.
        """
        self._reporter.show = note
        try:
            with TemporaryDirectory(prefix=".evaluated-", dir=folder) as draft:
                write_model(Path(draft))
                return self._evaluate(Path(draft))
        except RunStopped:
            return None
        except (StudioError, OSError) as error:
            self._reporter.warn(
                f"The evaluation failed; training continues: {error}", alert="evaluation_failed"
            )
            return None

    def _evaluate(self, folder: Path) -> dict[str, float]:
        scorer = self._open(folder)
        metrics: dict[str, float] = {}
        if self._pairs:
            results = summarize_pairs(score_pairs(scorer, self._pairs, self._reporter))
            metrics |= {f"pairs_{name}": results[name] for name in _PAIRS if name in results}
            metrics |= self._by_part("pairs", ["accuracy"], results["by_phenomenon"])
        if self._text_config:
            results = evaluate_text(self._text_config, scorer, self._reporter, self._documents)
            metrics |= {f"text_{name}": results[name] for name in _TEXT}
            if len(results["by_source"]) > 1:
                metrics |= self._by_part("text", _TEXT, results["by_source"])
        return metrics

    def _by_part(
        self, prefix: str, figures: Sequence[str], by_part: Mapping[str, Mapping[str, Any]]
    ) -> dict[str, float]:
        parts = list(by_part)[:_MOST_CURVES]
        if len(by_part) > len(parts):
            self._reporter.note(
                f"Of {len(by_part):,} parts of the {prefix}, the first {len(parts)} have curves"
            )
        return {
            metric: by_part[part][figure]
            for figure in figures
            for part, metric in metric_names(f"{prefix}_{figure}", parts).items()
        }

    def _open(self, folder: Path) -> TokenScorer:
        """Keeps compiled programs, which take seconds to make."""
        if self._scorer is None:
            self._scorer = TokenScorer(folder)
        else:
            self._scorer.reload(folder)
        return self._scorer


class _Messages(Reporter):
    """Passes on warnings and notes once, and requests to stop; progress becomes a note."""

    def __init__(self, reporter: Reporter) -> None:
        self._reporter = reporter
        self._told: set[str] = set()
        self.show: Callable[[str], None] = lambda note: None

    def progress(
        self,
        done: float,
        total: float | None = None,
        unit: str = "",
        note: str = "",
        eta_seconds: float | None = None,
    ) -> None:
        of = f" of {total:,.0f}" if total else ""
        self.show(f"evaluating, {done:,.0f}{of} {unit}")

    def warn(self, message: str, **fields: Any) -> None:
        if message not in self._told:
            self._told.add(message)
            self._reporter.warn(message, **fields)

    def note(self, message: str, **fields: Any) -> None:
        if message not in self._told:
            self._told.add(message)
            self._reporter.note(message, **fields)

    def raise_if_stopped(self) -> None:
        self._reporter.raise_if_stopped()
