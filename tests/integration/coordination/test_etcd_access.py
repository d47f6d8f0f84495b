"""Who may speak to etcd: TLS, client certificates, passwords; and secrets stay where they are."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

from mooncake_store.coordination.etcd_client.address import EtcdAddress
from mooncake_store.coordination.etcd_client.gateway import Gateway
from mooncake_store.coordination.etcd_client.store import Put, prefix_end
from mooncake_store.errors import AccessRefusedError, UnavailableError

trustme = pytest.importorskip("trustme", reason="trustme is not installed")
pytestmark = [pytest.mark.asyncio, pytest.mark.slow]

PASSWORD = "not: for/logs@all"
ENCODED = "not%3A%20for%2Flogs%40all"


@pytest.fixture(autouse=True)
def brief_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that nobody takes is tried for 1.5 s, not for 5."""
    monkeypatch.setattr("mooncake_store.coordination.etcd_client.endpoints._CALL_TIMEOUT_S", 1.5)


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """An authority, a certificate for the server, one for us, and a stranger's."""
    authority, stranger = trustme.CA(), trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    for name, issuer in (("server", authority), ("client", authority), ("other", stranger)):
        issued = issuer.issue_cert("127.0.0.1", common_name=name)
        issued.private_key_pem.write_to_path(tmp_path / f"{name}.key")
        with open(tmp_path / f"{name}.pem", "wb") as file:
            for part in issued.cert_chain_pems:
                file.write(part.bytes())
    return tmp_path


def server_flags(files: Path) -> list[str]:
    return ["--cert-file", f"{files}/server.pem", "--key-file", f"{files}/server.key"]


async def check_all_calls(client: Any, kit: Any) -> None:
    await kit.eventually(lambda: client.put(b"access", b"1"))
    start = (await client.read(b"access")).revision
    grant = await client.grant(5)
    assert await client.renew(grant.lease, timeout_s=2.0) > 0
    async with kit.collecting(client.watch(b"access", from_revision=start + 1)) as seen:
        await client.transact((), [Put(b"access", b"2")], is_repeatable=True)
        await seen.until(lambda seen: seen.values == [b"2"])
    await client.revoke(grant.lease)


async def read_over_http(uri: str, key: bytes) -> bytes | None:
    """What a client of the store does: no gRPC, the standard library alone."""
    gateway = Gateway(EtcdAddress.parse(uri))
    return await asyncio.to_thread(gateway.read, key, 3.0)


async def test_tls_with_an_authority_of_ones_own(
    start_etcd: Callable[..., Any], files: Path, kit: Any
) -> None:
    cluster = start_etcd(flags=server_flags(files), scheme="https", options=f"?ca={files}/ca.pem")
    client = cluster.client()
    await check_all_calls(client, kit)
    await client.close()
    assert await read_over_http(cluster.uri, b"access") == b"2"
    endpoint = cluster.members[0].endpoint
    for refused in (f"etcd://{endpoint}?tls=1", f"etcd://{endpoint}"):  # unknown to us; plain
        client = cluster.client(refused)
        with pytest.raises(UnavailableError):
            await client.read(b"access")
        await client.close()
        with pytest.raises(UnavailableError):
            await read_over_http(refused, b"access")


async def test_mtls_lets_in_whom_the_authority_knows(
    start_etcd: Callable[..., Any], files: Path, kit: Any
) -> None:
    flags = [*server_flags(files), "--client-cert-auth", "--trusted-ca-file", f"{files}/ca.pem"]
    ours = f"?ca={files}/ca.pem&cert={files}/client.pem&key={files}/client.key"
    cluster = start_etcd(flags=flags, scheme="https", options=ours)
    client = cluster.client()
    await check_all_calls(client, kit)
    await client.close()
    assert await read_over_http(cluster.uri, b"access") == b"2"
    endpoint = cluster.members[0].endpoint
    for options in (
        f"?ca={files}/ca.pem",
        f"?ca={files}/ca.pem&cert={files}/other.pem&key={files}/other.key",
    ):
        client = cluster.client(f"etcd://{endpoint}{options}")
        with pytest.raises(UnavailableError):
            await client.read(b"access")
        await client.close()
        with pytest.raises(UnavailableError):
            await read_over_http(f"etcd://{endpoint}{options}", b"access")


# ---- passwords ----


def field(number: int, value: bytes | str | int) -> bytes:
    """One field of a protobuf message; setting users up is no part of the client."""
    if isinstance(value, int):
        return bytes([number << 3, value])
    data = value.encode() if isinstance(value, str) else value
    assert len(data) < 128
    return bytes([number << 3 | 2, len(data)]) + data


