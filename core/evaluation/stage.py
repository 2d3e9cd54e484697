"""The evaluation stage."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from core.artifacts.subject import Subject, open_subject
from core.config.evaluate import EvaluateConfig
from core.evaluation.minimal_pairs import score_pairs, summarize_pairs
from core.evaluation.pairs import read_pairs
from core.evaluation.text import evaluate_text
from core.evaluation.unused import check_used
from core.inference.likelihood import TokenScorer
from core.records.events import Reporter
from core.records.utilisation import UtilisationLog, seconds_as_steps
from core.workspace.manifests import Artifact
from core.workspace.names import name_from
from core.workspace.workspace import Draft, Workspace

REPORT_FILE = "evaluation.json"
PAIRS_FILE = "pairs.jsonl"


def run(config: EvaluateConfig, workspace: Workspace, reporter: Reporter | None = None) -> Artifact:
    """Evaluates a model.

    Returns:
        The figures as counts; `pairs.jsonl` has the scores of each pair.

    Raises:
        ConfigError, CorpusError, HubError: The model or the data can't be read or don't fit.
        RunStopped: The reporter requested it.
    """
    reporter = reporter or Reporter()
    check_used(config)
    name = config.name or derive_name(config)
    with (
        UtilisationLog(reporter, seconds_as_steps()),
        open_subject(config.model, workspace, reporter) as subject,
        workspace.new_artifact("evaluation", name, exact=bool(config.name)) as draft,
    ):
        scorer = TokenScorer(subject.folder)
        started = time.monotonic()
        figures = _evaluate(config, scorer, draft, reporter)
        seconds = time.monotonic() - started
        draft.counts = {**figures, **_about(config, subject, scorer, seconds)}
        # Cards name the dataset, also the default one.
        draft.config = {**config.model_dump(mode="json"), "dataset_name": config.dataset}
        draft.inputs = {"model": subject.fingerprint, "tokenizer": scorer.tokenizer.fingerprint}
        draft.run = reporter.folder.name if reporter.folder else ""
        _write(draft.folder / REPORT_FILE, draft.counts)
    assert draft.artifact is not None
    return draft.artifact


def derive_name(config: EvaluateConfig) -> str:
    """Returns a default name such as my-model-blimp."""
    data = Path(config.path).stem if config.path else config.dataset.rpartition("/")[2]
    return name_from(Path(config.model).name, data, fallback="evaluation")


def _evaluate(
    config: EvaluateConfig, scorer: TokenScorer, draft: Draft, reporter: Reporter
) -> dict[str, Any]:
    if config.task == "text":
        return evaluate_text(config, scorer, reporter)
    pairs = read_pairs(config, reporter)
    scored = score_pairs(scorer, pairs, reporter)
    lines = (json.dumps(pair.to_json(), ensure_ascii=False) for pair in scored)
    (draft.folder / PAIRS_FILE).write_text("\n".join(lines) + "\n", "utf-8")
    return summarize_pairs(scored)


def _about(
    config: EvaluateConfig, subject: Subject, scorer: TokenScorer, seconds: float
) -> dict[str, Any]:
    checkpoint = {"model_run": subject.run, "step": subject.step} if subject.run else {}
    return {
        "task": config.task,
        "model": subject.name,
        **checkpoint,
        "score": scorer.method,
        "seconds": round(seconds, 2),
    }


def _write(path: Path, values: dict[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=2, ensure_ascii=False) + "\n", "utf-8")
