"""What a replay is compared with."""

from __future__ import annotations

import pytest

from mooncake_store.cli.bench.trace import WIPED, ideal_hit_ratio, is_stamped, stamp
from mooncake_store.cli.trace_file import Request


def test_ideal_hit_ratio_counts_unbroken_prefixes_only():
    requests = [
        Request(0, 3, 0, (1, 2, 3)),
        Request(0, 3, 0, (1, 2, 4)),  # two hits
        Request(0, 3, 0, (9, 2, 3)),  # none: its prefix is broken at once
    ]

    assert ideal_hit_ratio(requests) == pytest.approx(2 / 9)


def test_block_of_another_id_or_with_one_wrong_page_is_found():
    block = memoryview(bytearray(16384))

    stamp(block, 7)

    assert is_stamped(block, 7)
    assert not is_stamped(block, 8)
    block[8192] ^= 1
    assert not is_stamped(block, 7)
    stamp(block, WIPED)
    assert not is_stamped(block, 7)
