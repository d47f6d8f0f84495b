"""Two masters, two store servers and a client on a real etcd: the leader dies, or freezes.

Deadlines here are generous: this machine is shared. How long it takes is measured elsewhere.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mooncake_store import Client
from mooncake_store.coordination.discovery import open_discovery
from mooncake_store.errors import (
    AccessRefusedError,
    SessionLostError,
    StoreError,
    UnavailableError,
)
from mooncake_store.protocol import frames
from mooncake_store.protocol.frames import Frame
from mooncake_store.protocol.methods import Method, Role

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

WITHIN_S = 20.0
HEADER_BYTES = 48


def until(is_so: Callable[[], Any], why: Callable[[], str] = str, timeout_s: float = WITHIN_S):
    end_s = time.monotonic() + timeout_s
    while not (found := is_so()):
        assert time.monotonic() < end_s, why()
        time.sleep(0.02)
    return found


class Process:
    """A master or a store server, from the command."""

    def __init__(self, folder: Path, name: str, *arguments: str) -> None:
        self.log_path = folder / f"{name}.log"
        self.ready_path = folder / f"{name}.ready"
        environment = {k: v for k, v in os.environ.items() if not k.startswith("MOONCAKE_STORE_")}
        environment |= {"XDG_RUNTIME_DIR": str(folder), "XDG_CONFIG_HOME": str(folder)}
        command = [sys.executable, "-m", "mooncake_store.cli.main", *arguments]
        with open(self.log_path, "ab") as log:
            self.process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", *command, "--ready-file", str(self.ready_path)],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def log(self) -> str:
        return self.log_path.read_text()

    @property
    def is_ready(self) -> bool:
        assert self.process.poll() is None, self.log()
        return self.ready_path.exists()

    @property
    def endpoints(self) -> dict[str, Any]:
        return dict(json.loads(self.ready_path.read_text()))

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def end(self) -> int:
        if self.process.poll() is None:
            self.signal(signal.SIGCONT)
            self.signal(signal.SIGTERM)
            try:
                self.process.wait(15.0)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
                raise AssertionError(f"not stopped in time: {self.log()}") from None
        return self.process.returncode


class Cluster:
    """Masters and store servers of one etcd."""

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self.folder = Path(tempfile.mkdtemp(prefix="mooncake-store-failover-", dir="/dev/shm"))
        self.masters: list[Process] = []
        self.servers: list[Process] = []

    def start_master(self) -> Process:
        name = f"master{len(self.masters)}"
        flags = ["--coordinator", self.uri, "--port", "0", "--no-grpc", "--name", name]
        self.masters.append(Process(self.folder, name, "master", *flags))
        return self.masters[-1]

    def start_server(self) -> Process:
        name = f"failover-{os.getpid()}-{len(self.servers)}"
        flags = ["--coordinator", self.uri, "--name", name, "--no-grpc", "--no-http"]
        flags += ["--pool-size", "64MiB", "--segment-dir", str(self.folder)]
        self.servers.append(Process(self.folder, name, "server", *flags))
        return self.servers[-1]

    def logs(self) -> str:
        return "\n".join(each.log() for each in [*self.masters, *self.servers])

    def close(self) -> None:
        for each in [*self.servers, *self.masters]:
            each.end()
        shutil.rmtree(self.folder, ignore_errors=True)


@pytest.fixture
def cluster(shared_etcd: Any, kit: Any) -> Iterator[Cluster]:
    """A leader, a standby and two servers, ready."""
    asyncio.run(shared_etcd.wait_ready())
    made = Cluster(f"etcd://{shared_etcd.members[0].endpoint}/failover{time.monotonic_ns()}")
    try:
        leader = made.start_master()
        until(lambda: leader.is_ready, leader.log)
        made.start_master()
        for _ in range(2):
            made.start_server()
        with Client(made.uri) as client:
            until(lambda: sum(m.state == "ready" for m in client.members()) == 2, made.logs)
        yield made
    finally:
        made.close()


def works(client: Client, key: str) -> bool:
    """Whether a put and a look-up are answered."""
    try:
        client.put(key, b"new", timeout_s=2.0)
        return client.get(key, timeout_s=2.0) == b"new"
    except SessionLostError:
        raise  # no call is under way when a leader ends here: each opens the session that it needs
    except StoreError:
        return False


class Asker:
    """A client of one master on a bare socket: whatever that answers, it sees."""

    def __init__(self, endpoints: dict[str, Any]) -> None:
        self.socket = socket.create_connection((endpoints["address"], endpoints["port"]), 10.0)
        self.answers = 0
        hello = frames.Hello(role=Role.TOOL, name=b"asker")
        self.ask(Method.HELLO, hello.encode())
        assert self.answer() is not None

    def ask(self, method: Method, body: bytes = b"") -> None:
        self.socket.sendall(Frame(method, request=self.answers + 1, body=body).encode())

    def answer(self) -> bytes | None:
        """The header of the next answer; None: the connection ended without one."""
        self.socket.settimeout(WITHIN_S)
        data = b""
        try:
            while len(data) < HEADER_BYTES:
                part = self.socket.recv(HEADER_BYTES - len(data))
                if not part:
                    return None
                data += part
            header = frames.Header.decode(data)
            length = header.body_length + header.payload_length + header.trailer_length
            while length > 0:
                length -= len(self.socket.recv(min(length, 65536)))
        except ConnectionError:
            return None
        self.answers += 1
        return data


def test_the_leader_is_killed_and_a_client_goes_on(cluster: Cluster) -> None:
    first, second = cluster.masters
    with Client(cluster.uri) as client:
        assert client.put("kept", b"old")
        first.process.kill()
        first.process.wait()
        until(lambda: works(client, "after"), cluster.logs)
        assert second.is_ready
        assert second.endpoints["epoch"] == 2
        assert client.get("kept") == b"old", cluster.logs()
        # And once more, back and forth.
        third = cluster.start_master()
        until(lambda: "standing_by" in third.log(), third.log)
        time.sleep(0.5)
        second.process.kill()
        second.process.wait()
        until(lambda: works(client, "after that"), cluster.logs)
        assert third.endpoints["epoch"] == 3
        assert client.get("kept") == b"old"
        assert client.get("after") == b"new"


@pytest.mark.parametrize("fault", [signal.SIGKILL, signal.SIGSTOP])
def test_a_client_opened_while_the_leader_changes_waits_for_the_next(
    cluster: Cluster, fault: signal.Signals
) -> None:
    first, second = cluster.masters
    with Client(cluster.uri) as client:
        assert client.put("kept", b"old")
    first.signal(fault)
    # The coordinator names the old leader until its lease ends.
    with Client(cluster.uri, connect_timeout_s=WITHIN_S) as client:
        assert second.endpoints["epoch"] == 2
        until(lambda: client.get("kept") == b"old", cluster.logs)


def test_a_drain_goes_on_under_the_next_leader(cluster: Cluster) -> None:
    first, second = cluster.masters
    with Client(cluster.uri) as client:
        names = sorted(member.name for member in client.members())
        for index in range(20):
            assert client.put(f"drained/{index}", b"value")
        task = client.drain(names[0])
        first.process.kill()
        first.process.wait()
        until(lambda: works(client, "after"), cluster.logs)
        assert second.endpoints["epoch"] == 2

        def is_done() -> bool:
            found = client.task(task.id)  # the same one, of the first leader's epoch
            return found is not None and found.state == "done"

        until(is_done, cluster.logs)
        states = {member.name: member.state for member in client.members()}
        assert states == {names[0]: "draining", names[1]: "ready"}
        for index in range(20):
            found = client.stat(f"drained/{index}")
            assert found is not None
            assert [replica.node for replica in found.replicas] == [names[1]]
        assert client.undrain(names[0]) is True


def test_the_leader_freezes_and_never_answers_again_as_such(cluster: Cluster, kit: Any) -> None:
    first, second = cluster.masters
    asker = Asker(first.endpoints)
    with Client(cluster.uri) as client:
        assert client.put("kept", b"old")
        asker.ask(Method.STATUS)
        assert asker.answer() is not None
        kit.freeze(first.process.pid)
        asker.ask(Method.STATUS)  # it is there when the old leader thaws
        until(lambda: works(client, "after"), cluster.logs)
        assert client.get("kept") == b"old", cluster.logs()
        first.signal(signal.SIGCONT)
        assert asker.answer() is None, "a former leader has answered"
        until(lambda: "lead_lost" in first.log(), first.log)
        until(lambda: first.log().count("standing_by") == 2, first.log)
        assert works(client, "after the thaw")
        # It is a standby again, and leads when the other one dies.
        second.process.kill()
        second.process.wait()
        until(lambda: works(client, "and back"), cluster.logs)
        assert first.endpoints["epoch"] == 3
        assert client.get("after") == b"new"


def test_a_view_lasts_over_a_new_leader_and_gives_its_pages_back(cluster: Cluster) -> None:
    first = cluster.masters[0]

    def freeing_bytes() -> int:
        return int(client.counters().totals["pool_freeing_bytes"])

    with Client(cluster.uri) as client:
        views = []
        for number in range(8):  # on both servers, whose numbers the next leader may swap
            client.put(f"viewed/{number}", b"%d" % number * 5000)
            views.append(client.view(f"viewed/{number}"))
        first.process.kill()
        first.process.wait()
        until(lambda: works(client, "after"), cluster.logs)
        assert [bytes(view.memory[:1]) for view in views] == [b"%d" % n for n in range(8)]
        for number in range(8):
            assert client.remove(f"viewed/{number}")
        until(lambda: freeing_bytes() > 0, cluster.logs)
        assert [bytes(view.memory[:1]) for view in views] == [b"%d" % n for n in range(8)]
        for view in views:
            view.close()
        until(lambda: freeing_bytes() == 0, cluster.logs)


def test_a_leader_that_is_stopped_hands_over_at_once(cluster: Cluster) -> None:
    first, second = cluster.masters
    with Client(cluster.uri) as client:
        assert client.put("kept", b"old")
        assert first.end() == 0
        until(lambda: works(client, "after"), cluster.logs)
        assert second.endpoints["epoch"] == 2
        assert client.get("kept") == b"old"


def test_the_command_finds_the_leader_and_health_tells_a_standby(cluster: Cluster) -> None:
    import urllib.error
    import urllib.request

    command = [sys.executable, "-m", "mooncake_store.cli.main", "status", "--json"]
    done = subprocess.run(
        [*command, "--master", cluster.uri], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["master"]["address"] == cluster.uri
    leader = cluster.masters[0].endpoints
    assert document["master"]["leader"] == f"127.0.0.1:{leader['port']}"
    assert document["master"]["epoch"] == leader["epoch"] == 1
    (standby,) = document["master"]["standbys"]
    assert standby["pid"] == cluster.masters[1].process.pid
    (port,) = {
        line.partition("http_serving port=")[2]
        for line in cluster.masters[1].log().splitlines()
        if "http_serving" in line
    }
    assert standby["address"].endswith(f"HTTP port {port}")
    text = subprocess.run(
        [*command[:-1], "--master", cluster.uri], capture_output=True, text=True, timeout=60
    ).stdout
    assert f"standby  {standby['address']} (process {standby['pid']} of " in text
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/livez", timeout=10) as answer:
        assert answer.status == 200
    with pytest.raises(urllib.error.HTTPError) as found:
        urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz?verbose", timeout=10)
    assert found.value.code == 503
    assert "stands by" in found.value.read().decode()


def test_a_client_of_a_cluster_imports_neither_grpc_nor_protobuf(cluster: Cluster) -> None:
    code = f"""
