"""Asks the kernel for IP addresses and hears of changes, over rtnetlink (RFC 3549).

What messages mean is told by pure functions; the two that open a socket are at the end.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import IPv4Interface, IPv6Interface

from mooncake_store.errors import DeviceError
from mooncake_store.transfer_engine.topology.nic import Address

__all__ = [
    "FoundAddress",
    "is_change",
    "messages",
    "open_subscription",
    "parse_address",
    "read_addresses",
]

# include/uapi/linux/netlink.h and rtnetlink.h
_HEADER = struct.Struct("=IHHII")  # length, type, flags, sequence, port
_ADDRESS_HEADER = struct.Struct("=BBBBI")  # family, prefix length, flags, scope, interface
_ATTRIBUTE = struct.Struct("=HH")  # length, type
_NLMSG_ERROR, _NLMSG_DONE = 2, 3
_NLM_F_REQUEST, _NLM_F_DUMP = 0x1, 0x300
_RTM_NEWLINK, _RTM_DELLINK = 16, 17
_RTM_NEWADDR, _RTM_DELADDR, _RTM_GETADDR = 20, 21, 22
_IFA_ADDRESS, _IFA_LOCAL, _IFA_FLAGS = 1, 2, 8
_IFA_F_TEMPORARY, _IFA_F_DADFAILED, _IFA_F_DEPRECATED, _IFA_F_TENTATIVE = 0x01, 0x08, 0x20, 0x40
_IFA_F_OPTIMISTIC = 0x04
_RTMGRP_LINK, _RTMGRP_IPV4_IFADDR, _RTMGRP_IPV6_IFADDR = 0x1, 0x10, 0x100

_RECEIVE_BYTES = 1 << 18  # a dump comes in pieces of at most 32 KiB
_ANSWER_TIMEOUT_S = 2.0


@dataclass(frozen=True, slots=True)
class FoundAddress:
    """An address as the kernel tells it.

    Attributes:
        interface: The interface's number.
        address: The address with its prefix length.
        is_lasting: Peers may connect to it: it is not being tried out, found to be someone else's,
            about to go, or one of the short-lived ones that hide who is calling.
    """

    interface: int
    address: Address
    is_lasting: bool


def messages(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Cut what was received into messages: type and body; stops where one is cut short."""
    offset = 0
    while offset + _HEADER.size <= len(data):
        length, kind, _, _, _ = _HEADER.unpack_from(data, offset)
        if length < _HEADER.size or offset + length > len(data):
            return
        yield kind, data[offset + _HEADER.size : offset + length]
        offset += (length + 3) & ~3


def is_change(kind: int) -> bool:
    """Whether a message says that a link or an address has come, gone or changed."""
    return kind in (_RTM_NEWLINK, _RTM_DELLINK, _RTM_NEWADDR, _RTM_DELADDR)


def parse_address(body: bytes) -> FoundAddress | None:
    """Read the body of RTM_NEWADDR; None when it is of another family or cut short."""
    if len(body) < _ADDRESS_HEADER.size:
        return None
    family, prefix_length, flags, _, interface = _ADDRESS_HEADER.unpack_from(body)
    attributes = _attributes(body[_ADDRESS_HEADER.size :])
    # On a point-to-point link ADDRESS is the other end's.
    raw = attributes.get(_IFA_LOCAL) or attributes.get(_IFA_ADDRESS) or b""
    if len(attributes.get(_IFA_FLAGS, b"")) == 4:
        (flags,) = struct.unpack("=I", attributes[_IFA_FLAGS])
    is_tried_out = flags & _IFA_F_TENTATIVE and not flags & _IFA_F_OPTIMISTIC
    unfit = flags & (_IFA_F_DADFAILED | _IFA_F_DEPRECATED)
    if family == socket.AF_INET and len(raw) == 4 and prefix_length <= 32:
        return FoundAddress(interface, IPv4Interface((raw, prefix_length)), not unfit)
    if family == socket.AF_INET6 and len(raw) == 16 and prefix_length <= 128:
        unfit |= flags & _IFA_F_TEMPORARY
        is_lasting = not unfit and not is_tried_out
        return FoundAddress(interface, IPv6Interface((raw, prefix_length)), is_lasting)
    return None


def _attributes(data: bytes) -> Mapping[int, bytes]:
    found = {}
    offset = 0
    while offset + _ATTRIBUTE.size <= len(data):
        length, kind = _ATTRIBUTE.unpack_from(data, offset)
        if length < _ATTRIBUTE.size or offset + length > len(data):
            break
        found[kind & 0x3FFF] = data[offset + _ATTRIBUTE.size : offset + length]
        offset += (length + 3) & ~3
    return found


# ---- sockets -------------------------------------------------------------------------------------


def read_addresses() -> dict[str, list[Address]]:
    """Return this network namespace's interfaces with the addresses that peers may connect to.

    Raises:
        DeviceError: The kernel does not answer.
    """
    found: dict[str, list[Address]] = {}
    try:
        for item in _dump():
            if item.is_lasting:
                with suppress(OSError):  # the interface has gone in between
                    found.setdefault(socket.if_indextoname(item.interface), []).append(item.address)
    except OSError as error:
        raise DeviceError(
            f"the kernel does not tell its addresses: {error.strerror or error}", cause=error
        ) from error
    return found


def _dump() -> Iterator[FoundAddress]:
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as asker:
        asker.settimeout(_ANSWER_TIMEOUT_S)
        asker.bind((0, 0))
        body = _ADDRESS_HEADER.pack(socket.AF_UNSPEC, 0, 0, 0, 0)
        length = _HEADER.size + len(body)
        flags = _NLM_F_REQUEST | _NLM_F_DUMP
        asker.sendto(_HEADER.pack(length, _RTM_GETADDR, flags, 1, 0) + body, (0, 0))
        while True:
            for kind, answer in messages(asker.recv(_RECEIVE_BYTES)):
                if kind == _NLMSG_DONE:
                    return
                if kind == _NLMSG_ERROR:
                    code = -struct.unpack_from("=i", answer)[0] if len(answer) >= 4 else 0
                    raise OSError(code, f"netlink error {code}")
                item = parse_address(answer) if kind == _RTM_NEWADDR else None
                if item is not None:
                    yield item


def open_subscription() -> socket.socket:
    """Return a non-blocking socket that is readable when links or addresses have changed.

    The caller closes it.
    """
    listener = socket.socket(
        socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_NONBLOCK, socket.NETLINK_ROUTE
    )
    try:
        listener.bind((0, _RTMGRP_LINK | _RTMGRP_IPV4_IFADDR | _RTMGRP_IPV6_IFADDR))
    except OSError:
        listener.close()
        raise
    return listener
