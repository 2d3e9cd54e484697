"""Whether tests repeat at length what they otherwise prove once: `make test-thorough` sets it."""

from __future__ import annotations

import os

VARIABLE = "STUDIO_TEST_THOROUGH"
THOROUGH = os.environ.get(VARIABLE, "") == "1"
