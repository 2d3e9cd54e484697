"""Descriptors of the layers that fine-tuning adds to a family's models.

Source: transformers 5, the classes `…ForSequenceClassification` and `…ForTokenClassification`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["sequence", "token"]
Pooled = Literal["first", "last", "end", "eos"]

SUFFIXES: dict[Kind, str] = {
    "sequence": "ForSequenceClassification",
    "token": "ForTokenClassification",
}


@dataclass(frozen=True)
class Head:
    """Layers between the hidden states and the logits.

    Attributes:
        output, dense: Names of the linear layers' tensors; no dense layer if empty.
        pooled: The position that represents a text; "last" is the last token that isn't padding,
            "end" the last one, "eos" the last end-of-sequence token.
        drops_input: Whether dropout precedes the dense layer.
        dropout: Rate; None: that of the model's hidden states.
        prefix: Precedes the names of the body's tensors.
        encoder_only: Whether an encoder-decoder's decoder is left out.
        keeps_head: Whether the head of masked language modelling is part of the classifier.
        offset: Name of a bias, without `prefix`, that is added to what the output layer reads; for
            output layers without a bias of their own.
        pooling_field: Field of `config.json` that must be "cls", if the family has one.
        divides_range: Whether new layers start from the initializer's range divided by √H.
    """

    output: str
    dense: str = ""
    pooled: Pooled = "first"
    has_bias: bool = True
    drops_input: bool = False
    dropout: float | None = None
    prefix: str = ""
    encoder_only: bool = False
    keeps_head: bool = False
    offset: str = ""
    pooling_field: str = ""
    divides_range: bool = False

    @property
    def adds_constant(self) -> bool:
        """Whether a weight can add a constant to the logits."""
        return self.has_bias or bool(self.offset)
