"""`config check`: the files and folders that a configuration names."""

from __future__ import annotations

import json
import os
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from mooncake_store.cli.app import run
from mooncake_store.cli.config_files import Finding, findings_of
from mooncake_store.master.config import MasterConfig
from mooncake_store.store.config import StoreServerConfig

trustme = pytest.importorskip("trustme", reason="trustme is not installed")


@pytest.fixture(scope="module")
def pem(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files of an authority, a node with its key, and another one's key."""
    folder = tmp_path_factory.mktemp("pem")
    authority = trustme.CA()
    node, other = authority.issue_cert("127.0.0.1"), authority.issue_cert("127.0.0.2")
    authority.cert_pem.write_to_path(folder / "ca")
    node.cert_chain_pems[0].write_to_path(folder / "cert")
    node.private_key_pem.write_to_path(folder / "key")
    other.private_key_pem.write_to_path(folder / "other")
    for name in ("key", "other"):
        (folder / name).chmod(0o600)
    (folder / "empty").write_bytes(b"")
    (folder / "text").write_text("no PEM\n")
    (folder / "public").write_bytes((folder / "key").read_bytes())
    (folder / "public").chmod(0o644)
    return folder


def check(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> tuple[int, list[dict[str, str]]]:
    """Exit code and findings; people are told the same."""
    path = tmp_path / "c.toml"
    path.write_text(text)
    code = run(["config", "check", str(path), "--json"])
    document = json.loads(capsys.readouterr().out)
    assert document["ok"] is (code == 0)
    assert run(["config", "check", str(path)]) == code
    told = capsys.readouterr()
    for finding in document["findings"]:
        assert f"{finding['setting']}: {finding['path']}: {finding['problem']}" in told.out
        assert finding["fix"] in told.err
    assert ("is fine" in told.err) is (code == 0)
    return code, document["findings"]


def etcd(pem: Path, options: str, table: str = "master") -> str:
    named = "&".join(
        f"{option}={pem / name}" for option, name in (o.split("=") for o in options.split("&"))
    )
    key = "coordinator" if table in ("master", "server") else "master"
    return f'[{table}]\n{key} = "etcd://root:secret@127.0.0.1/p?{named}"\n'


@pytest.mark.parametrize(
    "options", ["ca=ca", "cert=cert&key=key", "ca=ca&cert=cert&key=key&password_file=text"]
)
def test_files_that_can_be_used_are_fine(
    options: str, pem: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for table in ("master", "server", "context.far"):
        assert check(etcd(pem, options, table), tmp_path, capsys) == (0, [])


@pytest.mark.parametrize(
    ("options", "setting", "name", "problem"),
    [
        ("ca=none", "master.coordinator", "", "ca="),
        ("password_file=none", "master.coordinator", "", "password_file="),
        ("ca=empty", "master.coordinator (ca)", "empty", "is empty"),
        ("ca=text", "master.coordinator (ca)", "text", "no certificate of an authority"),
        ("cert=cert&key=other", "master.coordinator (cert)", "cert", "belongs to the key"),
        ("cert=text&key=key", "master.coordinator (cert)", "text", "belongs to the key"),
        ("cert=cert&key=public", "master.coordinator (key)", "public", "every user"),
    ],
)
def test_a_certificate_that_cannot_be_used_is_told(
    options: str,
    setting: str,
    name: str,
    problem: str,
    pem: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, (finding,) = check(etcd(pem, options), tmp_path, capsys)
    assert code == 2
    assert finding["setting"] == setting
    assert problem in finding["problem"]
    assert "secret" not in json.dumps(finding)
    if name:
        assert finding["path"] == str(pem / name)


def test_a_context_is_looked_at_too(
    pem: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, (finding,) = check(etcd(pem, "ca=text", "context.far"), tmp_path, capsys)
    assert (code, finding["setting"]) == (2, "context.far.master (ca)")


def test_folders_are_looked_at(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    fine = (
        f'[master]\ncoordinator = "local:{tmp_path}/a/b"\n[server]\nsegment_dir = "{tmp_path}/c"\n'
    )
    assert check(fine, tmp_path, capsys) == (0, [])
    for text, setting, problem in (
        (f'[server]\nsegment_dir = "{tmp_path}/file"', "server.segment_dir", "is a file"),
        (f'[server]\nsegment_dir = "{tmp_path}/file/x"', "server.segment_dir", "is a file"),
        ('[server]\nsegment_dir = "here"', "server.segment_dir", "no absolute path"),
        ('[master]\ncoordinator = "local:here"', "master.coordinator", "no absolute path"),
        (f'[server]\ncoordinator = "local:{tmp_path}/no"', "server.coordinator", "is not there"),
    ):
        code, (finding,) = check(text + "\n", tmp_path, capsys)
        assert (code, finding["setting"]) == (2, setting)
        assert problem in finding["problem"]


def findings_of_nobody(components: dict[str, Any]) -> list[Finding]:
    """What a user without rights is told; root may read and write everything."""
    if os.geteuid() != 0:
        return findings_of(components, {})
    told, tell = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setresgid(65534, 65534, 65534)
            os.setresuid(65534, 65534, 65534)
            found = [asdict(finding) for finding in findings_of(components, {})]
            os.write(tell, json.dumps(found).encode())
        finally:
            os._exit(0)
    os.close(tell)
    with open(told) as file:
        text = file.read()
    os.waitpid(child, 0)
    return [Finding(**finding) for finding in json.loads(text)]


def test_what_this_user_may_not_use_is_told(pem: Path) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        closed = folder / "closed"
        closed.mkdir(0o555)
        (folder / "mine").write_bytes((pem / "ca").read_bytes())
        (folder / "mine").chmod(0)
        server = StoreServerConfig(segment_dir=f"{closed}/x")
        (found,) = findings_of_nobody({"server": server})
        assert "cannot be made" in found.problem and "give it to user" in found.fix
        master = MasterConfig(coordinator=f"etcd://127.0.0.1/p?ca={folder / 'mine'}")
        (found,) = findings_of_nobody({"master": master})
        assert found.problem == "this file cannot be read: Permission denied"
