"""The trace that ships."""

from __future__ import annotations

import pytest

from mooncake_store.cli.trace_file import SAMPLE
from mooncake_store.conductor.trace import Trace, load_trace


@pytest.fixture(scope="module")
def sample() -> Trace:
    return load_trace(SAMPLE)
