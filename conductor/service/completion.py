"""A completion in OpenAI's form: what scheduling needs of it, and its two halves."""

from __future__ import annotations

import json
import re

from mooncake_store.conductor.service.block_names import BlockNames
from mooncake_store.conductor.service.decision import Request
from mooncake_store.conductor.service.documents import parse
from mooncake_store.errors import RequestError

__all__ = ["Completion", "OutputCount"]

_BYTES_A_TOKEN = 4  # of text whose tokens nobody has told
_TAIL_BYTES = 4096
_USAGE = re.compile(rb'"completion_tokens"\s*:\s*(\d{1,9})')


class Completion:
    """The body of a request to `/v1/completions` or `/v1/chat/completions`.

    Args:
        body: As it came.

    Raises:
        RequestError: It is no JSON object with `prompt` or `messages`.

    Attributes:
        body: As it came.
    """

    def __init__(self, body: bytes) -> None:
        self.body = body
        self._document = parse(body)
        self._prompt = self._document.get("prompt", self._document.get("messages"))
        if self._prompt is None:
            raise RequestError("prompt or messages is missing")

    def request(self, request_id: str, names: BlockNames, output_mean: float) -> Request:
        """Return what is to be scheduled.

        A prompt of token ids is hashed as engines do.  Of text nobody here knows the tokens: it is
        taken for one token each four bytes, and equal beginnings have equal blocks.

        Args:
            request_id: Its name.
            names: How blocks are called.
            output_mean: Tokens of a usual answer; a limit above it says nothing.

        Raises:
            RequestError: A token id is none.
        """
        prompt = self._prompt
        if isinstance(prompt, list) and prompt and all(type(one) is int for one in prompt):
            words = prompt
        else:
            text = prompt if isinstance(prompt, str) else json.dumps(prompt, ensure_ascii=False)
            data = text.encode(errors="replace")
            words = [
                int.from_bytes(data[at : at + _BYTES_A_TOKEN], "little")
                for at in range(0, len(data) - len(data) % _BYTES_A_TOKEN, _BYTES_A_TOKEN)
            ]
        limit = self._document.get("max_completion_tokens", self._document.get("max_tokens"))
        expected: float | None = None
        if isinstance(limit, int) and not isinstance(limit, bool) and limit > 0:
            expected = float(min(limit, output_mean))
        return Request(
            request_id=request_id,
            num_tokens=max(len(words), 1),
            blocks=names.of_tokens(words),
            expected_output=expected,
        )

    def first_half(self) -> bytes:
        """Return the body for the prefill instance: the prompt, and one token of an answer."""
        first = {**self._document, "stream": False}
        first.pop("stream_options", None)
        first.pop("best_of", None)
        for name in ("max_completion_tokens", "n"):
            if name in first:
                first[name] = 1
        if "max_tokens" in first or "max_completion_tokens" not in first:
            first["max_tokens"] = 1
        if "min_tokens" in first:
            first["min_tokens"] = 0
        return json.dumps(first).encode()

    def second_half(self, answered: bytes) -> bytes:
        """Return the body for the decode instance.

        Args:
            answered: By the prefill instance; its `kv_transfer_params` are passed on.

        Raises:
            RequestError: It is no JSON object.
        """
        params = parse(answered).get("kv_transfer_params")
        if params is None:
            return self.body
        return json.dumps({**self._document, "kv_transfer_params": params}).encode()


class OutputCount:
    """How many tokens an answer has, from its bytes as they pass."""

    def __init__(self) -> None:
        self._tail = b""

    def add(self, part: bytes) -> None:
        """Take the next bytes."""
        self._tail = (self._tail + part)[-_TAIL_BYTES:]

    @property
    def tokens(self) -> int | None:
        """What the answer's `usage` says, which is near its end; None: it has none."""
        found: list[bytes] = _USAGE.findall(self._tail)
        return int(found[-1]) if found else None
