"""The file that a conductor is warm from after a restart: what store servers held, and as of when.

A magic number, a header in JSON, the keys of each server's blocks, and a digest of it all.  What is
torn, changed or of something else is no file: a listing of the store takes its place.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mooncake_store.conductor.prefix_index import KEY_BYTES
from mooncake_store.errors import ConfigError

__all__ = ["IndexFile", "Kept"]

_MAGIC = b"MSCIDX02"
_LENGTH = struct.Struct("<I")
_DIGEST_BYTES = 32
_FILE_BYTES_MAX = 64 << 30


@dataclass(frozen=True, slots=True)
class Kept:
    """What is in the file.

    Attributes:
        cluster: Id of the store's cluster: epochs, and numbers of events, mean something there
            alone.
        epoch, sequence: Of the store's events: the last one that is in it.
        servers: Store servers by name, and the packed keys of their blocks.
    """

    cluster: int
    epoch: int
    sequence: int
    servers: Sequence[tuple[str, bytes]]


class IndexFile:
    """Reads and writes the file; nobody but its owner may.

    Args:
        path: Of the file; its folder is there.
        about: What the index is of: the store's address, how blocks are named.  A file about
            something else is not read.

    Raises:
        ConfigError: There is no such folder.
    """

    def __init__(self, path: Path, about: str) -> None:
        if not path.parent.is_dir():
            raise ConfigError(
                f"--index-file {path}: there is no folder {path.parent}", hint="make it first"
            )
        self._path = path
        self._about = about

    def write(self, kept: Kept) -> int:
        """Replace the file, all of it or nothing; return its bytes.

        Raises:
            OSError: It cannot be written.
        """
        header = json.dumps(
            {
                "about": self._about,
                "cluster": f"{kept.cluster:016x}",
                "epoch": kept.epoch,
                "sequence": kept.sequence,
                "servers": [[name, len(keys) // KEY_BYTES] for name, keys in kept.servers],
            }
        ).encode()
        parts = [_MAGIC, _LENGTH.pack(len(header)), header, *(keys for _, keys in kept.servers)]
        digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
        temporary = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        with contextlib.suppress(FileNotFoundError):
            temporary.unlink()  # of a process of the same number that was killed
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            with open(os.open(temporary, flags, 0o600), "wb") as file:
                for part in parts:
                    digest.update(part)
                    file.write(part)
                file.write(digest.digest())
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, self._path)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise
        self._sync_folder()
        return sum(map(len, parts)) + _DIGEST_BYTES

    def _sync_folder(self) -> None:
        folder = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def read(self) -> tuple[Kept | None, str]:
        """Return what is in the file, and why not if that is None."""
        try:
            flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
            with open(os.open(self._path, flags), "rb") as file:
                status = os.fstat(file.fileno())
                if not stat.S_ISREG(status.st_mode) or status.st_size > _FILE_BYTES_MAX:
                    return None, "it is no plain file of a size that can be"
                if status.st_uid != os.geteuid() or status.st_mode & 0o022:
                    return None, "others may have written it"
                data = file.read()
        except FileNotFoundError:
            return None, "there is none yet"
        except OSError as error:
            return None, f"it cannot be read: {error.strerror}"
        return self._parse(data)

    def _parse(self, data: bytes) -> tuple[Kept | None, str]:
        body, told = data[:-_DIGEST_BYTES], data[-_DIGEST_BYTES:]
        start = len(_MAGIC) + _LENGTH.size
        if len(body) < start or not body.startswith(_MAGIC):
            return None, "it is torn, or of another version"
        if hashlib.blake2b(body, digest_size=_DIGEST_BYTES).digest() != told:
            return None, "it is torn or was changed: its digest is another one"
        (length,) = _LENGTH.unpack_from(body, len(_MAGIC))
        try:
            header = json.loads(body[start : start + length])
            if header["about"] != self._about:
                return None, f"it is of {header['about']}, not of {self._about}"
            at, servers = start + length, []
            for name, count in header["servers"]:
                servers.append((str(name), body[at : at + count * KEY_BYTES]))
                at += count * KEY_BYTES
            cluster = int(header["cluster"], 16)
            kept = Kept(cluster, int(header["epoch"]), int(header["sequence"]), servers)
        except (KeyError, TypeError, ValueError) as error:  # not by `write`, or by a newer one
            return None, f"it is not understood: {error!r}"
        return (kept, "") if at == len(body) else (None, "it has not the length that it tells")
