"""Dropout and R-Drop of fine-tuning."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import log_softmax

from tests.engines import ENGINES, run_on

RATE, WEIGHT, TEXTS = 0.3, 2.0, 3
_LOSSES = """
    import json, sys
    import keras
    import numpy as np
    from core.config.finetune import FinetuneConfig
    from core.backends.base import dropout_seeds
    from core.backends.selection import select_backend
    from core.finetuning.batches import LabelledSequences, collate
    from core.finetuning.encoding import TokenSequence
    from core.finetuning.saving import ClassifierConfig
    from core.finetuning.session import Session, make_schedule, train_config
    from core.models.registry import resolve_architecture
    from core.config import TrainConfig

    kind, outputs, rate, weight, count = sys.argv[1], *map(float, sys.argv[2:])
    config = FinetuneConfig(
        per_replica_batch_size=4, engine=keras.config.backend(), device="cpu", dropout=rate,
        r_drop=weight
    )
    sizes = TrainConfig(preset="custom", size="tiny", hidden_size=32, num_hidden_layers=1,
                        num_attention_heads=2, intermediate_size=64)
    architecture = resolve_architecture(sizes, vocab_size=50, row_length=16, pad_id=3)
    labels = tuple("abc") if outputs > 1 else ()
    session = Session(config, ClassifierConfig(architecture, kind, labels),
                      select_backend(train_config(config)), 16, "float32")
    length = 7
    width = 1 if kind == "sequence" else length
    dtype = np.int32 if labels else np.float32
    one = [np.arange(5, 5 + length, dtype=np.int32) + row for row in range(int(count))]
    position = 0 if kind == "sequence" else None
    data = LabelledSequences(
        [TokenSequence(ids, position=position) for ids in one],
        [np.full(width, row % 2 + 1, dtype) for row in range(int(count))],
        [np.arange(width, dtype=np.float32) % 2 + (width == 1) for _ in one],
    )
    session.start({}, make_schedule(config, 1e-3, 10), seed=0)
    model, chosen = session._model(0), np.arange(int(count))
    batch = session._collate(data, chosen)
    twice = {name: np.concatenate([rows, rows]) for name, rows in batch.items()}
    labels, weights = twice.pop("labels"), twice.pop("label_weights")
    seed = dropout_seeds(session._trainings * (1 << 20) + 1, 1)[0]
    inputs = {**twice, "dropout_seed": seed}
    logits = np.asarray(model.call(inputs))
    loss = float(model.summed_loss(inputs, labels, weights))
    step = float(session.fetch([session.step(data, chosen, 1)])[0])
    print(json.dumps([logits.tolist(), labels.tolist(), weights.tolist(), loss, step]))
"""


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("kind", "outputs"), [("sequence", 3), ("token", 3), ("sequence", 1)])
def test_r_drop_has_the_loss_of_its_authors(engine: str, kind: str, outputs: int) -> None:
    found = run_on(engine, _LOSSES, kind, outputs, RATE, WEIGHT, TEXTS)
    logits, labels, weights = (np.array(one) for one in found[:3])
    first, second = np.split(logits, 2)
    assert np.abs(first[:TEXTS] - second[:TEXTS]).max() > 1e-4, "the masks differ"
    half = len(first)
    if outputs == 1:
        losses, apart = (logits[..., 0] - labels) ** 2, (first - second)[..., 0] ** 2
    else:
        shares = log_softmax(logits, axis=-1)
        losses = -np.take_along_axis(shares, labels[..., None], -1)[..., 0]
        one, other = shares[:half], shares[half:]
        apart = (np.exp(one) * (one - other) + np.exp(other) * (other - one)).sum(-1)
    of_both = losses[:half] + losses[half:] + WEIGHT / 2 * apart
    total = (of_both * weights[:half]).sum()
    assert found[3] == pytest.approx(total, rel=1e-5)
    assert found[4] == pytest.approx(total / weights.sum(), rel=1e-5)
