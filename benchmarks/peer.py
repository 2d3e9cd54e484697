"""The peers in training: transformers on PyTorch, in the mode that is its fastest here.

Scaled-dot-product attention and fused AdamW are always best. Whether bfloat16 autocast and
`torch.compile` are depends on the machine, so that they are timed, in turn. An expert's PyTorch
has Muon for the weights of the blocks, an output bias at the tokens' frequencies, and an encoder's
head at the masked positions only.

Source: https://kellerjordan.github.io/posts/muon/
"""

from __future__ import annotations

import itertools
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

_ROUNDS, _STEPS = 3, 2
_ADAMW_RATE = 3e-3


@dataclass(frozen=True)
class Mode:
    """How PyTorch computes a step.

    Attributes:
        narrow: In bfloat16, by autocast.
        compiled: With `torch.compile`.
    """

    narrow: bool
    compiled: bool

    def __str__(self) -> str:
        precision = "bfloat16" if self.narrow else "float32"
        return f"{precision}, compiled" if self.compiled else precision


EVERY_MODE = tuple(Mode(*one) for one in itertools.product((False, True), repeat=2))


def peer_model(size: str, vocab_size: int, length: int, pad_id: int, dropout: float) -> Any:
    """Returns the peer's model, ready to train, with the dimensions that ours has at a size."""
    from transformers import RobertaForMaskedLM

    config = peer_config(size, vocab_size, length, pad_id, dropout)
    return RobertaForMaskedLM._from_config(config, attn_implementation="sdpa").train()


def peer_decoder(
    family: str, size: str, vocab_size: int, length: int, pad_id: int, dropout: float
) -> Any:
    """Returns the peer's decoder, ready to train, with the dimensions that ours has at a size."""
    from transformers import AutoConfig, AutoModelForCausalLM

    from core.config.train import TrainConfig
    from core.models.configs import config_values
    from core.models.registry import resolve_architecture

    config = TrainConfig(
        family=family,
        size=size,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
    )
    architecture = resolve_architecture(
        config, vocab_size=vocab_size, row_length=length, pad_id=pad_id
    )
    values = config_values(architecture)
    theirs = AutoConfig.for_model(values.pop("model_type"), **values)
    return AutoModelForCausalLM.from_config(theirs, attn_implementation="sdpa").train()


def peer_config(
    size: str, vocab_size: int, length: int, pad_id: int, dropout: float, **more: Any
) -> Any:
    """Returns a RoBERTa's config with the dimensions that ours has at a size."""
    from transformers import RobertaConfig

    from core.architecture.family import SIZES

    layers, width = SIZES[size]  # type: ignore[index]
    return RobertaConfig(
        vocab_size=vocab_size,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=width // 64,
        intermediate_size=4 * width,
        max_position_embeddings=length + pad_id + 1,
        pad_token_id=pad_id,
        type_vocab_size=1,
        layer_norm_eps=1e-5,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
        **more,
    )


def peer_step(
    model: Any, optimizer: Any, mode: Mode, predicted: int | None = None
) -> Callable[[Any, Any], Any]:
    """Returns a function that trains on ids and labels, (batch, length), and returns the loss.

    Args:
        optimizer: One of PyTorch's, or `ExpertOptimizer`.
        predicted: Positions with labels in each sequence, whose logits alone are computed; None:
            all logits are computed, as transformers does.
    """
    import torch

    device = next(model.parameters()).device.type

    def loss_of(ids: Any, labels: Any) -> Any:
        if predicted is None:
            return model(ids, labels=labels).loss
        places = (labels >= 0).int().topk(predicted, dim=1).indices
        hidden = model.roberta(ids)[0]
        chosen = hidden.gather(1, places[..., None].expand(-1, -1, hidden.shape[-1]))
        logits = model.lm_head(chosen).float()
        return torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), labels.gather(1, places).flatten()
        )

    run = torch.compile(loss_of) if mode.compiled else loss_of

    def step(ids: Any, labels: Any) -> Any:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device, torch.bfloat16, enabled=mode.narrow):
            loss = run(ids, labels)
        loss.backward()
        optimizer.step()
        return loss

    return step


class ExpertOptimizer:
    """Muon for the matrices of the blocks, AdamW for everything else.

    Args:
        rate: Muon's learning rate.
        beta2: AdamW's.

    Attributes:
        param_groups: Each has its peak learning rate as `peak`.
    """

    def __init__(self, model: Any, rate: float, beta2: float) -> None:
        import torch

        matrices, rest = [], []
        for name, parameter in model.named_parameters():
            is_matrix = parameter.dim() == 2 and "embed" not in name and "head" not in name
            (matrices if is_matrix else rest).append(parameter)
        self._optimizers = [
            torch.optim.Muon(matrices, lr=rate, weight_decay=0.01, momentum=0.95),
            torch.optim.AdamW(
                rest, lr=_ADAMW_RATE, betas=(0.9, beta2), weight_decay=0.0, fused=True
            ),
        ]
        self.param_groups = [
            group for optimizer in self._optimizers for group in optimizer.param_groups
        ]
        for group in self.param_groups:
            group["peak"] = group["lr"]

    def zero_grad(self, *, set_to_none: bool) -> None:
        for optimizer in self._optimizers:
            optimizer.zero_grad(set_to_none=set_to_none)

    def step(self) -> None:
        for optimizer in self._optimizers:
            optimizer.step()


def fastest_mode(
    make_step: Callable[[Mode], Callable[[], float]], modes: Iterable[Mode] = EVERY_MODE
) -> tuple[Mode, dict[Mode, float]]:
    """Times steps in several modes, in turn.

    Args:
        make_step: Returns a step in a mode, which waits until it is done.
        modes: The modes to try. One that `torch.compile` can't do, for example without a C++
            compiler, is left out.

    Returns:
        The fastest, and the median seconds of a step in each.
    """
    from torch._dynamo.exc import TorchDynamoException

    steps: dict[Mode, Callable[[], float]] = {}
    for mode in modes:
        step = make_step(mode)
        try:
            step()
        except TorchDynamoException as error:
            print(f"PyTorch in {mode} fails: {str(error).splitlines()[0]}", file=sys.stderr)
        else:
            steps[mode] = step
    seconds: dict[Mode, list[float]] = {mode: [] for mode in steps}
    for _ in range(_ROUNDS):
        for mode, step in steps.items():
            for _ in range(_STEPS):
                began = time.perf_counter()
                step()
                seconds[mode].append(time.perf_counter() - began)
    medians = {mode: statistics.median(times) for mode, times in seconds.items()}
    return min(medians, key=lambda mode: medians[mode]), medians
