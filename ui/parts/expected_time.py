"""The expected time of an evaluation or a fine-tuning, on a CPU of this machine."""

from __future__ import annotations

from core.architecture.architecture import Architecture
from core.backends.devices import choose, find_hardware
from core.config.evaluate import EvaluateConfig
from core.config.finetune import FinetuneConfig
from core.config.train import TrainConfig
from core.corpus.table_preview import TablePreview
from core.errors import StudioError
from core.finetuning.search import count_trainings
from core.models.registry import count_parameters
from core.tokenizer.loading import StudioTokenizer
from core.training.planner import expected_cpu_speed, seconds_for
from ui.parts import markup

_UNKNOWN = "unknown"
_MOST_CONTEXT = 512
# A backend's import, and the compilation of a step.
_START_SECONDS = 10.0
_COMPILE_SECONDS = 5.0
_CHARACTERS_PER_TOKEN = 4.0


def finetuning_time(
    config: FinetuneConfig,
    seen: TablePreview,
    model: Architecture,
    tokenizer: StudioTokenizer | None,
) -> str:
    """Describes how long the trainings take; batches are as long as the longest text."""
    settings = TrainConfig.parse({"engine": config.engine, "device": config.device})
    if not _computes_on_cpu(settings):
        return _UNKNOWN
    longest = min(config.max_seq_length, seen.longest / _characters_per_token(seen, tokenizer) + 2)
    examples = min(seen.count, config.limit or seen.count)
    trainings = 2 * count_trainings(config)
    tokens = trainings * config.num_train_epochs * examples * longest
    seconds = seconds_for(tokens, 6 * _body(model), expected_cpu_speed())
    return _describe(seconds + _START_SECONDS + trainings * _COMPILE_SECONDS, seen)


def evaluation_time(
    config: EvaluateConfig,
    seen: TablePreview,
    model: Architecture,
    tokenizer: StudioTokenizer | None,
) -> str:
    """Describes how long the scoring takes; encoders mask each token in turn."""
    if not _computes_on_cpu(TrainConfig()):
        return _UNKNOWN
    tokens = seen.characters / _characters_per_token(seen, tokenizer)
    pieces = seen.count * (2 if config.task == "minimal_pairs" else 1)
    window = min(_MOST_CONTEXT, model.max_seq_length, tokens / max(1, pieces) + 2)
    passes = window if model.kind == "encoder" else 1.0
    head = model.vocab_size * model.hidden_size
    flops = 2 * (_body(model) * passes + head)
    return _describe(seconds_for(tokens, flops, expected_cpu_speed()) + _START_SECONDS, seen)


def _computes_on_cpu(config: TrainConfig) -> bool:
    try:
        return choose(config, find_hardware()).kind == "cpu"
    except StudioError:
        return False


def _body(model: Architecture) -> int:
    return count_parameters(model) - model.vocab_size * model.hidden_size


def _characters_per_token(seen: TablePreview, tokenizer: StudioTokenizer | None) -> float:
    text = " ".join(seen.texts)
    if tokenizer is None or not text:
        return _CHARACTERS_PER_TOKEN
    return len(text) / max(1, len(tokenizer.encode(text)))


def _describe(seconds: float, seen: TablePreview) -> str:
    return ("" if seen.complete else "more than ") + markup.rough_duration(seconds)
