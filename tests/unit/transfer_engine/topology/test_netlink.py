"""The kernel's messages: read from bytes, and asked from the real kernel."""

from __future__ import annotations

import socket
import struct
from ipaddress import ip_interface

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooncake_store.transfer_engine.topology.netlink import (
    is_change,
    messages,
    open_subscription,
    parse_address,
    read_addresses,
)

# Recorded from Linux 6.18: RTM_NEWADDR of 192.0.2.2/24 on interface 4 (header, then attributes:
# ADDRESS, LOCAL, BROADCAST, LABEL, FLAGS, CACHEINFO).
RECORDED = bytes.fromhex(
    "58000000" "1400" "0200" "01000000" "00000000"
    "02188000" "04000000" "08000100c0000202" "08000200c0000202" "08000400c00002ff"
    "090003006574683000000000" "0800080080000000" "14000600ffffffffffffffff1600000016000000"
)  # fmt: skip


def attribute(kind: int, data: bytes) -> bytes:
    padding = -len(data) % 4
    return struct.pack("=HH", 4 + len(data), kind) + data + bytes(padding)


def body(family: int, length: int, *attributes: bytes, flags: int = 0) -> bytes:
    return struct.pack("=BBBBI", family, length, flags, 0, 7) + b"".join(attributes)


V6 = socket.inet_pton(socket.AF_INET6, "2001:db8::7")
V4, PEER = socket.inet_aton("10.0.0.7"), socket.inet_aton("10.0.0.8")


def flagged(flags: int) -> bytes:
    return body(10, 64, attribute(1, V6), attribute(8, struct.pack("=I", flags)))


def test_a_recorded_message() -> None:
    ((kind, data),) = messages(RECORDED)
    assert kind == 20 and is_change(kind)
    found = parse_address(data)
    assert found is not None
    assert (found.interface, found.address) == (4, ip_interface("192.0.2.2/24"))
    assert found.is_lasting


@pytest.mark.parametrize(
    ("data", "address", "is_lasting"),
    [
        (body(2, 24, attribute(1, V4)), "10.0.0.7/24", True),
        # A point-to-point link: ADDRESS is the other end.
        (body(2, 32, attribute(1, PEER), attribute(2, V4)), "10.0.0.7/32", True),
        (body(10, 64, attribute(1, V6)), "2001:db8::7/64", True),
        # Not to be relied upon: tentative, failed, deprecated, temporary.
        (flagged(0x40), "2001:db8::7/64", False),
        (flagged(0x48), "2001:db8::7/64", False),
        (flagged(0x20), "2001:db8::7/64", False),
        (flagged(0x01), "2001:db8::7/64", False),
        # Optimistic: may be used while it is tried out (RFC 4429).
        (flagged(0x44), "2001:db8::7/64", True),
        # Older kernels have the flags in the header only.
        (body(10, 64, attribute(1, V6), flags=0x40), "2001:db8::7/64", False),
        # For IPv4 that bit means a second address of the network, which is as good as the first.
        (body(2, 24, attribute(1, V4), attribute(8, struct.pack("=I", 0x01))), "10.0.0.7/24", True),
    ],
)  # fmt: skip
def test_addresses(data: bytes, address: str, is_lasting: bool) -> None:
    found = parse_address(data)
    assert found is not None
    assert (found.address, found.is_lasting) == (ip_interface(address), is_lasting)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        body(2, 24)[:5],
        body(2, 24),
        body(2, 33, attribute(1, V4)),
        body(2, 24, attribute(1, V6)),
        body(10, 129, attribute(1, V6)),
        body(17, 24, attribute(1, V4)),
        body(2, 24, struct.pack("=HH", 3, 1)),
        body(2, 24, struct.pack("=HH", 200, 1) + V4),
    ],
)
def test_what_is_no_address_is_none(data: bytes) -> None:
    assert parse_address(data) is None


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_left(data: bytes) -> None:
    for _, message in messages(data):
        parse_address(message)
    parse_address(data)


def test_the_kernel_tells_loopback_s_addresses() -> None:
    found = read_addresses()
    assert ip_interface("127.0.0.1/8") in found["lo"]


def test_a_subscription_does_not_block() -> None:
    with open_subscription() as listener, pytest.raises(BlockingIOError):
        while True:  # whatever this machine has to say right now
            listener.recv(65536)
