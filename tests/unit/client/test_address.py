"""Master addresses as people write them."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from mooncake_store.client.address import parse_master
from mooncake_store.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "tcp"),
    [
        ("10.1.2.3:7800", "10.1.2.3:7800"),
        ("10.1.2.3", "10.1.2.3:7700"),
        ("[fd00::7]:7800", "[fd00::7]:7800"),
        ("[fd00::7]", "[fd00::7]:7700"),
        ("localhost:1", "127.0.0.1:1"),
    ],
)
def test_addresses_become_numbers(text: str, tcp: str, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = [(socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.0.1", 0))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: answer)
    assert parse_master(text, {}).tcp == tcp


def test_unix_address_is_a_path() -> None:
    assert parse_master("unix:///run/master.sock").unix == "/run/master.sock"
    assert parse_master("unix:/run/master.sock").tcp is None


def test_environment_names_the_master_when_nothing_else_does() -> None:
    assert parse_master(None, {"MOONCAKE_STORE_MASTER": "10.0.0.9:1"}).tcp == "10.0.0.9:1"
    assert parse_master(None, {}).tcp == "127.0.0.1:7700"


def test_loopback_takes_the_unix_socket_when_it_is_there(tmp_path: Path) -> None:
    environment = {"XDG_RUNTIME_DIR": str(tmp_path)}
    assert parse_master("127.0.0.1:9", environment).unix is None
    folder = tmp_path / "mooncake-store"
    folder.mkdir(mode=0o700)
    (folder / "master-9.sock").touch()
    assert parse_master("127.0.0.1:9", environment).unix == str(folder / "master-9.sock")
    assert parse_master("10.0.0.1:9", environment).unix is None


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("fd00::7", "brackets"),
        ("host:port", "65535"),
        (":7700", "127.0.0.1:7700"),
        ("1.2.3.4:0", "65535"),
        ("http://x", "unix:///path"),
        ("unix://relative", "absolute"),
        ("etcd://a,b", "etcd"),
        ("[::1", "[::1]:7700"),
    ],
)
def test_bad_addresses_say_how_to_write_them(text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=None) as caught:
        parse_master(text, {})
    assert says in str(caught.value)
