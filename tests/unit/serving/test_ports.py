from __future__ import annotations

import os
import socket

import pytest

from mooncake_store.errors import ConfigError, InUseError
from mooncake_store.serving import ports


def test_the_holder_of_a_port_is_found_for_both_families() -> None:
    for family, address in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
        with socket.socket(family) as held:
            try:
                held.bind((address, 0))
            except OSError:
                pytest.skip("this machine has no IPv6")
            held.listen()
            port = held.getsockname()[1]
            assert ports.holder_of_port(port).startswith(f"pid {os.getpid()} (")
            assert not ports.is_free(address, port)
        assert ports.holder_of_port(port) == ""
        assert ports.is_free(address, port)


def test_a_reserved_port_is_kept_from_others_and_given_to_who_shares_it() -> None:
    held = ports.reserve("127.0.0.1", 0, "gRPC")
    port = held.getsockname()[1]
    with socket.socket() as stranger, pytest.raises(OSError):
        stranger.bind(("127.0.0.1", port))
    with socket.socket() as service:
        service.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        service.bind(("127.0.0.1", port))
        held.close()
        service.listen()


def test_a_taken_port_is_replaced_where_any_will_do() -> None:
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(InUseError, match=f"port {port} .* for HTTP, is in use by pid"):
            ports.reserve("127.0.0.1", port, "HTTP")
        with ports.reserve("127.0.0.1", port, "HTTP", any_if_taken=True) as held:
            assert held.getsockname()[1] != port


def test_addresses_are_numeric() -> None:
    assert ports.family_of("127.0.0.1") == socket.AF_INET
    assert ports.family_of("::1") == socket.AF_INET6
    with pytest.raises(ConfigError):
        ports.family_of("localhost")
