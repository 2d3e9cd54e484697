"""RoBERTa: BERT with positions counted from the padding token's id.

Source: https://arxiv.org/abs/1907.11692. Computes as `RobertaForMaskedLM`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from core.architecture.architecture import Architecture
from core.architecture.config_format import ConfigFormat, Field, Variant
from core.architecture.family import TPU_EXAMPLE, Family, WriteUp
from core.architecture.heads import Head
from core.architecture.options import ModelOptions
from core.architecture.weight_mapping import WeightMapping
from core.families.bert import (
    BERT_SIZES,
    ENCODER_ONLY,
    FIELDS,
    MASKED_WRITE_UP,
    map_body,
    map_head,
    model_options,
)


@dataclass(frozen=True)
class RobertaArchitecture(Architecture):
    """Dimensions of a RoBERTa; its positions begin after `pad_token_id`."""

    model_type: str = "roberta"

    @property
    def first_position(self) -> int:
        return self.pad_token_id + 1


def _model_options(architecture: RobertaArchitecture) -> ModelOptions:
    return model_options(architecture, padding_position=architecture.pad_token_id)


def _map_weights(architecture: RobertaArchitecture) -> Iterator[WeightMapping]:
    yield from map_body(architecture, "lm_head.decoder.weight")
    bias = WeightMapping(
        "roberta/lm_head/bias",
        (architecture.vocab_size,),
        ("lm_head.bias",),
        alias="lm_head.decoder.bias",
    )
    yield from map_head(architecture, "lm_head.dense", "lm_head.layer_norm", bias)


FAMILY = Family(
    name="roberta",
    title="RoBERTa",
    menu_position=1,
    architecture=RobertaArchitecture,
    sizes=BERT_SIZES,
    options=_model_options,
    weight_mapping=_map_weights,
    config_format=ConfigFormat(
        class_name="RobertaForMaskedLM",
        fields={**FIELDS, "vocab_size": Field(50_265), "pad_token_id": Field(1)},
        required=ENCODER_ONLY,
        needs_padding=True,
        bos=0,
        eos=2,
        constants={"position_embedding_type": "absolute"},
    ),
    variants={
        "xlm-roberta": Variant("XLMRobertaForMaskedLM", {"vocab_size": 30_522}),
        "camembert": Variant("CamembertForMaskedLM", {"vocab_size": 30_522}),
    },
    objectives=("mlm",),
    required_tokens=("mask", "pad"),
    heads={
        "sequence": Head("classifier.out_proj", "classifier.dense", drops_input=True),
        "token": Head("classifier"),
    },
    padding_use="because RoBERTa's position ids begin after the padding token's id",
    learning_rate_factor=1.5,
    body_prefix="roberta.",
    tied_heads=("lm_head.decoder.weight",),
    train_presets={"fast": {"mlm_probability": 0.4}},
    write_ups={
        "classic": WriteUp(
            TPU_EXAMPLE,
            "roberta-base, rows of 512, vocabulary 10,048, on WikiText-103",
            "run_mlm.py, with the defaults of its arguments",
            "no loss is published with the script",
        ),
        "flax": MASKED_WRITE_UP,
    },
)
