"""How many connections the servers beside a process's own have, and the descriptors for all.

Apart from those servers, as their libraries are imported long after the limit is raised.
"""

from __future__ import annotations

__all__ = ["GRPC_CONNECTIONS_MAX", "HTTP_CONNECTIONS_MAX", "descriptors_wanted"]

GRPC_CONNECTIONS_MAX = 4096
HTTP_CONNECTIONS_MAX = 256

_OTHERS = 256  # files, event loops, memory that is shared


def descriptors_wanted(connections_max: int, *, grpc: bool, http: bool) -> int:
    """Return how many descriptors a process needs when all connections are there.

    Args:
        connections_max: Of its own protocol.
        grpc: Whether it serves gRPC too.
        http: Whether it serves HTTP too.
    """
    beside = grpc * GRPC_CONNECTIONS_MAX + http * HTTP_CONNECTIONS_MAX
    return connections_max + beside + _OTHERS
