"""Completions in OpenAI's form: what is scheduled of them, and their halves."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mooncake_store.conductor.service.block_names import BlockNames
from mooncake_store.conductor.service.completion import Completion, OutputCount
from mooncake_store.errors import RequestError

NAMES = BlockNames(4, "", "", ("p1-",))


def request_of(**document: Any) -> Any:
    return Completion(json.dumps(document).encode()).request("r", NAMES, 100.0)


def test_token_ids_are_hashed_as_engines_do() -> None:
    found = request_of(prompt=[1, 2, 3, 4, 5, 6, 7, 8, 9])
    assert (found.num_tokens, len(found.blocks)) == (9, 2)
    assert found.blocks.digests == NAMES.of_tokens([1, 2, 3, 4, 5, 6, 7, 8]).digests


def test_equal_beginnings_of_text_are_equal_blocks() -> None:
    one = request_of(prompt="The same beginning, and one end")
    other = request_of(prompt="The same beginning, and another")
    assert one.num_tokens == 31 // 4
    assert one.blocks.digests[0] == other.blocks.digests[0]
    chats = [
        request_of(messages=[{"role": "user", "content": "Grüße aus Zürich " * 3 + end}])
        for end in ("a", "b")
    ]
    assert chats[0].blocks.digests[:3] == chats[1].blocks.digests[:3]
    assert request_of(prompt="").num_tokens == 1
    assert request_of(prompt="\ud800").num_tokens == 1


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({}, None),
        ({"max_tokens": 7}, 7.0),
        ({"max_tokens": 7, "max_completion_tokens": 5}, 5.0),
        ({"max_tokens": 10**400}, 100.0),
        ({"max_tokens": True}, None),
        ({"max_tokens": -1}, None),
        ({"max_tokens": "7"}, None),
    ],
)
def test_a_limit_is_room_at_most(limits: dict[str, Any], expected: float | None) -> None:
    assert request_of(prompt="x", **limits).expected_output == expected


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b"[" * 100_000, b'{"prompt": null}'])
def test_what_is_no_completion_is_refused(body: bytes) -> None:
    with pytest.raises(RequestError):
        Completion(body)


def test_a_token_id_that_is_none_is_refused() -> None:
    with pytest.raises(RequestError):
        request_of(prompt=[1, 2, 3, -4])


def test_the_second_half_is_what_came_unless_the_first_one_tells() -> None:
    completion = Completion(b'{ "prompt": "x", "stream": true}')
    assert completion.second_half(b'{"choices": []}') == completion.body
    told = json.loads(completion.second_half(b'{"kv_transfer_params": {"port": 1}}'))
    assert told == {"prompt": "x", "stream": True, "kv_transfer_params": {"port": 1}}
    with pytest.raises(RequestError):
        completion.second_half(b"oops")


def test_usage_is_read_wherever_the_parts_end() -> None:
    answer = b'data: {"usage": {"prompt_tokens": 9, "completion_tokens": 212}}\n\ndata: [DONE]\n\n'
    for at in range(len(answer)):
        count = OutputCount()
        for part in (b"x" * 9000, answer[:at], answer[at:]):
            count.add(part)
        assert count.tokens == 212
    count = OutputCount()
    count.add(json.dumps({"text": 'he said "completion_tokens": 5'}).encode())
    assert count.tokens is None
