from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import mooncake_store

ROOT = Path(__file__).parents[2]
ROOMS = sorted(path.name for path in (ROOT / "mooncake_store").iterdir() if path.is_symlink())


def installed_version() -> str | None:
    """Return what this interpreter has installed, whatever checkout it was started in."""
    code = "import importlib.metadata as m; print(m.version('mooncake-store'))"
    done = subprocess.run(
        [sys.executable, "-I", "-c", code], cwd="/", capture_output=True, text=True, timeout=30
    )
    return done.stdout.strip() if done.returncode == 0 else None


INSTALLED_VERSION = installed_version()

needs_installation = pytest.mark.skipif(
    INSTALLED_VERSION is None, reason="mooncake-store is not installed here: make setup"
)


def run_elsewhere(code: str, folder: Path) -> str:
    """Run code in an interpreter that sees what is installed, and nothing of this checkout."""
    done = subprocess.run(
        [sys.executable, "-I", "-c", code],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_room_is_a_folder_at_the_top_and_a_link_in_the_package() -> None:
    assert {"cli", "client", "coordination", "master", "store", "transfer_engine"} <= set(ROOMS)
    for room in ROOMS:
        link = ROOT / "mooncake_store" / room
        assert link.readlink() == Path("..", room)
        assert (ROOT / room / "__init__.py").is_file()


@needs_installation
def test_generic_names_are_not_importable_at_the_top_level(tmp_path: Path) -> None:
    names = [*ROOMS, "protocol", "native", "tests"]
    code = f"""
import importlib.util
import mooncake_store
print([name for name in {names!r} if importlib.util.find_spec(name)])
"""
    assert run_elsewhere(code, tmp_path) == "[]\n"


@needs_installation
def test_the_package_and_its_extension_load_from_anywhere(tmp_path: Path) -> None:
    code = "from mooncake_store._native import ffi, lib; print(lib.MS_OK, lib.MS_EXISTS)"
    assert run_elsewhere(code, tmp_path) == "0 1\n"


def test_the_version_is_told_once_and_the_same_everywhere() -> None:
    declared = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert declared is not None
    assert mooncake_store.__version__ == declared[1]
    if INSTALLED_VERSION is not None:
        assert declared[1] == INSTALLED_VERSION


def test_the_package_says_that_it_is_typed() -> None:
    assert (ROOT / "mooncake_store" / "py.typed").is_file()


def test_importing_the_package_loads_no_library_that_an_engine_may_lack() -> None:
    code = """
import sys
import mooncake_store
heavy = {"grpc", "google.protobuf", "click", "rich", "starlette", "uvicorn", "torch", "numpy"}
print(sorted(heavy & sys.modules.keys()))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=30
    )
    assert done.stdout == "[]\n", done.stderr


def test_the_lowest_versions_declared_load_the_generated_stubs() -> None:
    declared = (ROOT / "pyproject.toml").read_text()
    stubs = sorted((ROOT / "mooncake_store/protocol").glob("*_pb2*.py"))
    assert stubs
    for stub in stubs:
        text = stub.read_text()
        if stub.stem.endswith("_grpc"):
            made_with = re.search(r"GRPC_GENERATED_VERSION = '([\d.]+)'", text)
            floor = re.search(r'"grpcio>=([\d.]+)"', declared)
        else:
            made_with = re.search(r"# Protobuf Python Version: ([\d.]+)", text)
            floor = re.search(r'"protobuf>=([\d.]+)"', declared)
        assert made_with is not None
        assert floor is not None
        versions = [
            tuple(int(part) for part in found[1].split(".")) for found in (made_with, floor)
        ]
        assert versions[0] <= versions[1], stub.name


def test_every_function_that_a_header_declares_is_defined() -> None:
    done = subprocess.run(
        ["nm", "--dynamic", "--undefined-only", ROOT / "mooncake_store/_native.abi3.so"],
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    assert re.findall(r"\b(?:ms|te|md|ma|st|cl)_\w+", done.stdout) == []
