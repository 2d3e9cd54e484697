"""The compiler's settings of the tests, for machines that don't get the tests' environment.

With the same flags a machine rounds as a local run does, and takes compiled programs from one
cache.
"""

from __future__ import annotations

import os

_NAMES = ("XLA_FLAGS", "JAX_COMPILATION_CACHE_DIR", "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS")


def compiler_settings() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name in _NAMES}
