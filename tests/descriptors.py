"""Limits of descriptors, as a process of a test finds them."""

from __future__ import annotations

import contextlib
import resource
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


def has_descriptors_for_all_ports(pid: int, connections_max: int) -> bool:
    """Whether a process may have what its messages, gRPC and HTTP take."""
    limit = resource.prlimit(pid, resource.RLIMIT_NOFILE)[0]
    return limit >= connections_max + GRPC_CONNECTIONS_MAX + HTTP_CONNECTIONS_MAX
