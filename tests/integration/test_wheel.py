"""What a user gets from `pip install`: built from the source archive, away from this checkout."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run(*command: str, cwd: Path, **environment: str) -> str:
    done = subprocess.run(
        command,
        cwd=cwd,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    run(
        sys.executable,
        "-c",
        "from setuptools.build_meta import build_sdist; import sys; build_sdist(sys.argv[1])",
        str(folder),
        cwd=ROOT,
    )
    (archive,) = folder.glob("*.tar.gz")
    run(*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", ".", str(archive), cwd=folder)
    (found,) = folder.glob("*.whl")
    return found


@pytest.mark.slow
@pytest.mark.timeout(500)
def test_the_wheel_serves_every_python_from_3_10_and_holds_one_package(wheel: Path) -> None:
    assert wheel.name.startswith("mooncake_store-")
    assert "-cp310-abi3-linux_" in wheel.name
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names} == {
        "mooncake_store",
        next(name.split("/")[0] for name in names if ".dist-info/" in name),
    }
    assert {"mooncake_store/_native.abi3.so", "mooncake_store/py.typed"} <= set(names)
    assert not [name for name in names if name.endswith((".c", ".h", ".o"))]


@pytest.mark.slow
@pytest.mark.timeout(500)
def test_the_installed_wheel_works_without_the_checkout(wheel: Path, tmp_path: Path) -> None:
    target = tmp_path / "site"
    run(
        *[sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"],
        *["--no-deps", "--target", str(target), str(wheel)],
        cwd=tmp_path,
    )
    code = """
import importlib.util, mooncake_store
from mooncake_store._native import lib
rooms = ["cli", "client", "coordination", "master", "store", "transfer_engine"]
generic = [name for name in rooms if importlib.util.find_spec(name)]
print(mooncake_store.__file__, generic, lib.MS_OK)
"""
    output = run(sys.executable, "-c", code, cwd=tmp_path, PYTHONPATH=str(target))
    assert output == f"{target}/mooncake_store/__init__.py [] 0\n"