def ask_for_passwords(endpoint: str) -> None:
    """Make a user `mooncake` who may only touch `test/`, and let nobody in without a name."""
    permission = field(1, 2) + field(2, "test/") + field(3, prefix_end(b"test/"))
    with grpc.insecure_channel(endpoint) as channel:
        for name, body in (
            ("UserAdd", field(1, "root") + field(2, "root")),
            ("RoleAdd", field(1, "root")),
            ("UserGrantRole", field(1, "root") + field(2, "root")),
            ("UserAdd", field(1, "mooncake") + field(2, PASSWORD)),
            ("RoleAdd", field(1, "store")),
            ("RoleGrantPermission", field(1, "store") + field(2, permission)),
            ("UserGrantRole", field(1, "mooncake") + field(2, "store")),
            ("AuthEnable", b""),
        ):
            call = channel.unary_unary(f"/etcdserverpb.Auth/{name}")
            call(body, timeout=10.0, wait_for_ready=True)


async def test_a_password_opens_what_its_user_may_touch_also_after_its_token_was_forgotten(
    start_etcd: Callable[..., Any], kit: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    cluster = start_etcd()
    (member,) = cluster.members
    await cluster.wait_ready()
    await asyncio.to_thread(ask_for_passwords, member.endpoint)
    uri = f"etcd://mooncake:{ENCODED}@{member.endpoint}/test"
    client = cluster.client(uri)
    gateway = Gateway(EtcdAddress.parse(uri))
    assert await asyncio.to_thread(gateway.read, b"test/a", 3.0) is None
    with pytest.raises(AccessRefusedError):
        await asyncio.to_thread(gateway.read, b"elsewhere", 3.0)
    start = await client.put(b"test/a", b"1")
    with pytest.raises(AccessRefusedError):
        await client.put(b"elsewhere", b"1")
    with pytest.raises(AccessRefusedError):
        await asyncio.wait_for(anext(client.watch(b"elsewhere", from_revision=1)), 20.0)
    async with kit.collecting(client.watch(b"test/a", from_revision=start + 1)) as seen:
        grant = await client.grant(5)
        assert await client.renew(grant.lease, timeout_s=2.0) > 0
        member.kill()  # which forgets all tokens
        member.start()
        await kit.eventually(lambda: client.put(b"test/a", b"2"))
        assert await asyncio.to_thread(gateway.read, b"test/a", 3.0) == b"2"
        await seen.until(lambda seen: seen.values == [b"2"])

        async def renew() -> None:
            assert await client.renew(grant.lease, timeout_s=2.0) > 0

        await kit.eventually(renew)
    (tmp_path / "password").write_text(PASSWORD + "\n")
    refused = [
        f"etcd://{member.endpoint}/test",
        f"etcd://mooncake:wrong@{member.endpoint}/test",
    ]
    allowed = f"etcd://mooncake@{member.endpoint}/test?password_file={tmp_path}/password"
    errors = []
    for uri in refused:
        stranger = cluster.client(uri)
        with pytest.raises(AccessRefusedError) as error:
            await stranger.read(b"test/a")
        errors.append(repr(error.value) + str(error.value.cause))
        await stranger.close()
        with pytest.raises(AccessRefusedError) as error:
            await read_over_http(uri, b"test/a")
        errors.append(repr(error.value) + str(error.value.cause))
    other = cluster.client(allowed)
    assert (await other.read(b"test/a")).entries[0].value == b"2"
    assert await read_over_http(allowed, b"test/a") == b"2"
    await other.close()
    await client.close()
    told = caplog.text + "".join(errors) + repr(EtcdAddress.parse(allowed))
    told += str(EtcdAddress.parse(f"etcd://mooncake:{ENCODED}@h/test"))
    assert PASSWORD not in told
    assert ENCODED not in told


async def test_a_user_of_an_etcd_that_asks_for_none_is_let_in(
    start_etcd: Callable[..., Any], kit: Any
) -> None:
    cluster = start_etcd()
    client = cluster.client(f"etcd://somebody:x@{cluster.members[0].endpoint}/test")
    await kit.eventually(lambda: client.put(b"access", b"1"))
    assert (await client.read(b"access")).entries[0].value == b"1"
    uri = f"etcd://somebody:x@{cluster.members[0].endpoint}/test"
    assert await read_over_http(uri, b"access") == b"1"
    await client.close()
