"""Options of evaluations during training, in terms of the stage that evaluates."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from core.config.evaluate import OF_DATASETS, EvaluateConfig, names_in_training
from core.config.train import TrainConfig
from core.config.values import changed_values, unused_error
from core.errors import ConfigError, StudioError
from core.evaluation.unused import find_unused
from core.messages.mentions import rename

_PREFIX, _TEXT_PREFIX = "evaluate_", "evaluate_text_"
# They decide whether evaluations take place.
_SWITCHES = ("evaluate_every", "evaluate_only")


def evaluation_configs(
    config: TrainConfig,
) -> tuple[EvaluateConfig | None, EvaluateConfig | None]:
    """Returns the settings for minimal pairs and for text; None if not evaluated.

    Without a path or a dataset of text, the minimal pairs of a dataset on the Hub are evaluated.
    """
    pairs, text = config.evaluation("minimal_pairs"), config.evaluation("text")
    has_text = bool(text.path or text.dataset)
    return None if has_text and not pairs.path else pairs, text if has_text else None


def check_used(config: TrainConfig) -> None:
    """Raises ConfigError for an option of evaluations during training that would be ignored."""
    changed = [
        name
        for name in changed_values(config)
        if name.startswith(_PREFIX) and name not in _SWITCHES
    ]
    if not changed or config.evaluate_only:
        return
    if not config.evaluate_every:
        raise ConfigError(
            f"⟬{changed[0]}⟭ has no effect without ⟬evaluate_every⟭: nothing is evaluated during "
            "training",
            expected="a number of steps between evaluations",
            received=f"⟬{changed[0]}={getattr(config, changed[0])!r}⟭ and no ⟬evaluate_every⟭",
            fix="set ⟬evaluate_every⟭, or leave out "
            + " and ".join(f"⟬{name}⟭" for name in changed),
            field="evaluate_every",
        )
    reasons = _reasons(config)
    for name in changed:
        if name in reasons:
            raise unused_error(name, getattr(config, name), reasons[name])


def _reasons(config: TrainConfig) -> dict[str, str]:
    """Returns the options without effect, and some that have their default, with reasons."""
    pairs, text = evaluation_configs(config)
    reasons: dict[str, str] = {}
    if pairs is None:
        reason = "on held-out text; beside it, minimal pairs are read from ⟬evaluate_pairs_path⟭"
        reasons |= {f"{_PREFIX}{name}": reason for name in OF_DATASETS}
    if text is None:
        reason = "without ⟬evaluate_text_dataset_name⟭"
        reasons |= {f"{_TEXT_PREFIX}{name}": reason for name in OF_DATASETS}
    unused = []
    for evaluation in filter(None, (pairs, text)):
        names = names_in_training(evaluation.task)
        with naming_options(evaluation):
            unused.append(find_unused(evaluation))
        if evaluation.path:
            reason = f"together with ⟬{names['path']}⟭, whose files are read instead"
            reasons |= {names[name]: reason for name in OF_DATASETS}
    for name in set.intersection(*map(set, unused)) - set(OF_DATASETS):
        reasons[f"{_PREFIX}{name}"] = " and ".join(
            dict.fromkeys(of_evaluation[name] for of_evaluation in unused)
        )
    return reasons


@contextmanager
def naming_options(config: EvaluateConfig) -> Iterator[None]:
    """Names the options of training in errors of an evaluation."""
    try:
        yield
    except StudioError as error:
        names = names_in_training(config.task)
        texts = {part: rename(text, names) for part, text in error.texts.items()}
        raise type(error).like(error, **texts, field=names.get(error.field, "")) from error
