"""Makes identity.json, from the description in docs/identity.md and not from the code.

    python tests/golden/make_identity.py

A change of these vectors makes every cache that is stored under the old keys unreachable.
"""

from __future__ import annotations

import hashlib
import json
import struct
from pathlib import Path
from typing import Any

PATH = Path(__file__).with_name("identity.json")
TEXTS = ("tenant", "model", "revision", "dtype", "layout")
NUMBERS = ("tp_size", "tp_rank", "pp_size", "pp_rank", "cp_size", "cp_rank", "block_size")

CASES: list[dict[str, Any]] = [
    {
        "identity": {
            "model": "llama-3-8b",
            "dtype": "bfloat16",
            "layout": "layers,kv,tokens,8,128",
            "block_size": 16,
        },
        "token_range": 40,
        "names": ["block", "x" * 65],
    },
    {
        "identity": {
            "tenant": "tenant-ü",
            "model": "org/model@1",
            "revision": "0f3e",
            "dtype": "fp8_e4m3",
            "layout": "L",
            "block_size": 2,
            "tp_size": 4,
            "tp_rank": 3,
            "pp_size": 2,
            "pp_rank": 1,
            "cp_size": 2,
            "cp_rank": 1,
        },
        "token_range": 5,
        "salts": ["adapter", ""],
        "extras": {"1": "00ff"},
        "names": ["00"],
    },
]


def frame(data: bytes) -> bytes:
    return struct.pack("<I", len(data)) + data


def answers(case: dict[str, Any]) -> dict[str, Any]:
    """Return what the page says for a case."""
    fields = {"tp_size": 1, "pp_size": 1, "cp_size": 1, **case["identity"]}
    message = b"mooncake-store identity 1\0"
    for name in TEXTS:
        message += frame(fields.get(name, "").encode())
    for name in NUMBERS:
        message += struct.pack("<I", fields.get(name, 0))
    digest = state = hashlib.sha256(message).digest()
    if case.get("salts"):
        salted = b"".join(frame(salt.encode()) for salt in case["salts"])
        state = hashlib.sha256(b"mooncake-store salt 1\0" + digest + salted).digest()
    prefix = f"c1-{digest[:16].hex()}-"
    keys, size = [], fields["block_size"]
    for index in range(case["token_range"] // size):
        tokens = range(index * size, (index + 1) * size)
        block = state + b"".join(struct.pack("<I", token) for token in tokens)
        if str(index) in case.get("extras", {}):
            block += frame(bytes.fromhex(case["extras"][str(index)]))
        state = hashlib.sha256(block).digest()
        keys.append(prefix + state.hex())
    named = []
    for name in case["names"]:
        data = name.encode()
        short = len(data) <= 64
        named.append(
            prefix + ("n" + data.hex() if short else "h" + hashlib.sha256(data).hexdigest())
        )
    return {"digest": digest.hex(), "keys": keys, "named": named}


if __name__ == "__main__":
    PATH.write_text(json.dumps([{**case, **answers(case)} for case in CASES], indent=1) + "\n")
