"""Limits of descriptors, as a process of a test finds them."""

from __future__ import annotations

import contextlib
import resource
import sys
from collections.abc import Iterator

import pytest

from mooncake_store.serving.connections import GRPC_CONNECTIONS_MAX, HTTP_CONNECTIONS_MAX


@contextlib.contextmanager
def few_descriptors() -> Iterator[None]:
    """Who starts within has a soft limit of 1,024, and a hard one above what the tests want."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 8192:
        pytest.skip("the system does not allow as many")
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


HARD_MAX = 4096
_UNDER_HARD_MAX = f"""
import os, resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (1024, {HARD_MAX}))
os.execv(sys.argv[1], sys.argv[1:])
"""


def under_a_low_hard_limit() -> tuple[str, ...]:
    """Return what goes before a command whose hard limit is `HARD_MAX`."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if hard != resource.RLIM_INFINITY and hard < HARD_MAX:
        pytest.skip("the system does not allow as many")
    return (sys.executable, "-c", _UNDER_HARD_MAX)


def assert_told_once(pid: int, log: str, wanted: int) -> None:
    """Check that a process said what it wants and how to get it, and has all that it may have."""
    (line,) = (line for line in log.splitlines() if "too_few_descriptors" in line)
    assert f"wanted={wanted} limit={HARD_MAX}" in line
    assert "hard limit of open files" in line
    assert "set connections_max lower" in line
    assert resource.prlimit(pid, resource.RLIMIT_NOFILE) == (HARD_MAX, HARD_MAX)


def has_descriptors_for_all_ports(pid: int, connections_max: int) -> bool:
    """Whether a process may have what its messages, gRPC and HTTP take."""
    limit = resource.prlimit(pid, resource.RLIMIT_NOFILE)[0]
    return limit >= connections_max + GRPC_CONNECTIONS_MAX + HTTP_CONNECTIONS_MAX
