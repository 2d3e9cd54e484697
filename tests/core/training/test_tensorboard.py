"""Event files, read back with TensorFlow."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from core.training.tensorboard import ScalarWriter


def test_tensorflow_reads_the_scalars_back(tmp_path: Path) -> None:
    import tensorflow as tf

    writer = ScalarWriter(tmp_path / "tensorboard")
    writer.write(0, {"eval_loss": 8.25})
    writer.write(70_000, {"loss": 2.5, "learning_rate": 1e-4})
    writer.close()
    (file,) = (tmp_path / "tensorboard").glob("events.out.tfevents.*")
    events = list(tf.compat.v1.train.summary_iterator(str(file)))
    assert events[0].file_version == "brain.Event:2"
    read = [(e.step, v.tag, v.simple_value) for e in events for v in e.summary.value]
    assert read == [
        (0, "eval_loss", 8.25),
        (70_000, "loss", 2.5),
        (70_000, "learning_rate", pytest.approx(1e-4)),
    ]
    assert all(event.wall_time > 1.6e9 for event in events)


def test_values_beyond_float32_become_infinite(tmp_path: Path) -> None:
    import tensorflow as tf

    largest = float(np.finfo(np.float32).max)
    values = [largest, 1.0000001 * largest, -1e300, math.inf, math.nan]
    writer = ScalarWriter(tmp_path)
    writer.write(0, {f"value_{n}": value for n, value in enumerate(values)})
    writer.close()
    (file,) = tmp_path.iterdir()
    *_, event = tf.compat.v1.train.summary_iterator(str(file))
    read = [one.simple_value for one in event.summary.value]
    np.testing.assert_array_equal(read, [largest, math.inf, -math.inf, math.inf, math.nan])


def test_resumed_run_writes_its_own_event_file(tmp_path: Path) -> None:
    for _ in range(2):
        ScalarWriter(tmp_path).close()
    assert len(list(tmp_path.iterdir())) == 2
