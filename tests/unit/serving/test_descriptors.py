"""What the log says of a limit of descriptors that cannot be raised."""

from __future__ import annotations

import logging
import resource
from collections.abc import Iterator

import pytest

from mooncake_store.serving.process import raise_descriptor_limit


@pytest.fixture
def hard() -> Iterator[int]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY:
        pytest.skip("the system allows as many as anybody wants")
    yield hard
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize(("factor", "level"), [(1.1, logging.INFO), (3, logging.WARNING)])
def test_a_little_too_few_is_no_warning(
    hard: int, factor: float, level: int, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        raise_descriptor_limit(int(hard * factor), logging.getLogger("mooncake_store.test"))
    (told,) = caplog.records
    assert told.levelno == level
    assert "too_few_descriptors" in told.getMessage()
