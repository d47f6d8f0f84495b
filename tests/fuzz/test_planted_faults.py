"""The fuzzer finds faults that are planted for it, and leaves the input that shows them."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROTOCOL = "mooncake_store/protocol"
SEED = 20_250_101
ENVIRONMENT = {
    **os.environ,
    "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=0",
    "UBSAN_OPTIONS": "halt_on_error=1",
}

# planted fault: what a sanitizer or an assertion says of it
FAULTS = {
    "MS_PLANT_READER_SLACK=1u": "heap-buffer-overflow",
    "MS_PLANT_SEAL_TENANT=0u": "Assertion",
    "MS_PLANT_PAGES=1u": "Assertion",
}


def build(folder: Path, fault: str | None) -> Path:
    sources = [*ROOT.glob("tests/fuzz/*.c"), *ROOT.glob(f"{PROTOCOL}/src/*.c")]
    includes = ("tests/c", "tests/fuzz", f"{PROTOCOL}/include", f"{PROTOCOL}/src", "third_party")
    program = folder / (fault or "sound")
    subprocess.run(
        [
            os.environ.get("CC", "gcc"),
            *("-std=gnu11", "-D_GNU_SOURCE", "-g", "-O1", "-fsanitize=address,undefined"),
            *("-fno-sanitize-recover=undefined", "-fno-omit-frame-pointer"),
            *([f"-D{fault}"] if fault else []),
            *(f"-I{ROOT / name}" for name in includes),
            str(ROOT / "tests/c/frame_fuzz_test.c"),
            *map(str, sources),
            *("-o", str(program)),
        ],
        check=True,
        timeout=120,
    )
    return program


def fuzz(program: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(program), *map(str, arguments)],
        cwd=ROOT,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=120,
    )


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("sound"), None)


@pytest.mark.skipif(shutil.which(os.environ.get("CC", "gcc")) is None, reason="needs gcc")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("fault", FAULTS)
def test_fuzzer_finds_the_planted_fault(fault: str, sound: Path, tmp_path: Path) -> None:
    program = build(tmp_path, fault)
    left_behind = tmp_path / "input"
    found = fuzz(program, SEED, 1_000_000, left_behind)
    assert found.returncode != 0, f"{fault} was not found"
    assert f"seed {SEED}" in found.stdout
    assert FAULTS[fault] in found.stderr

    # The input that it left shows the fault again, and shows none without the fault.
    assert left_behind.stat().st_size > 0
    again = fuzz(program, "--replay", left_behind)
    assert again.returncode != 0
    assert FAULTS[fault] in again.stderr
    cured = fuzz(sound, "--replay", left_behind)
    assert cured.returncode == 0, cured.stderr


def test_sound_decoders_pass_and_leave_nothing(sound: Path, tmp_path: Path) -> None:
    done = fuzz(sound, SEED, 200_000, tmp_path / "input")
    assert done.returncode == 0, done.stdout + done.stderr
    assert not (tmp_path / "input").exists()
