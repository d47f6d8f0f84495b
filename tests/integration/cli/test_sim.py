"""`mooncake-store sim --json`: documents as their schemas say."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def test_documents_conform_to_their_schemas(mooncake: Any) -> None:
    found = mooncake("sim", "run", "--json", "--limit", "100", "-v").json("sim-run")
    assert found["requests"] == 100
    sizes = mooncake("sim", "size", "--json", "--limit", "100", "--caches", "1000000")
    assert len(sizes.json("sim-size")) == 1
    missed = mooncake("sim", "size", "--json", "--caches", "1000000", "--set", "slo.ttft=1s")
    (one,) = missed.json("sim-size")
    assert missed.code == 1 and one["attainment_best"] is None and one["too_long_requests"] > 0
    compared = mooncake("sim", "compare", "--json", "--limit", "100", "--speeds", "1,2")
    assert len(compared.json("sim-compare")) == 10
    # A single request has no spread: what is no number is null.
    alone = mooncake("sim", "run", "--json", "--limit", "1").json("sim-run")
    assert alone["load_correlation"] is None
    assert "[cluster]" in mooncake("sim", "settings", "--json").json("sim-settings")["settings"]
    load = ("--rate", "5", "--prompt-tokens", "4000", "--output-tokens", "200")
    assert mooncake("sim", "plan", "--json", *load).json("sim-plan")["prefill_nodes"] > 1
    (drawn,) = mooncake("sim", "figures", "layers", "--json").json("sim-figures")
    assert drawn["name"] == "layers"


def test_a_fit_conforms_to_its_schema(mooncake: Any, tmp_path: Path) -> None:
    prefill, decode = tmp_path / "prefill.csv", tmp_path / "decode.csv"
    prefill.write_text("prompt_tokens,cached_tokens,seconds\n1,0,.1\n900,0,.2\n9000,0,2\n")
    decode.write_text("batch,context_tokens,seconds\n1,10,.01\n1,900,.02\n9,90,.03\n")
    found = mooncake("sim", "fit", "--json", str(prefill), str(decode)).json("sim-fit")
    assert found["prefill"]["samples"] == found["decode"]["samples"] == 3
