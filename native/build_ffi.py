"""Describes `mooncake_store._native`, the one C extension, to cffi and to the C tests.

The public headers of the rooms are the whole contract: cffi reads the parts between
`/* begin cdef */` and `/* end cdef */`, the compiler reads everything.  A new header or source
needs no entry here, it is found by its place.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from cffi import FFI

ROOT = Path(__file__).resolve().parent.parent

# Lower rooms first: a header may include those of the rooms before its own.
ROOMS = ("mooncake_store/protocol", "transfer_engine", "master", "store", "client", "conductor")

CDEF_PART = re.compile(r"/\* begin cdef \*/\n(.*?)/\* end cdef \*/", re.DOTALL)
QUOTED_INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)

# gnu11: C11 and the Linux calls.  Assertions stay on (a broken invariant is a crash, also in
# production), whatever Python was compiled with.
COMPILE_FLAGS = ["-std=gnu11", "-O3", "-g", "-pthread", "-fvisibility=hidden", "-UNDEBUG"]
LINK_FLAGS = ["-pthread"]
# For what people wrote; the code that cffi generates converts as it likes.
WARNING_FLAGS = ["-Wall", "-Wextra", "-Wconversion", "-Werror"]

SANITIZERS = {
    "address": ["-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"],
    # It does not follow fences on their own, and gcc warns of each; they are needed all the same.
    "thread": ["-fsanitize=thread", "-Wno-tsan"],
}


def headers() -> list[Path]:
    """Return the rooms' public headers, relative to the root, each after those it includes."""
    found = [
        path.relative_to(ROOT)
        for room in ROOMS
        for path in sorted((ROOT / room / "include").glob("*.h"))
    ]
    by_name = {path.name: path for path in found}
    ordered: list[Path] = []

    def visit(path: Path) -> None:
        if path in ordered:
            return
        for name in QUOTED_INCLUDE.findall((ROOT / path).read_text()):
            included = by_name.get(Path(name).name)
            if included is not None and included != path:
                visit(included)
        ordered.append(path)

    for path in found:
        visit(path)
    return ordered


def sources() -> list[Path]:
    """Return every C file of the rooms, relative to the root."""
    return [
        path.relative_to(ROOT)
        for room in ROOMS
        for path in sorted((ROOT / room / "src").rglob("*.c"))
    ]


def include_dirs() -> list[str]:
    """Return the folders in which `#include "..."` looks, relative to the root."""
    parts = ("include", "src", "src/metadata")
    dirs = [f"{room}/{part}" for room in ROOMS for part in parts]
    return [name for name in [*dirs, "third_party"] if (ROOT / name).is_dir()]


def planted_macros() -> list[tuple[str, str | None]]:
    """Return what makes a test build whose rules can be left out (`ms_planted.h`)."""
    return [("MS_PLANTED_FAULTS", None)] if os.environ.get("MOONCAKE_STORE_PLANTED_FAULTS") else []


def sanitizer_flags(name: str | None) -> list[str]:
    """Return the compiler and linker flags of a sanitizer: `address`, `thread` or none."""
    if not name:
        return []
    if name not in SANITIZERS:
        raise SystemExit(
            f"MOONCAKE_STORE_SANITIZE={name}: use one of {', '.join(sorted(SANITIZERS))}"
        )
    return [*SANITIZERS[name], "-fno-omit-frame-pointer", "-O1"]


def cdef() -> str:
    """Return the declarations that Python sees."""
    parts: list[str] = []
    for path in headers():
        for part in CDEF_PART.findall((ROOT / path).read_text()):
            parts += [f"/* {path} */", part]
    return "\n".join(parts)


def _make_ffi() -> FFI:
    sanitize = sanitizer_flags(os.environ.get("MOONCAKE_STORE_SANITIZE"))
    builder = FFI()
    builder.cdef(cdef())
    builder.set_source(
        "mooncake_store._native",
        "".join(f'#include "{path.name}"\n' for path in headers()),
        sources=[str(path) for path in sources()],
        depends=[str(path) for path in headers()],
        include_dirs=include_dirs(),
        # 3.10: the oldest Python that loads the extension, and what its C may use of Python.
        define_macros=[
            ("Py_LIMITED_API", "0x030A0000"),
            ("_GNU_SOURCE", None),
            *planted_macros(),
        ],
        extra_compile_args=[*COMPILE_FLAGS, *sanitize],
        extra_link_args=[*LINK_FLAGS, *sanitize],
        py_limited_api=True,
    )
    return builder


ffi = _make_ffi()
