"""Builds and runs the C tests: plain, under AddressSanitizer + UBSan, and under ThreadSanitizer.

A test is a program `tests/c/NAME_test.c`; it passes when it exits with 0.  It says what it needs in
comments at its top:

    // sources: transfer_engine/src/*.c mooncake_store/protocol/src/*.c    (linked with it)
    // variants: plain address                  (default: plain address thread)
    // timeout: 120                             (seconds; default 60)
    // flags: -Wl,--wrap=malloc                 (further compiler and linker flags)
    // flags of store/src: -DST_TEST_STEPS      (only for that folder's sources, so that objects of
                                                the others are shared with other tests)
    // library: tests/c/fake_verbs.c libibverbs.so.1   (a shared object of that file; it stands for
                                                the library of that name when the test opens it)

    tests/c/run.py [--variant NAME] [--jobs N] [NAME ...]
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "native"))

import build_ffi  # noqa: E402

BUILD_DIR = ROOT / "build" / "c-test"
VARIANTS = ("plain", "address", "thread")
ENVIRONMENT = {
    "ASAN_OPTIONS": "detect_leaks=1:abort_on_error=0:detect_stack_use_after_return=1",
    "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
    "TSAN_OPTIONS": "halt_on_error=1:second_deadlock_stack=1",
}


@dataclass(frozen=True)
class Test:
    """One program and what its comments ask for."""

    path: Path
    sources: tuple[Path, ...]
    variants: tuple[str, ...]
    timeout_s: float
    flags: tuple[str, ...]
    folder_flags: dict[str, tuple[str, ...]]
    library: tuple[Path, str] | None

    @property
    def name(self) -> str:
        return self.path.stem

    @classmethod
    def read(cls, path: Path) -> Test:
        """Read a test's comments; a pattern that names no file is a mistake."""
        asked = dict(
            re.findall(
                r"^// (sources|variants|timeout|flags|library):(.*)$", path.read_text(), re.M
            )
        )
        sources: list[Path] = []
        for pattern in asked.get("sources", "").split():
            found = sorted(ROOT.glob(pattern))
            if not found:
                raise SystemExit(f"{path.name}: no source {pattern}")
            sources += [source for source in found if source not in sources]
        variants = tuple(asked.get("variants", " ".join(VARIANTS)).split())
        if not set(variants) <= set(VARIANTS):
            raise SystemExit(f"{path.name}: variants are {' '.join(VARIANTS)}")
        timeout_s = float(asked.get("timeout", "60"))
        flags = tuple(asked.get("flags", "").split())
        folder_flags = {
            folder: tuple(given.split())
            for folder, given in re.findall(r"^// flags of (\S+):(.*)$", path.read_text(), re.M)
        }
        library = None
        if "library" in asked:
            source, name = asked["library"].split()
            library = (ROOT / source, name)
        return cls(path, tuple(sources), variants, timeout_s, flags, folder_flags, library)

    def flags_of(self, source: Path) -> tuple[str, ...]:
        """Return the flags with which a file of this test is compiled."""
        folder = str(source.parent.relative_to(ROOT))
        return self.flags + self.folder_flags.get(folder, ())


class Builder:
    """Compiles each file once a variant, and again when it or a header of it has changed."""

    def __init__(self) -> None:
        self._locks: dict[Path, threading.Lock] = {}
        self._guard = threading.Lock()

    def program(self, test: Test, variant: str) -> Path:
        """Return the program of a test, made from its objects."""
        objects = [
            self._object(path, variant, test.flags_of(path)) for path in (test.path, *test.sources)
        ]
        program = BUILD_DIR / variant / test.name
        library = []
        if test.library is not None:
            made = self._library(*test.library, variant)
            objects.append(made)
            library = [f"-Wl,-rpath,{made.parent}"]
        if _is_older(program, objects):
            sanitize = build_ffi.sanitizer_flags(None if variant == "plain" else variant)
            names = [str(path) for path in objects]
            libraries = [*library, "-pthread", "-lm", "-ldl"]
            _gcc([*sanitize, *names, "-o", str(program), *test.flags, *libraries])
        return program

    def _library(self, source: Path, name: str, variant: str) -> Path:
        made = self._object(source, variant, ("-fPIC",))
        # A folder of its own: another test must not find it by looking for its own library.
        library = BUILD_DIR / variant / "lib" / source.stem / name
        with self._guard:
            lock = self._locks.setdefault(library, threading.Lock())
        with lock:
            if _is_older(library, [made]):
                library.parent.mkdir(parents=True, exist_ok=True)
                sanitize = build_ffi.sanitizer_flags(None if variant == "plain" else variant)
                shared = ["-shared", f"-Wl,-soname,{name}", "-pthread"]
                _gcc([*sanitize, *shared, str(made), "-o", str(library)])
        return library

    def _object(self, source: Path, variant: str, flags: tuple[str, ...]) -> Path:
        # Linker flags (-Wl,...) do not make another object, others do.
        compile_flags = [flag for flag in flags if not flag.startswith(("-Wl,", "-l"))]
        mark = "".join(re.sub(r"\W", "_", flag) for flag in compile_flags)
        name = str(source.relative_to(ROOT)).replace("/", "-").removesuffix(".c")
        target = BUILD_DIR / variant / f"{name}{mark}.o"
        with self._guard:
            lock = self._locks.setdefault(target, threading.Lock())
        with lock:
            if _is_older(target, _dependencies(target)):
                target.parent.mkdir(parents=True, exist_ok=True)
                sanitize = build_ffi.sanitizer_flags(None if variant == "plain" else variant)
                includes = [f"-I{ROOT / name}" for name in [*build_ffi.include_dirs(), "tests/c"]]
                _gcc(
                    [
                        *(flag for flag in build_ffi.COMPILE_FLAGS if flag != "-O3"),
                        "-O2" if variant == "plain" else "-O1",
                        "-D_GNU_SOURCE",
                        *build_ffi.WARNING_FLAGS,
                        *sanitize,
                        *compile_flags,
                        *includes,
                        "-MMD",
                        "-c",
                        str(source),
                        "-o",
                        str(target),
                    ]
                )
        return target


