"""Rotary positions in `config.json`.

Source: transformers 5, modeling_rope_utils.py.
"""

from __future__ import annotations

import math
from typing import Any, get_args

from core.architecture.config_format import Values, part, unsupported
from core.architecture.options import RotaryScaling, ScalingKind

_KINDS: tuple[ScalingKind, ...] = get_args(ScalingKind)
_MOST = 1 << 30


def read_rotary(values: Values, theta: float, source: str) -> tuple[float, RotaryScaling | None]:
    """Reads theta, by default `theta`, and the scaling from a `config.json`'s values.

    transformers 4 writes `rope_theta` and `rope_scaling`, 5 both in `rope_parameters`.
    """
    scaling = {
        **part(values, "rope_scaling", dict, source),
        **part(values, "rope_parameters", dict, source),
    }
    given = scaling.get("rope_theta", values.get("rope_theta"))
    theta = _number({"rope_theta": theta if given is None else given}, "rope_theta", source)
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind == "default":
        return theta, None
    if kind not in _KINDS:
        raise unsupported(source, "rope_type", " or ".join(("default", *_KINDS)), kind)
    return theta, _read_scaling(kind, scaling, values, source)


def _read_scaling(kind: ScalingKind, scaling: Values, values: Values, source: str) -> RotaryScaling:
    factor = _number(scaling, "factor", source)
    if kind == "linear":
        return RotaryScaling(kind, factor)
    name = "original_max_position_embeddings"
    length = _number({name: values.get("max_position_embeddings"), **scaling}, name, source)
    if kind == "llama3":
        low, high = (_number(scaling, f"{end}_freq_factor", source) for end in ("low", "high"))
        if low >= high:
            raise unsupported(source, "low_freq_factor", f"below high_freq_factor {high:g}", low)
        return RotaryScaling(kind, factor, int(length), low_freq_factor=low, high_freq_factor=high)
    if scaling.get("truncate", True) is not True:
        raise unsupported(source, "truncate", "true", scaling["truncate"])
    given = {name: value for name, value in scaling.items() if value}
    return RotaryScaling(
        kind,
        factor,
        int(length),
        beta_fast=_number({"beta_fast": 32, **given}, "beta_fast", source),
        beta_slow=_number({"beta_slow": 1, **given}, "beta_slow", source),
        attention_factor=_number(
            {"attention_factor": _attention_factor(factor, given), **given},
            "attention_factor",
            source,
        ),
    )


def rotary_values(theta: float, scaling: RotaryScaling | None) -> Values:
    """Returns the values of a `config.json` for transformers 4 and 5."""
    own = {} if scaling is None else {name: value for name, value in vars(scaling).items() if value}
    return {
        "rope_theta": theta,
        "rope_scaling": own or None,
        "rope_parameters": {"rope_type": "default", **own, "rope_theta": theta},
    }


def _attention_factor(factor: float, scaling: Values) -> float:
    """Source: https://arxiv.org/abs/2309.00071, section 3.4."""

    def grown(share: float) -> float:
        return 0.1 * share * math.log(factor) + 1.0 if factor > 1 else 1.0

    shares = [scaling.get(name) for name in ("mscale", "mscale_all_dim")]
    if all(isinstance(share, (int, float)) for share in shares):
        return grown(float(shares[0] or 0)) / grown(float(shares[1] or 0))
    return grown(1.0)


def _number(values: Values, name: str, source: str) -> float:
    value: Any = values.get(name)
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not 0 < value <= _MOST:
        raise unsupported(source, name, f"a number above 0 and at most {_MOST:,}", value)
    return float(value)
