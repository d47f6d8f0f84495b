"""A value tells of which put it is, and nothing else passes for it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from chaos.value import SIZE_MIN, make_value, prove

TOKENS = st.integers(0, 2**64 - 1)
KEYS = st.text(min_size=1, max_size=20)
SIZES = st.integers(SIZE_MIN, 5000)


@given(KEYS, TOKENS, SIZES)
def test_value_proves_itself_under_its_key(key, token, size):
    value = make_value(key, token, size)
    assert len(value) == size
    assert prove(key, value) == (token, True)


@given(KEYS, TOKENS, SIZES, st.data())
def test_changed_cut_and_foreign_values_prove_nothing(key, token, size, data):
    value = make_value(key, token, size)
    at = data.draw(st.integers(0, size - 1))
    changed = bytearray(value)
    changed[at] ^= 1 << data.draw(st.integers(0, 7))
    assert not prove(key, bytes(changed)).is_whole
    assert not prove(key, value[:at]).is_whole
    assert not prove(key, value + b"\0").is_whole
    assert prove(key + "!", value) == (token, False)


def test_mix_of_two_values_of_a_key_is_torn():
    old, new = make_value("k", 1, 8192), make_value("k", 2, 8192)
    assert prove("k", new[:4096] + old[4096:]) == (2, False)


def test_too_small_values():
    assert prove("k", b"short") == (None, False)
    with pytest.raises(ValueError, match="at least 24"):
        make_value("k", 1, SIZE_MIN - 1)
