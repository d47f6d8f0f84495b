"""What a request's blocks are called: by its tokens or by keys, in the index and in the store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mooncake_store.errors import ConfigError, RequestError
from mooncake_store.protocol.prefix import chain_digests, prefix_start

__all__ = ["BlockNames", "Blocks"]

_INDEX_HEX = 32  # of a digest's 64 hexadecimal digits the index keeps the first 16 bytes


@dataclass(frozen=True, slots=True)
class Blocks:
    """The full blocks of one prompt, from its head.

    Attributes:
        digests: Their chained hashes in hexadecimal.
        packed: The same as the index takes them, 16 bytes each.
    """

    digests: tuple[str, ...]
    packed: bytes

    def __len__(self) -> int:
        return len(self.digests)


class BlockNames:
    """How blocks are named: the engines and the conductor must agree on it.

    Args:
        block_tokens: Tokens of a block.
        namespace: Of `prefix_keys`: model, revision and whatever else must not share blocks.
        chain_start: h(0) of the chain in hexadecimal, instead of the namespace; a `CacheIdentity`
            has another one.
        key_prefixes: What stands before a block's digest in the store's keys; several if a block
            is several objects (ranks, slices of layers), of which the first tells that it is there.

    Raises:
        ConfigError: There is no prefix, or `chain_start` is no digest.
    """

    def __init__(
        self,
        block_tokens: int,
        namespace: str = "",
        chain_start: str = "",
        key_prefixes: Sequence[str] = ("p1-",),
    ) -> None:
        if not key_prefixes or not all(key_prefixes):
            raise ConfigError("key_prefixes names at least one prefix, and none is empty")
        self.block_tokens = block_tokens
        self.prefixes = tuple(key_prefixes)
        if chain_start:
            try:
                self._start = bytes.fromhex(chain_start)
            except ValueError as error:
                raise ConfigError("chain_start is 64 hexadecimal digits", cause=error) from error
            if len(self._start) != 32:
                raise ConfigError("chain_start is 64 hexadecimal digits")
        else:
            self._start = prefix_start(block_tokens, namespace)
        self._first = self.prefixes[0].encode()

    def of_tokens(self, token_ids: Sequence[int]) -> Blocks:
        """Return the blocks of a prompt.

        Raises:
            RequestError: A token id is no number from 0 to 2**32 - 1.
        """
        digests = list(chain_digests(self._start, token_ids, self.block_tokens))
        return Blocks(
            tuple(digest.hex() for digest in digests), b"".join(digest[:16] for digest in digests)
        )

    def of_keys(self, keys: Sequence[str]) -> Blocks:
        """Return the blocks that somebody else has named.

        Args:
            keys: Digests in hexadecimal (32 digits or more), or the store's keys, which begin with
                one of the prefixes.

        Raises:
            RequestError: One is neither.
        """
        prefixes = self.prefixes
        digests = []
        try:
            for key in keys:
                for prefix in prefixes:
                    if key.startswith(prefix):
                        key = key[len(prefix) :]
                        break
                digests.append(key)
            packed = bytes.fromhex("".join([digest[:_INDEX_HEX] for digest in digests]))
        except (AttributeError, TypeError, ValueError) as error:
            raise _bad_key(keys, prefixes) from error
        if len(packed) != 16 * len(digests) or any(len(one) < _INDEX_HEX for one in digests):
            raise _bad_key(keys, prefixes)
        return Blocks(tuple(digests), packed)

    def index_key(self, store_key: bytes) -> bytes | None:
        """Return the index's 16 bytes of a key of the store; None: it is no first part of ours."""
        first = self._first
        if not store_key.startswith(first):
            return None
        digits = store_key[len(first) : len(first) + _INDEX_HEX]
        try:
            found = bytes.fromhex(digits.decode("ascii"))
        except ValueError:
            return None
        return found if len(found) == 16 else None

    def store_keys(self, digest: str) -> list[str]:
        """Return the keys of all objects of a block."""
        return [prefix + digest for prefix in self.prefixes]


def _bad_key(keys: Sequence[str], prefixes: Sequence[str]) -> RequestError:
    for place, key in enumerate(keys):
        if not isinstance(key, str):
            return RequestError(f"a block's key is text, not {repr(key)[:80]} (key {place})")
        digits = next((key[len(one) :] for one in prefixes if key.startswith(one)), key)
        if not _is_digest(digits):
            return RequestError(
                f"a block's key is at least {_INDEX_HEX} hexadecimal digits, alone or behind one "
                f"of the conductor's key prefixes ({', '.join(prefixes)}), not {repr(key)[:80]} "
                f"(key {place})"
            )
    return RequestError("the keys of blocks are a list of texts")


def _is_digest(digits: str) -> bool:
    try:
        return len(bytes.fromhex(digits[:_INDEX_HEX])) == _INDEX_HEX // 2
    except ValueError:
        return False
