"""What is wrong with a document is told with its place and what stands there."""

from __future__ import annotations

from typing import Any

import pytest

from mooncake_store.conductor.service.block_names import BlockNames
from mooncake_store.conductor.service.documents import parse, read_heartbeat, read_request
from mooncake_store.errors import RequestError

NAMES = BlockNames(16, "", "", ("p1-", "p2-"))


@pytest.mark.parametrize(
    ("document", "told"),
    [
        ({}, "num_tokens is missing .*, or token_ids"),
        ({"num_tokens": 0}, "num_tokens is at least 1, not 0"),
        ({"token_ids": []}, r"at least one number, not \[\]"),
        ({"num_tokens": 9, "block_keys": "a"}, "block_keys is a list, not 'a'"),
        ({"num_tokens": 9, "slo": 5}, "with ttft_s and tbt_s, not 5"),
        ({"num_tokens": 9, "slo": {"ttft_s": -1}}, "ttft_s of slo is above 0, not -1"),
        ({"num_tokens": 9, "expected_output_tokens": 0}, "expected_output_tokens .*, not 0"),
        ({"num_tokens": 9, "block_keys": ["a" * 32, "zz"]}, r"\(p1-, p2-\), not 'zz' \(key 1\)"),
        ({"num_tokens": 9, "block_keys": ["p2-" + "a" * 31]}, r"not 'p2-a+' \(key 0\)"),
        ({"num_tokens": 9, "block_keys": ["a" * 32, 7]}, r"is text, not 7 \(key 1\)"),
        ({"num_tokens": 9, "block_keys": ["ab " * 11]}, r"\(key 0\)"),
    ],
)
def test_a_request_that_is_none(document: dict[str, Any], told: str) -> None:
    with pytest.raises(RequestError, match=told):
        read_request(document, NAMES, "r")


def test_a_body_and_a_heartbeat_that_are_none() -> None:
    with pytest.raises(RequestError, match=r"JSON object, not \[1\]"):
        parse(b"[1]")
    with pytest.raises(RequestError, match="sequence is 0 or more, and grows, not -1"):
        read_heartbeat({"sequence": -1})
    with pytest.raises(RequestError, match="load is an object, not 3"):
        read_heartbeat({"sequence": 1, "load": 3})
