"""The plan of pretraining: settings with reasons, the time, and what speaks against it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from core.automatic.rules import (
    Choice,
    choose_sequence_length,
    choose_validation_percent,
    choose_vocab_size,
)
from core.config.pretrain import PretrainConfig
from core.config.train import TrainConfig
from core.messages.mentions import render
from core.pretraining.look import CorpusLook, look_at
from core.pretraining.reading import readable
from core.pretraining.stages import pretrain_stages
from core.training.automatic import forecast
from core.workspace.workspace import Workspace

# A process for each stage that loads its libraries.
_START_SECONDS = 25.0
# Cleaning, counting of words and tokenising, all together.
_BYTES_PER_SECOND = 2_000_000
# Text whose size is unknown, such as a dataset on the Hub.
_ASSUMED_BYTES = 100_000_000
_BYTES_PER_TOKEN = 4.0
_LEAST_TOKENS = 3_000
# Share of the documents with undecodable characters; more come from another encoding.
_MOST_DAMAGED = 0.2
LEAST_STEPS = 200
LEAST_VALIDATION_SEQUENCES = 8


@dataclass(frozen=True)
class Setting:
    """A value that a stage will use, and why."""

    stage: str
    field: str
    value: Any
    reason: str


@dataclass(frozen=True)
class PlanWarning:
    """Something that keeps the model from learning, and the change that helps.

    Attributes:
        text: A sentence in which mentions of options are marked.
        changes: Values by field of `PretrainConfig`; empty: only other text helps.
    """

    text: str
    changes: Mapping[str, Any]

    @property
    def sentence(self) -> str:
        return render(self.text)

    def with_flags(self) -> str:
        """Returns the sentence for the command line, with the change as flags."""
        changes = [f"{_flag(name)} {value:g}" for name, value in self.changes.items()]
        text = render(self.text, lambda mention: _flag(mention.name))
        return f"{text}. What helps: {', '.join(changes)}" if changes else text


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


@dataclass(frozen=True)
class PretrainPlan:
    """The settings, the duration and the warnings of pretraining.

    Attributes:
        seconds: Estimate for all stages.
        warnings: Empty if the model will probably learn.
        is_learnable: Whether more time may help, because there is something to learn.
    """

    look: CorpusLook
    settings: tuple[Setting, ...]
    size: str
    num_train_steps: int
    seconds: float
    warnings: tuple[PlanWarning, ...]
    is_learnable: bool = True

    def describe(self) -> str:
        """Says in a few words what the text is good for."""
        return self.judge(describe_duration(self.seconds))

    def judge(self, duration: str) -> str:
        """Says it with a duration in the words of a page."""
        if not self.is_learnable:
            return "A model would learn nothing useful from it"
        return f"Good for a {self.size} model, about {duration}"

    def lines(self) -> list[str]:
        """Describes the text, the plan, each setting with its reason, and what is against it."""
        look = self.look
        amount = "{:,} {}, ".format(*look.amount) if look.amount else ""
        about = ", ".join(filter(None, (look.language, f"{look.script} script")))
        return [
            f"{amount}{about}",
            *(f"note: {remark}" for remark in look.remarks),
            self.describe(),
            *(f"  {setting.field} {setting.value}: {setting.reason}" for setting in self.settings),
            *self.warning_lines(),
        ]

    def warning_lines(self) -> list[str]:
        """Describes what is against it, with the flags that help."""
        return [f"warning: {warning.with_flags()}" for warning in self.warnings]

    def to_dict(self) -> dict[str, Any]:
        """Returns JSON values."""
        warnings = [
            {"sentence": warning.sentence, "changes": dict(warning.changes)}
            for warning in self.warnings
        ]
        return {**asdict(self), "warnings": warnings}


def describe_duration(seconds: float) -> str:
    """Writes a duration as a person would, such as 6 minutes."""
    if seconds < 90:
        return "1 minute"
    if seconds < 5400:
        return f"{round(seconds / 60)} minutes"
    return f"{seconds / 3600:.1f} hours"


def plan_pretraining(config: PretrainConfig, workspace: Workspace) -> PretrainPlan:
    """Plans all stages after a look at the text; starts nothing.

    Raises:
        ConfigError, CorpusError: There is no readable text.
    """
    corpus, why_paragraphs = readable(config.corpus, workspace)
    config = config.model_copy(update={"corpus": corpus})
    look = look_at(config.corpus, workspace)
    size = round((look.total_bytes or _ASSUMED_BYTES) * look.distinct_share)
    vocabulary = choose_vocab_size(_letters_of(look, size), look.alphabet)
    length = choose_sequence_length(look.total_bytes)
    percent = _percent(config, look)
    tokens = _tokens_of(look, size)
    held_out = round(tokens * percent.value / 100)
    training = next(
        stage_config
        for stage, stage_config in pretrain_stages(config, workspace, {})
        if stage == "train"
    )
    assert isinstance(training, TrainConfig)
    sequences = max(1, (tokens - held_out) // length.value)
    prediction = forecast(
        training, workspace, vocab_size=vocabulary.value, row_length=length.value,
        sequences=sequences, documents=look.documents or 0,
    )  # fmt: skip
    settings = (
        *(
            [Setting("clean", "text_unit", corpus.text_unit, why_paragraphs)]
            if why_paragraphs
            else ()
        ),
        Setting("clean", "validation_percent", percent.value, percent.reason),
        Setting("tokenizer", "vocab_size", vocabulary.value, vocabulary.reason),
        Setting("shards", "max_seq_length", length.value, length.reason),
        *(
            Setting("train", name, choice.value, choice.reason)
            for name, choice in prediction.choices.items()
        ),
    )
    return PretrainPlan(
        look,
        settings,
        prediction.size,
        prediction.num_train_steps,
        _START_SECONDS + size / _BYTES_PER_SECOND + prediction.seconds,
        tuple(
            _warnings(look, tokens, held_out // length.value, prediction.num_train_steps, config)
        ),
        is_learnable=tokens >= _LEAST_TOKENS and not (look.is_random or _is_misread(look)),
    )


def _letters_of(look: CorpusLook, size: int) -> int:
    return size if look.letters is None else round(look.letters * look.distinct_share)


def _tokens_of(look: CorpusLook, size: int) -> int:
    per_letter = size / max(1, _letters_of(look, size))
    # Letters of several bytes, such as Chinese ones, make tokens of more bytes.
    return round(size / (_BYTES_PER_TOKEN if per_letter < 2 else _BYTES_PER_TOKEN + 1))


def _percent(config: PretrainConfig, look: CorpusLook) -> Choice:
    if (given := config.corpus.validation_percent) is not None:
        return Choice(given, "as set")
    return choose_validation_percent(None if config.corpus.limit else look.total_bytes)


def _warnings(
    look: CorpusLook, tokens: int, held_out: int, steps: int, config: PretrainConfig
) -> list[PlanWarning]:
    warnings = []
    if tokens < _LEAST_TOKENS:
        none_held_out = (
            "" if held_out else ". No sequence is held out; ⟬validation_percent=30⟭ may be enough"
        )
        warnings.append(
            PlanWarning(
                f"The text is too small to learn a language from: about {tokens:,} tokens. Add "
                f"text: 50 kB, about 10 pages, give a first result{none_held_out}",
                {},
            )
        )
    elif steps < LEAST_STEPS:
        warnings.append(few_steps(steps, {"minutes": enough_minutes(steps, config.minutes)}))
    if tokens >= _LEAST_TOKENS and held_out < LEAST_VALIDATION_SEQUENCES:
        warnings.append(few_validation_sequences(held_out))
    if _is_misread(look):
        warnings.append(
            PlanWarning(
                f"{look.damaged_share:.0%} of the documents have undecodable characters: set "
                "⟬encoding⟭ to the one of the text, such as cp932 or gb18030",
                {},
            )
        )
    elif look.is_random:
        warnings.append(
            PlanWarning("The letters look random, so that no model can learn from their order", {})
        )
    return warnings


def _is_misread(look: CorpusLook) -> bool:
    return look.damaged_share >= _MOST_DAMAGED


def few_steps(steps: int, changes: Mapping[str, Any]) -> PlanWarning:
    """Warns of a training that ends before the model has learned."""
    return PlanWarning(
        f"{steps:,} training steps are too few to learn from; {LEAST_STEPS} are the least",
        changes,
    )


def enough_minutes(steps: int, minutes: float) -> float:
    """Returns the time budget that gives enough steps."""
    return float(math.ceil(minutes * LEAST_STEPS / max(1, steps)))


def few_validation_sequences(count: int) -> PlanWarning:
    """Warns of a validation loss that is rough."""
    return PlanWarning(
        f"Only {count} sequences are held out, so that the validation loss will be rough. A larger "
        "⟬validation_percent⟭ or more text helps",
        {},
    )
