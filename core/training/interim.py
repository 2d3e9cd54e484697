"""Evaluates a run's weights on minimal pairs and held-out text while it trains.

The weights are written like a checkpoint and scored by a second model in float32, so that training
is bit-identical with and without evaluations.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from core.config import EvaluateConfig, TrainConfig
from core.errors import StudioError
from core.evaluation.minimal_pairs import score_pairs, summarize_pairs
from core.evaluation.pairs import Pair, read_pairs
from core.evaluation.text import check_text, evaluate_text
from core.events import Reporter, RunStopped
from core.inference.likelihood import TokenScorer

_PREFIX = "evaluate_"
_PAIRS = ("accuracy", "official_accuracy", "mean_over_paradigms", "mean_over_phenomena")
_TEXT = ("loss", "perplexity", "bits_per_byte")
# A file may name any number of phenomena.
_MOST_PHENOMENA = 50
# Names of metrics, as mirrors accept them.
_LONGEST_METRIC = 64
_UNNAMEABLE = re.compile(r"[^\w./:-]")


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
            with _naming_options("evaluate_pairs_path"):
                self._pairs = read_pairs(self._pairs_config, self._reporter)
        if self._text_config:
            with _naming_options("evaluate_text_path"):
                check_text(self._text_config)
        self._scorer: TokenScorer | None = None

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
            with TemporaryDirectory(prefix=".evaluated-", dir=folder) as place:
                write_model(Path(place))
                return self._evaluate(Path(place))
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
            found = summarize_pairs(score_pairs(scorer, self._pairs, self._reporter))
            metrics |= {f"pairs_{name}": found[name] for name in _PAIRS if name in found}
            metrics |= _by_phenomenon(found["by_phenomenon"])
        if self._text_config:
            found = evaluate_text(self._text_config, scorer, self._reporter)
            metrics |= {f"text_{name}": found[name] for name in _TEXT}
        return metrics

    def _open(self, folder: Path) -> TokenScorer:
        """Keeps compiled programs, which take seconds to make."""
        if self._scorer is None:
            self._scorer = TokenScorer(folder)
        else:
            self._scorer.reload(folder)
        return self._scorer


@contextmanager
def _naming_options(path: str) -> Iterator[None]:
    """Names the options of training in errors of the evaluation."""
    try:
        yield
    except StudioError as error:
        name = path if error.field == "path" else f"{_PREFIX}{error.field}"
        error.field = name if name in TrainConfig.model_fields else ""
        raise


class _Messages(Reporter):
    """Passes on warnings once and requests to stop; progress becomes a note."""

    def __init__(self, reporter: Reporter) -> None:
        self._reporter = reporter
        self._warned: set[str] = set()
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
        if message not in self._warned:
            self._warned.add(message)
            self._reporter.warn(message, **fields)

    def raise_if_stopped(self) -> None:
        self._reporter.raise_if_stopped()


def evaluation_configs(
    config: TrainConfig,
) -> tuple[EvaluateConfig | None, EvaluateConfig | None]:
    """Returns the settings for minimal pairs and for text; None if not evaluated.

    Without any path, the minimal pairs of a dataset on the Hub are evaluated.
    """
    shared = {
        name: getattr(config, f"{_PREFIX}{name}")
        for name in EvaluateConfig.model_fields
        if f"{_PREFIX}{name}" in TrainConfig.model_fields
    }
    pairs_path, text_path = config.evaluate_pairs_path, config.evaluate_text_path
    pairs = text = None
    if pairs_path or not text_path:
        pairs = EvaluateConfig(**shared, task="minimal_pairs", path=pairs_path)
    if text_path:
        text = EvaluateConfig(**shared, task="text", path=text_path)
    return pairs, text


def _by_phenomenon(found: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    metrics = {}
    for name, one in list(found.items())[:_MOST_PHENOMENA]:
        metric = f"pairs_accuracy/{_UNNAMEABLE.sub('_', name)}"
        metrics[metric[:_LONGEST_METRIC]] = one["accuracy"]
    return metrics
