"""Event files are judged by TensorFlow's own reader."""

from __future__ import annotations

from pathlib import Path

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


def test_a_resumed_run_writes_a_file_of_its_own(tmp_path: Path) -> None:
    for _ in range(2):
        ScalarWriter(tmp_path).close()
    assert len(list(tmp_path.iterdir())) == 2
