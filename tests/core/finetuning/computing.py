"""Writes classifiers with random weights and their logits, in a process with a backend."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

from core.architecture.heads import Kind
from core.finetuning.batches import LabelledSequences, collate
from core.finetuning.classifier import Classifier
from core.finetuning.encoding import TextEncoder, TokenSequence
from core.finetuning.heads import find_head
from core.finetuning.saving import ClassifierConfig, write_classifier, write_tokenizer
from core.models import hf
from core.tokenizer.loading import load
from tests.core.finetuning.examples import HEADS, LABELS, PAIRS, TEXTS


def main() -> None:
    models, target = Path(sys.argv[1]), Path(sys.argv[2])
    for family, kind in HEADS:
        texts = [TEXTS, PAIRS] if (family, kind) == ("bert", "sequence") else [TEXTS]
        for name, chosen in zip(("", "-pairs"), texts, strict=False):
            _write(models / family, target / f"{family}-{kind}{name}", kind, chosen)
    print(json.dumps([f"{family}-{kind}" for family, kind in HEADS]))


def _write(source: Path, folder: Path, kind: Kind, texts: list[tuple[str, ...]]) -> None:
    architecture = hf.read_architecture(source)
    tokenizer, head = load(str(source)), find_head(architecture, kind)
    is_pairs = len(texts[0]) > 1
    config = ClassifierConfig(architecture, kind, LABELS)
    model = Classifier(architecture, head, kind, len(LABELS), seed=3)
    folder.mkdir()
    generator = np.random.default_rng(5)
    for one in model.variables:
        values = generator.normal(one.path.endswith("scale"), 0.2, one.shape)
        one.assign(values.astype(np.float32))
    weights = {one.path: np.asarray(one.numpy()) for one in model.variables}
    write_classifier(folder, weights, config)
    write_tokenizer(folder, tokenizer, segments=is_pairs)
    encoder = TextEncoder(tokenizer, architecture, head, 32, uses_segments=is_pairs)
    sequences = encoder.encode(texts)
    if kind == "token":
        sequences = [TokenSequence(one.ids) for one in sequences]
    count = len(texts)
    data = LabelledSequences(sequences, [np.zeros(1, np.int32)] * count,
                             [np.ones(1, np.float32)] * count)  # fmt: skip
    decodes = architecture.kind == "encoder-decoder" and not head.encoder_only
    batch = collate(data, np.arange(count), 4, 32, architecture, uses_decoder=decodes)
    inputs = {name: one for name, one in batch.items() if not name.startswith("label")}
    np.save(folder / "logits.npy", np.asarray(model.call(inputs))[:count])


if __name__ == "__main__":
    main()