import sys
from mooncake_store import Client
with Client({cluster.uri!r}) as client:
    client.put("imports", b"x")
    assert client.get("imports") == b"x"
print([name for name in sys.modules if name.split(".")[0] in ("grpc", "google")])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]", done.stderr


def test_without_a_leader_a_client_says_so_in_time(shared_etcd: Any) -> None:
    endpoint = shared_etcd.members[0].endpoint
    started_s = time.monotonic()
    with pytest.raises(UnavailableError, match="no master leads"):
        Client(f"etcd://{endpoint}/nobody", connect_timeout_s=1.0)
    assert time.monotonic() - started_s < 5.0
    with pytest.raises(UnavailableError, match="no answer"):
        Client("etcd://user:secret@127.0.0.1:1/nobody", connect_timeout_s=1.0)


def test_a_single_master_is_found_through_its_folder(tmp_path: Path) -> None:
    uri = f"local:{tmp_path}/cluster"
    made = Cluster(uri)
    try:
        assert open_discovery(uri)(1.0) is None
        master = made.start_master()
        until(lambda: master.is_ready, master.log)
        made.start_server()
        with Client(uri) as client:
            until(lambda: works(client, "found"), made.logs)
            first_epoch = master.endpoints["epoch"]
            master.process.kill()  # the next one has another port
            master.process.wait()
            other = made.start_master()
            until(lambda: other.is_ready, other.log)
            until(lambda: works(client, "found again"), made.logs)
            assert other.endpoints["epoch"] == first_epoch + 1
            assert client.get("found") == b"new"
    finally:
        made.close()


def test_errors_have_no_password(shared_etcd: Any) -> None:
    endpoint = shared_etcd.members[0].endpoint
    with pytest.raises(StoreError) as found:
        Client(f"etcd://user:secret@{endpoint}/nobody", connect_timeout_s=0.3)
    assert not isinstance(found.value, AccessRefusedError)  # this etcd asks for none
    assert "secret" not in str(found.value)
