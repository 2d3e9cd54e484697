"""A training imports no unused packages, which can still be imported afterwards."""

from __future__ import annotations

import pytest

from tests.engines import ENGINES, run_anew

CODE = """
import json, sys
from core.backends.imports import import_for
engine = sys.argv[1]
keras = import_for(engine, "keras")
import core.training.trainer
before = sorted({"matplotlib", "pandas", "sklearn", "sqlalchemy"} & set(sys.modules))
import pandas, matplotlib.pyplot, jax
print(json.dumps([keras.config.backend(), before, pandas.Series([1, 2]).sum().item()]))
"""


@pytest.mark.slow(7)
@pytest.mark.parametrize("engine", ENGINES)
def test_unused_packages_are_skipped_and_can_be_imported_later(engine: str) -> None:
    assert run_anew(engine, CODE, engine) == [engine, [], 3]
