"""A name for a model's weights that two machines agree on, without reading all of them."""

from __future__ import annotations

import hashlib
from pathlib import Path

__all__ = ["folder_fingerprint", "name_and_revision"]

_SAMPLE_BYTES = 64 << 10
_SAMPLES = 16
_WHOLE_BYTES = 8 << 20


def folder_fingerprint(folder: Path | str) -> str:
    """Return a fingerprint of a model's folder: of every file in it the name, size and content.

    Files of up to 8 MiB count whole, larger ones by 16 samples of 64 KiB, the first and the last of
    them at its ends.  Weights that were trained on differ in nearly all of their bytes; who changes
    a few of them by hand gives the model another revision.
    """
    digest = hashlib.sha256(b"mooncake-store model 1\0")
    root = Path(folder)
    for path in sorted(path for path in root.rglob("*") if path.is_file()):
        name = path.relative_to(root).as_posix()
        if any(part.startswith(".") for part in Path(name).parts):
            continue
        size = path.stat().st_size
        digest.update(f"{len(name.encode())}:{name}:{size}\0".encode())
        with path.open("rb") as file:
            if size <= _WHOLE_BYTES:
                digest.update(file.read())
                continue
            for sample in range(_SAMPLES):
                file.seek((size - _SAMPLE_BYTES) * sample // (_SAMPLES - 1))
                digest.update(file.read(_SAMPLE_BYTES))
    return digest.hexdigest()[:32]


def name_and_revision(
    served: str, *, model: str = "", revision: str = "", fallback: str = ""
) -> tuple[str, str]:
    """Return what a model and its weights are called in keys.

    Args:
        served: What the engine loads: a folder, or a name.
        model: As the user has set it; empty: not at all.
        revision: The same.
        fallback: The revision that the engine knows of.

    Returns:
        For a local folder the word `folder` and its fingerprint, wherever it lies.
    """
    if not revision:
        folder = Path(served)
        if folder.is_dir():
            return model or "folder", folder_fingerprint(folder)
    return model or served, revision or fallback
