from __future__ import annotations

import asyncio
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
        assert ports.holder_of_port(port).startswith("a socket that does not listen")
        assert ports.is_free(address, port)


def test_a_port_can_be_taken_without_a_listener() -> None:
    own = f"pid {os.getpid()} ("
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port = bound.getsockname()[1]
        assert not ports.is_free("127.0.0.1", port)
        assert ports.holder_of_port(port).startswith("a socket that does not listen")
    with socket.socket() as listener, socket.socket() as caller:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        caller.connect(listener.getsockname())
        port = caller.getsockname()[1]
        assert ports.holder_of_port(port).startswith(f"a connection of {own}")
        with pytest.raises(
            InUseError, match="wanted for HTTP, is in use by a connection of pid"
        ) as refused:
            ports.reserve("127.0.0.1", port, "HTTP", option="--http-port")
        assert refused.value.hint.endswith("choose another port with --http-port")


def test_who_cannot_be_seen_is_named_by_what_is_known() -> None:
    unseen = lambda _: ""  # noqa: E731
    listening = [ports._Socket(is_listening=True, user_id=65534, inode=7)]
    connected = [ports._Socket(is_listening=False, user_id=1000, inode=7)]
    ended = [ports._Socket(is_listening=False, user_id=0, inode=0)]
    assert ports._describe(listening, unseen, 1000) == "a process of another user (nobody)"
    for user_id in (0, 65534):  # root sees all, and everybody what is their own
        assert "another container" in ports._describe(listening, unseen, user_id)
    assert ports._describe(connected, unseen, 1).startswith("a connection of a process of another")
    assert "just ended" in ports._describe(ended, unseen, 1000)


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


def test_answers_on_a_reserved_port_wait_for_nobodys_acknowledgement() -> None:
    async def nodelay() -> int:
        found: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            held = writer.get_extra_info("socket")
            found.set_result(held.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            writer.close()

        server = await asyncio.start_server(accepted, sock=ports.reserve("127.0.0.1", 0, "HTTP"))
        port = server.sockets[0].getsockname()[1]
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.close()
            return await asyncio.wait_for(found, 10)
        finally:
            server.close()

    assert asyncio.run(nodelay()) == 1
