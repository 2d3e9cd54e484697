"""Whether tests repeat at length what they otherwise prove once: `make test-thorough` sets it."""

from __future__ import annotations

import os

THOROUGH = os.environ.get("STUDIO_TEST_THOROUGH", "") == "1"
