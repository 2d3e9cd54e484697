"""Reads graphs back and computes their logits in the programs that run them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import onnxruntime
from numpy.typing import NDArray

Ids = NDArray[np.int64]
Logits = NDArray[np.float32]
Values = dict[str, NDArray[Any]]

_ONLY_ERRORS = 3


class Session(Protocol):
    """A graph in a program.

    Attributes:
        inputs: Shapes by name; only sizes that are known are numbers.
    """

    inputs: dict[str, Any]

    def run(self, values: Values) -> Values: ...


class OnnxSession:
    """A graph in ONNX Runtime."""

    def __init__(self, file: Path) -> None:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = _ONLY_ERRORS
        providers = ["CPUExecutionProvider"]
        self._session = onnxruntime.InferenceSession(file, options, providers=providers)
        self.inputs: dict[str, Any] = {each.name: each.shape for each in self._session.get_inputs()}
        self._outputs = [each.name for each in self._session.get_outputs()]

    def run(self, values: Values) -> Values:
        return dict(zip(self._outputs, self._session.run(None, values), strict=True))


def compute_logits(
    sessions: Mapping[str, Session], ids: Ids, mask: Ids, decoder_ids: Ids
) -> Logits:
    """Computes logits (B, S, V) with graphs by name; a decoder reads two parts, with its cache."""
    given = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
    if "encoder_model" in sessions:
        memory = _run(sessions["encoder_model"], given)["last_hidden_state"]
        constant = {"encoder_hidden_states": memory, "encoder_attention_mask": mask}
        return _in_two_parts(sessions["decoder_model_merged"], decoder_ids, constant)
    session = sessions["model"]
    if _names_of_cache(session):
        return _in_two_parts(session, ids, {"attention_mask": mask})
    return _run(session, given)["logits"]


def _in_two_parts(session: Session, ids: Ids, constant: Values) -> Logits:
    places = np.broadcast_to(np.arange(ids.shape[1]), ids.shape)
    middle = ids.shape[1] // 2
    past: Values = {}
    for name in _names_of_cache(session):
        _, heads, _, size = session.inputs[name]
        past[name] = np.zeros((len(ids), heads, 0, size), np.float32)
    parts = []
    for start, end in ((0, middle), (middle, ids.shape[1])):
        given = {
            **constant,
            **past,
            "input_ids": ids[:, start:end],
            "position_ids": places[:, start:end],
            "use_cache_branch": np.array([start > 0]),
        }
        if "attention_mask" in constant:
            given["attention_mask"] = constant["attention_mask"][:, :end]
        computed = _run(session, given)
        past = {name: computed[name.replace("past_key_values", "present")] for name in past}
        parts.append(computed["logits"])
    return np.concatenate(parts, axis=1)


def _names_of_cache(session: Session) -> list[str]:
    return [name for name in session.inputs if name.startswith("past_key_values")]


def _run(session: Session, values: Values) -> Values:
    """Runs a graph with those values that it reads."""
    return session.run({name: np.ascontiguousarray(values[name]) for name in session.inputs})
