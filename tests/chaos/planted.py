"""Rules that a test build leaves out, so that it is seen that the checker notices.

The test build is the shipped code with `-DMS_PLANTED_FAULTS`, in a folder of its own; which rule is
left out says $MOONCAKE_STORE_PLANTED, at run time. The extension that ships has no trace of it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_PACKAGE = ROOT / "mooncake_store"
_BUILD = ROOT / "build" / "planted"


def planted_path() -> Path:
    """Where the package with the test build is: first in PYTHONPATH."""
    return _BUILD


def build_planted() -> None:
    """Build it, or what has changed of it.

    Raises:
        CalledProcessError: It cannot be compiled.
    """
    package = _BUILD / "mooncake_store"
    package.mkdir(parents=True, exist_ok=True)
    for path in _PACKAGE.iterdir():
        if path.suffix != ".so" and path.name != "__pycache__":
            link = package / path.name
            if not link.is_symlink():
                link.symlink_to(path)
    subprocess.run(
        [sys.executable, "setup.py", "-q", "build_ext", "--build-lib", str(_BUILD)],
        cwd=ROOT,
        env={**os.environ, "MOONCAKE_STORE_PLANTED_FAULTS": "1"},
        check=True,
    )
