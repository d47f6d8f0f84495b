"""The C functions of the protocol room, against libraries that are not ours."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import google_crc32c
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from mooncake_store._native import ffi, lib
from mooncake_store.errors import Status

ROOT = Path(__file__).resolve().parents[3]
GOLDEN = json.loads((ROOT / "tests" / "golden" / "frames.json").read_text())

# The secret that XXH3 uses when it is given none (XXH3_kSecret of its specification).
DEFAULT_SECRET = bytes.fromhex(
    "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671f"
    "cb79e64eccc0e578825ad07dccff7221b8084674f743248ee03590e6813a264c"
    "3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8"
    "a8fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364"
    "eac5ac8334d3ebc3c581a0fffa1363eb170ddd51b7f0da49d316552629d4689e"
    "2b16be587d47a1fc8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e"
)


def hash_of(secret: bytes, tenant: bytes, key: bytes) -> bytes:
    out = ffi.new("uint8_t[16]")
    lib.ms_hash_key_bytes(secret, tenant, len(tenant), key, len(key), out)
    return bytes(ffi.buffer(out))


def digest_of(data: bytes, seed: int = 0) -> bytes:
    return int(xxhash.xxh3_128_intdigest(data, seed)).to_bytes(16, "little")


tenants = st.binary(max_size=64)
# XXH3 has another path for each of 1-3, 4-8, 9-16, 17-128, 129-240 and more bytes: any length.
keys = st.integers(1, 1024).flatmap(lambda length: st.binary(min_size=length, max_size=length))


@given(tenants, keys)
def test_key_hash_is_xxh3_of_tenant_and_key(tenant: bytes, key: bytes) -> None:
    data = bytes([len(tenant)]) + tenant + key
    assert hash_of(DEFAULT_SECRET, tenant, key) == digest_of(data)


@given(tenants, st.binary(min_size=240, max_size=1024), st.integers(0, 2**64 - 1))
def test_key_hash_uses_the_whole_secret_for_long_keys(tenant: bytes, key: bytes, seed: int) -> None:
    """Of more than 240 bytes XXH3 with a seed is XXH3 with a secret made from it."""
    halves = struct.unpack("<24Q", DEFAULT_SECRET)
    secret = struct.pack(
        "<24Q",
        *((half + (seed, -seed)[index % 2]) % 2**64 for index, half in enumerate(halves)),
    )
    data = bytes([len(tenant)]) + tenant + key
    assert hash_of(secret, tenant, key) == digest_of(data, seed)


@pytest.mark.parametrize("vector", GOLDEN["hashes"])
def test_key_hashes_are_golden(vector: dict[str, str]) -> None:
    secret = bytes.fromhex(GOLDEN["secret"])
    tenant, key = bytes.fromhex(vector["tenant"]), bytes.fromhex(vector["key"])
    assert hash_of(secret, tenant, key).hex() == vector["hash"]


def is_utf8(data: bytes) -> bool:
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


@given(st.binary(max_size=1030) | st.text(max_size=400).map(lambda text: text.encode("utf-8")))
def test_keys_are_utf8_of_1_to_1024_bytes(key: bytes) -> None:
    assert lib.ms_key_valid(key, len(key)) == (1 <= len(key) <= 1024 and is_utf8(key))


@given(st.text(min_size=1, max_size=20), st.data())
def test_damaged_utf8_is_judged_as_python_judges_it(text: str, data: st.DataObject) -> None:
    key = bytearray(text.encode("utf-8", "surrogatepass"))
    at = data.draw(st.integers(0, len(key) - 1))
    key[at] = data.draw(st.integers(0x80, 0xFF))
    damaged = bytes(key)
    assert lib.ms_key_valid(damaged, len(damaged)) == is_utf8(damaged)


@given(st.binary(max_size=20_000), st.integers(0, 2**32 - 1), st.data())
def test_crc32c_is_that_of_google(data: bytes, start: int, draw: st.DataObject) -> None:
    wanted = google_crc32c.extend(start, data)
    assert lib.ms_crc32c(start, data, len(data)) == wanted
    assert lib.ms_crc32c_table(start, data, len(data)) == wanted
    cut = draw.draw(st.integers(0, len(data)))
    left = lib.ms_crc32c(start, data, cut)
    right = lib.ms_crc32c(0, data[cut:], len(data) - cut)
    assert lib.ms_crc32c_combine(left, right, len(data) - cut) == wanted


@pytest.mark.parametrize("threshold", [1, 2**63])
@given(data=st.binary(max_size=20_000), shift=st.integers(0, 63))
def test_copies_copy_and_sum(threshold: int, data: bytes, shift: int) -> None:
    before = lib.ms_copy_threshold()
    lib.ms_copy_set_threshold(threshold)
    try:
        for copy in ("plain", "sum"):
            target = bytearray(b"\xee" * (len(data) + 80))
            address = ffi.addressof(ffi.from_buffer("char[]", target), shift)
            if copy == "plain":
                lib.ms_copy(address, data, len(data))
            else:
                wanted = google_crc32c.value(data)
                assert lib.ms_copy_crc32c(address, data, len(data), 0) == wanted
            assert target[shift : shift + len(data)] == data
            assert set(target[:shift] + target[shift + len(data) :]) == {0xEE}
    finally:
        lib.ms_copy_set_threshold(before)


def test_statuses_have_the_names_that_python_gives_them() -> None:
    for status in Status:
        assert ffi.string(lib.ms_status_name(status)).decode() == status.name
    for number in (len(Status), 10_000, 2**31 - 1):
        assert ffi.string(lib.ms_status_name(number)) == b"UNKNOWN"


def test_faults_have_sentences_and_versions_agree() -> None:
    names = [name for name in dir(lib) if name.startswith("MS_FAULT_")]
    sentences = {ffi.string(lib.ms_fault_text(getattr(lib, name))) for name in names}
    assert len(sentences) == len(names) == 9
    assert lib.ms_version_agree(1, 3, 2, 5) == 3
    assert lib.ms_version_agree(1, 1, 2, 2) == 0
