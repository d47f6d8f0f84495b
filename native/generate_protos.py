"""Generates the Python stubs of the protos: `make protos`, after a change of one.

The stubs are committed, so that installing needs no compiler of protos. They are made with the
grpcio-tools that pyproject.toml asks for: those of a newer one would refuse older runtimes.
"""

from __future__ import annotations

import sys
from pathlib import Path

from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent.parent
PROTOS = ROOT / "mooncake_store" / "protocol"
SERVICES = ("conductor", "master", "store")


def generate(target: Path) -> list[Path]:
    """Write the stubs below `target` and return them, relative to it."""
    files = [str(path.relative_to(ROOT)) for path in sorted(PROTOS.glob("*.proto"))]
    services = [name for name in files if Path(name).stem in SERVICES]
    base = ["protoc", f"--proto_path={ROOT}"]
    for arguments in (
        [f"--python_out={target}", f"--pyi_out={target}", *files],
        [f"--grpc_python_out={target}", *services],
    ):
        if protoc.main([*base, *arguments]) != 0:
            raise SystemExit("protoc failed")
    return sorted(path.relative_to(target) for path in target.rglob("*_pb2*.py*"))


if __name__ == "__main__":
    generate(ROOT)
    sys.exit(0)
