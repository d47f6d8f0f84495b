"""Reading traces: the shipped sample, and files that are none."""

from __future__ import annotations

from itertools import pairwise

import pytest

from mooncake_store.cli.trace_file import SAMPLE, Request, read_trace
from mooncake_store.errors import ConfigError


def test_sample_is_whole_and_as_published():
    requests = list(read_trace())

    assert len(requests) == 1000
    assert requests[0].hash_ids == tuple(range(14))
    assert requests[0].input_length == 6758
    # One id a block of 512 tokens, none twice in a request, and time does not go back.
    assert all(len(r.hash_ids) == -(-r.input_length // 512) for r in requests)
    assert all(len(set(r.hash_ids)) == len(r.hash_ids) for r in requests)
    assert all(a.timestamp_ms <= b.timestamp_ms for a, b in pairwise(requests))


def test_limit_takes_the_first_requests():
    assert list(read_trace(limit=3)) == list(read_trace())[:3]


def test_plain_lines_are_read_too(tmp_path):
    path = tmp_path / "trace.jsonl"
    path.write_text('{"timestamp": 5, "input_length": 3, "output_length": 2, "hash_ids": [7]}\n')

    assert list(read_trace(path)) == [Request(5, 3, 2, (7,))]


@pytest.mark.parametrize(
    "line", ["not json", "{}", '{"timestamp": 1, "input_length": 1, "hash_ids": [1]}', "[1, 2]"]
)
def test_line_that_is_no_request_names_file_and_line(tmp_path, line):
    path = tmp_path / "trace.jsonl"
    path.write_text(line + "\n")

    with pytest.raises(ConfigError, match=r"line 1 of .*trace\.jsonl"):
        list(read_trace(path))


@pytest.mark.parametrize("name", ["absent.jsonl", "absent.jsonl.xz"])
def test_missing_file_is_a_configuration_error(tmp_path, name):
    with pytest.raises(ConfigError, match="cannot be read"):
        list(read_trace(tmp_path / name))


def test_broken_compression_is_a_configuration_error(tmp_path):
    path = tmp_path / "trace.jsonl.xz"
    path.write_bytes(SAMPLE.read_bytes()[:100])

    with pytest.raises(ConfigError, match="cannot be read"):
        list(read_trace(path))
