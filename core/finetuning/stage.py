"""The fine-tuning stage."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from core.architecture.architecture import Architecture
from core.architecture.heads import Kind
from core.artifacts.model_tokenizer import MOST_TOKENS, load_tokenizer, longest_sequence
from core.artifacts.subject import Subject, open_subject
from core.config.finetune import FinetuneConfig
from core.finetuning.data import read_splits
from core.finetuning.encoding import TextEncoder
from core.finetuning.examples import Example, Splits
from core.finetuning.glue import with_glue
from core.finetuning.heads import find_head
from core.finetuning.names import RANDOM_INIT
from core.finetuning.saving import (
    ClassifierConfig,
    Weights,
    begins_without_head,
    check_loadable,
    is_classifier,
    read_body_weights,
    write_classifier,
    write_tokenizer,
)
from core.finetuning.search import SearchResult, count_trainings, search
from core.finetuning.session import Session, train_config
from core.finetuning.subjects import check_tunable
from core.finetuning.target_scale import in_original_units
from core.finetuning.tasks import Prepared, Task, make_task
from core.finetuning.training import Progress, Trainer
from core.models import hf
from core.records.events import Reporter
from core.records.utilisation import UtilisationLog
from core.tokenizer.loading import StudioTokenizer
from core.workspace.manifests import Artifact
from core.workspace.names import name_from
from core.workspace.workspace import Workspace

REPORT_FILE = "finetuning.json"


def run(config: FinetuneConfig, workspace: Workspace, reporter: Reporter | None = None) -> Artifact:
    """Fine-tunes a model, and the same architecture from random weights.

    Returns:
        The model with the best development score; its counts are the results.

    Raises:
        ConfigError, CorpusError, HubError: The model or the data are missing or don't fit.
        RunStopped: The reporter requested it; nothing is kept.
    """
    reporter = reporter or Reporter()
    config = with_glue(config)
    name = config.name or derive_name(config)
    if config.name:
        workspace.check_new_name("model", name)
    kind: Kind = "token" if config.task == "token_classification" else "sequence"
    with open_subject(config.model, workspace, reporter) as subject:
        check_tunable(subject.folder, kind, subject.name)
        reporter.progress(0, None, "", "reading examples")
        splits = read_splits(config, reporter.warn)
        tuning = _Finetuning(config, kind, subject, splits, reporter)
        results = tuning.run()
        with workspace.new_artifact("model", name, exact=bool(config.name)) as draft:
            tuning.write(draft.folder)
            (draft.folder / REPORT_FILE).write_text(
                json.dumps(results, indent=2, ensure_ascii=False) + "\n", "utf-8"
            )
            draft.counts = results
            draft.config = config.model_dump(mode="json")
            draft.inputs = {
                "model": subject.fingerprint,
                "tokenizer": tuning.tokenizer.fingerprint,
            }
            draft.run = reporter.folder.name if reporter.folder else ""
    assert draft.artifact is not None
    return draft.artifact


def derive_name(config: FinetuneConfig) -> str:
    """Returns a default name such as my-model-sentiment."""
    data = config.glue or Path(config.train_path).stem or config.dataset_name.rpartition("/")[2]
    return name_from(Path(config.model).name, data, fallback="task", longest=40)


class _Finetuning:
    def __init__(
        self,
        config: FinetuneConfig,
        kind: Kind,
        subject: Subject,
        splits: Splits,
        reporter: Reporter,
    ) -> None:
        architecture = hf.read_architecture(subject.folder, has_head=False)
        self._config = config.for_width(architecture.hidden_size)
        self._subject = subject
        self._splits = splits
        self._reporter = reporter
        self._head = find_head(architecture, kind)
        self._task: Task = make_task(config, splits, adds_constant=self._head.adds_constant)
        if self._task.note:
            reporter.warn(self._task.note)
        names = self._task.labels.names if self._task.labels else ()
        self._classifier = ClassifierConfig(architecture, kind, names)
        check_loadable(self._classifier)
        self.tokenizer: StudioTokenizer = load_tokenizer(subject.folder, architecture.vocab_size)
        self._uses_segments = _are_pairs(splits) and architecture.type_vocab_size > 1
        self._longest = self._find_longest(architecture, kind)
        self._pretrained: SearchResult | None = None

    def _find_longest(self, architecture: Architecture, kind: Kind) -> int:
        longest = longest_sequence(architecture, self.tokenizer)
        if is_classifier(self._subject.folder):  # Its tokenizer names the length of its training.
            longest = max(longest, min(architecture.max_seq_length, MOST_TOKENS))
        wanted = self._config.max_seq_length
        if longest < wanted:
            cut = "Sentences are split" if kind == "token" else "Texts are cut"
            is_set = wanted != FinetuneConfig.model_fields["max_seq_length"].default
            instead = f", not the {wanted:,} that are set" if is_set else ""
            self._reporter.warn(f"{cut} at {longest:,} tokens, the model's maximum length{instead}")
        return min(longest, wanted)

    def run(self) -> dict[str, Any]:
        from core.backends.precision import choose_precision
        from core.backends.selection import select_backend

        started = time.monotonic()
        settings = train_config(self._config)
        devices = select_backend(settings)
        policy = str(settings.dtype_policy)
        if policy == "auto":
            policy, why = choose_precision(devices)
            self._reporter.note(f"Precision: {why}")
        resolved = {"engine": devices.engine, "device": devices.kind, "dtype_policy": policy,
                    "learning_rates": self._config.learning_rates}  # fmt: skip
        self._reporter.event("resolved", settings=resolved)
        encoder = TextEncoder(
            self.tokenizer,
            self._classifier.architecture,
            self._head,
            self._longest,
            uses_segments=self._uses_segments,
        )
        train, validation, test = self._prepare(encoder)
        weights = read_body_weights(self._subject.folder, self._classifier.architecture, self._head)
        if begins_without_head(weights, self._classifier.architecture, self._head):
            self._reporter.warn(
                "The model has no language-model head, of which its classifier keeps a part: this "
                "part begins with random weights"
            )
        session = Session(self._config, self._classifier, devices, encoder.longest, policy)
        trainer = self._trainer(session, train, validation, test)
        with UtilisationLog(self._reporter, lambda: trainer.steps_done):
            self._pretrained = search(
                trainer, self._config, weights, "fine-tuning the model", keep=True
            )
            random = search(trainer, self._config, {}, "fine-tuning random weights", keep=False)
        return {
            **self._results(test, self._pretrained, random),
            "device": devices.describe(),
            "seconds": round(time.monotonic() - started, 2),
        }

    def write(self, folder: Path) -> None:
        """Writes the best model and its tokenizer."""
        assert self._pretrained is not None and self._pretrained.best.weights is not None
        weights: Weights = self._pretrained.best.weights
        if self._task.scale:
            weights = in_original_units(weights, self._classifier, self._task.scale)
        write_classifier(folder, weights, self._classifier)
        write_tokenizer(folder, self.tokenizer, segments=self._uses_segments, longest=self._longest)

    def _prepare(self, encoder: TextEncoder) -> tuple[Prepared, Prepared, Prepared]:
        splits, prepare = self._splits, self._task.prepare
        validation = prepare(splits.validation, encoder)
        is_same = splits.test is splits.validation
        test = validation if is_same else prepare(splits.test, encoder)
        return prepare(splits.train, encoder), validation, test

    def _trainer(
        self, session: Session, train: Prepared, validation: Prepared, test: Prepared
    ) -> Trainer:
        steps = -(-len(train.data) // session.batch_size) * self._config.num_train_epochs
        progress = Progress(self._reporter, 2 * count_trainings(self._config) * steps)
        return Trainer(session, self._task, train, validation, test, progress)

    def _results(
        self, test: Prepared, pretrained: SearchResult, random: SearchResult
    ) -> dict[str, Any]:
        per_seed = [self._task.measure(test, run.outputs) for run in pretrained.trained]
        of_random = [self._task.measure(test, run.outputs) for run in random.trained]
        majority = self._task.baseline(self._splits.train, self._splits.test)
        return {
            **_summary("", per_seed),
            **{f"majority_{name}": value for name, value in majority.items()},
            **_summary(RANDOM_INIT, of_random),
            **_means("eval_", [run.validation for run in pretrained.trained]),
            "metric": self._task.metric,
            "task": self._config.task,
            "model": self._subject.name,
            "labels": list(self._classifier.labels),
            "learning_rate": pretrained.learning_rate,
            f"{RANDOM_INIT}learning_rate": random.learning_rate,
            "learning_rates": {f"{rate:g}": score for rate, score in pretrained.rates.items()},
            "per_seed": [
                {
                    "seed": run.seed,
                    "epoch": run.epoch,
                    "validation": run.validation,
                    "test": test_metrics,
                }
                for run, test_metrics in zip(pretrained.trained, per_seed, strict=True)
            ],
            "train_examples": len(self._splits.train),
            "validation_examples": len(self._splits.validation),
            "test_examples": len(self._splits.test),
            "test_name": self._splits.test_name,
        }


def _summary(prefix: str, results: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Returns the mean over seeds of each metric, and the spread if there are several."""
    summary = _means(prefix, results)
    if len(results) > 1:
        for name in results[0]:
            summary[f"{prefix}{name}_std"] = stdev(metrics[name] for metrics in results)
    return summary


def _means(prefix: str, results: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {f"{prefix}{name}": fmean(metrics[name] for metrics in results) for name in results[0]}


def _are_pairs(splits: Splits) -> bool:
    first = splits.train[0]
    return isinstance(first, Example) and len(first.texts) > 1