def _dependencies(target: Path) -> list[Path] | None:
    try:
        text = target.with_suffix(".d").read_text()
    except OSError:
        return None
    return [Path(name) for name in text.replace("\\\n", " ").split(":", 1)[1].split()]


def _is_older(target: Path, inputs: list[Path] | None) -> bool:
    try:
        made_ns = target.stat().st_mtime_ns
        return inputs is None or any(path.stat().st_mtime_ns > made_ns for path in inputs)
    except OSError:
        return True


def _gcc(arguments: list[str]) -> None:
    compiler = os.environ.get("CC", "gcc")
    done = subprocess.run([compiler, *arguments], capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(done.stdout + done.stderr)


def _fixed_addresses() -> list[str]:
    """Return the prefix that runs a program without address randomisation, where that is allowed.

    ThreadSanitizer of gcc before 14 cannot place its shadow under newer kernels' randomisation.
    """
    prefix = ["setarch", os.uname().machine, "-R"]
    if shutil.which("setarch") is None:
        return []
    allowed = subprocess.run([*prefix, "true"], capture_output=True).returncode == 0
    return prefix if allowed else []


def run(test: Test, variant: str, builder: Builder, prefix: list[str]) -> str | None:
    """Build and run one test in one variant; return None when it passed, else what went wrong."""
    try:
        program = builder.program(test, variant)
    except RuntimeError as error:
        return f"does not build:\n{error}"
    command = [*(prefix if variant == "thread" else []), str(program)]
    try:
        done = subprocess.run(
            command,
            cwd=ROOT,
            env={**os.environ, **ENVIRONMENT},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=test.timeout_s,
            text=True,
            errors="replace",
        )
    except subprocess.TimeoutExpired as error:
        output = error.stdout or b""
        text = output.decode(errors="replace") if isinstance(output, bytes) else output
        return f"not done after {test.timeout_s:g} s:\n{text[-4000:]}"
    if done.returncode == 0:
        return None
    return f"exit status {done.returncode}:\n{done.stdout[-8000:]}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="tests to run (default: all)")
    parser.add_argument("--variant", choices=VARIANTS, help="only this variant")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    arguments = parser.parse_args()

    paths = sorted((ROOT / "tests" / "c").glob("*_test.c"))
    tests = [
        Test.read(path) for path in paths if not arguments.names or path.stem in arguments.names
    ]
    unknown = set(arguments.names) - {test.name for test in tests}
    if unknown:
        parser.error(f"no such test: {', '.join(sorted(unknown))}")
    cases = [
        (test, variant)
        for variant in VARIANTS
        for test in tests
        if variant in test.variants and arguments.variant in (None, variant)
    ]
    builder = Builder()
    prefix = _fixed_addresses()
    failures = 0

    def timed(case: tuple[Test, str]) -> tuple[str | None, float]:
        started = time.monotonic()
        return run(*case, builder, prefix), time.monotonic() - started

    with ThreadPoolExecutor(arguments.jobs) as pool:
        for (test, variant), (problem, elapsed_s) in zip(
            cases, pool.map(timed, cases), strict=True
        ):
            verdict = "FAILED" if problem else "passed"
            print(f"{verdict} {variant:7} {test.name} ({elapsed_s:.1f} s)", flush=True)
            if problem:
                failures += 1
                print(problem, flush=True)
    print(f"C tests: {len(cases) - failures} passed, {failures} failed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
