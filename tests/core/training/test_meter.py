"""Speed and remaining time, by a clock that the tests set."""

from __future__ import annotations

import pytest

from core.training.meter import ThroughputMeter


class Clock:
    """A clock that the tests set."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def _train(meter: ThroughputMeter, clock: Clock, steps: int, seconds_per_step: float) -> None:
    for _ in range(steps):
        clock.now += seconds_per_step
        meter.count_steps(1)


def test_compilation_does_not_count() -> None:
    clock = Clock()
    meter = ThroughputMeter(1000, clock)
    _train(meter, clock, 1, 60.0)
    meter.start()
    _train(meter, clock, 4, 0.5)
    assert meter.read_window(0.0)["tokens_per_second"] == pytest.approx(2000)
    assert meter.eta_seconds(100, {}) == pytest.approx(50)


def test_validation_and_saving_count_towards_the_end_but_not_the_speed() -> None:
    clock = Clock()
    meter = ThroughputMeter(1000, clock)
    meter.start()
    _train(meter, clock, 2, 1.0)
    with meter.pause("eval", 0.0):
        clock.now += 30
        assert meter.eta_seconds(10, {}) == pytest.approx(10)
    _train(meter, clock, 2, 1.0)
    assert meter.read_window(0.0)["tokens_per_second"] == pytest.approx(1000)
    assert meter.eta_seconds(10, {"eval": 3}) == pytest.approx(10 + 90)


def test_waiting_for_data_is_reported_as_a_share_of_the_time() -> None:
    clock = Clock()
    meter = ThroughputMeter(1000, clock)
    meter.start(waited_seconds=5.0)
    _train(meter, clock, 4, 1.0)
    assert meter.read_window(6.0)["data_wait_percent"] == pytest.approx(25)
    _train(meter, clock, 4, 1.0)
    assert meter.read_window(6.0)["data_wait_percent"] == 0


def test_meter_reports_nothing_before_the_first_step() -> None:
    meter = ThroughputMeter(1000, Clock())
    assert meter.read_window(0.0) == {}
    assert meter.eta_seconds(10, {}) is None
