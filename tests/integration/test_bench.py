"""The benchmark commands run and say what they measured; how fast it was is nobody's test."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

QUICK = ["--quick", "--json"]


def bench(*arguments: str) -> dict:
    done = subprocess.run(
        [sys.executable, "-m", "mooncake_store.cli.main", "bench", *arguments],
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    ("arguments", "rows"),
    [
        (["raw", "--rounds", "1"], ["round trip 64 B, TCP", "copy 16 MiB, nontemporal, 2 threads"]),
        (["transfer", "--rounds", "1"], ["read 4 KiB, TCP", "write 128 x 64 KiB, same host"]),
        (
            ["store", "--rounds", "1"],
            [
                "exists, 1 key, TCP",
                "get 4 KiB, TCP, first",
                "put 4 KiB, TCP, relayed",
                "get 64 KiB, 8 threads, same host",
                "get 16 MiB, same host, two threads",
                "put 16 MiB, same host, from store.alloc",
                "1 kHz ticker beside put 16 MiB, TCP, p99.9",
            ],
        ),
        (
            ["meta", "--rounds", "1", "--keys", "20000", "--core-keys", "100000"],
            [
                "exists, 1024 keys, TCP",
                "put 128 x 16 B, TCP",
                "client's threads after every method",
                "master, idle",
                "up, from the command to serving",
                "given back after removing a random 80 %",
            ],
        ),
        (
            ["restart"],
            ["master killed: new client reads", "both killed: lost", "inventory on the server"],
        ),
        (["checksums"], ["put 1 MiB, TCP", "get 1 MiB, TCP, checksums=verify"]),
        (
            ["failover", "--only", "master-killed", "--only", "holder-frozen"],
            [
                "master killed, no other: get, exists, match_prefix, p99 of 500",
                "holder frozen: slowest read, network, p99 of 2",
                "holder frozen: puts that failed",
            ],
        ),
        (["soak"], ["calls that raised", "server 1: memory grows by", "client: threads grow by"]),
        (["trace"], ["block hits, same host", "store a request, p99, TCP"]),
        (
            ["conductor"],
            [
                "decisions at 64 instances, earliest",
                "replay: requests without an answer, one of four servers killed",
                "replay: predicted over measured transfer time, median",
            ],
        ),
    ],
    ids=[
        "raw",
        "transfer",
        "store",
        "meta",
        "restart",
        "checksums",
        "failover",
        "soak",
        "trace",
        "conductor",
    ],
)
def test_command_measures_its_rows_on_this_machine(arguments, rows):
    said = bench(*arguments, *QUICK)

    names = [row["name"] for row in said["rows"]]
    assert said["benchmark"] == arguments[0]
    assert said["machine"]["cores"] == len(os.sched_getaffinity(0))
    assert not [name for name in rows if name not in names]
    for row in said["rows"]:
        assert row["value"] is not None
        assert (row["bar"] is None) == (row["met"] is None)
        if row["raw"] is not None and row["unit"] != "ms":
            assert row["ratio"] is not None


def test_no_put_is_refused_while_nothing_is_pinned():
    refused = [row for row in bench("evict", *QUICK)["rows"] if row["name"].endswith("refused")]

    assert len(refused) == 6
    assert all(row["met"] for row in refused)


def test_unknown_trace_is_an_error_that_names_the_file(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "mooncake_store.cli.main", "bench", "trace", "--trace",
         str(tmp_path / "absent.jsonl")],
        capture_output=True,
        text=True,
        timeout=60,
    )  # fmt: skip

    assert done.returncode == 2
    assert "absent.jsonl" in done.stderr
    assert "Traceback" not in done.stderr
