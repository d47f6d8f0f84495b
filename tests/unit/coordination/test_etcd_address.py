from __future__ import annotations

from pathlib import Path

import pytest

from mooncake_store.coordination.etcd_client.address import EtcdAddress, Tls
from mooncake_store.coordination.etcd_client.store import prefix_end
from mooncake_store.errors import ConfigError


def test_everything_that_is_not_said_has_a_default() -> None:
    assert EtcdAddress.parse("etcd://a") == EtcdAddress(("a:2379",), "mooncake-store")
    assert EtcdAddress.parse("etcd://a").lease_s == 2


@pytest.mark.parametrize(
    ("uri", "endpoints", "prefix", "user", "password"),
    [
        ("etcd://a,b:1,c", ("a:2379", "b:1", "c:2379"), "mooncake-store", "", ""),
        ("etcd://[::1],[fd00::2]:5/x", ("[::1]:2379", "[fd00::2]:5"), "x", "", ""),
        ("etcd://u@a/x/y/", ("a:2379",), "x/y", "u", ""),
        ("etcd://u%40d:p%3A%2F%40@a,b", ("a:2379", "b:2379"), "mooncake-store", "u@d", "p:/@"),
    ],
)
def test_endpoints_prefix_and_login(
    uri: str, endpoints: tuple[str, ...], prefix: str, user: str, password: str
) -> None:
    found = EtcdAddress.parse(uri)
    assert (found.endpoints, found.prefix) == (endpoints, prefix)
    assert (found.user, found.password) == (user, password)
    assert password == "" or password not in str(found) + repr(found)


def test_options(tmp_path: Path) -> None:
    for name in ("ca", "cert", "key"):
        (tmp_path / name).write_text("")
    (tmp_path / "password").write_text("secret%\n")
    files = f"ca={tmp_path}/ca&cert={tmp_path}/cert&key={tmp_path}/key"
    found = EtcdAddress.parse(f"etcd://u@a?{files}&password_file={tmp_path}/password&lease=5s")
    assert found.tls == Tls(f"{tmp_path}/ca", f"{tmp_path}/cert", f"{tmp_path}/key")
    assert (found.password, found.lease_s) == ("secret%", 5)
    assert EtcdAddress.parse("etcd://a?tls=1").tls == Tls()
    assert EtcdAddress.parse("etcd://a?tls=0").tls is None


@pytest.mark.parametrize(
    "uri",
    [
        "etcd://",
        "etcd://a,",
        "etcd://a:b",
        "etcd://a:0",
        "etcd://a:65536",
        "etcd://::1",
        "etcd://[::1",
        "etcd://@a",
        "etcd://:secret@a",
        "etcd://a?nonsense=1",
        "etcd://a?cert=/etc/hostname",
        "etcd://a?ca=/nowhere/ca.pem",
        "etcd://u@a?password_file=/nowhere/password",
        "etcd://a?lease=2",
        "etcd://a?lease=500ms",
        "etcd://a?lease=1500ms",
    ],
)
def test_what_is_no_address_is_refused_without_its_secret(uri: str) -> None:
    with pytest.raises(ConfigError) as found:
        EtcdAddress.parse(uri)
    assert "secret" not in str(found.value)


def test_the_end_of_a_prefix() -> None:
    assert prefix_end(b"a/") == b"a0"
    assert prefix_end(b"a\xff\xff") == b"b"
