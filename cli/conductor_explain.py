"""`mooncake-store conductor explain`."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import click

from mooncake_store.cli.conductor_access import ConductorAccess, as_conductors, conductor_options
from mooncake_store.cli.exit_codes import ExitCode
from mooncake_store.cli.options import output_options
from mooncake_store.cli.output import Output, aligned, approximate_size, printable
from mooncake_store.errors import ConfigError

__all__ = ["explain"]


@click.command("explain")
@click.argument("request", metavar="REQUEST", required=False)
@click.option(
    "--taken-back",
    "is_taken_back",
    is_flag=True,
    help="which replicas of cold blocks were taken back, and why; without REQUEST",
)
@conductor_options
@output_options
def explain(
    output: Output, access: ConductorAccess, request: str | None, is_taken_back: bool
) -> int:  # fmt: skip
    """Tell why REQUEST went where it went, or why it was refused.

    The conductor remembers the last decisions (--decisions-max of `conductor`).

    \b
    mooncake-store conductor explain chat-4711
    mooncake-store conductor explain --taken-back
    """
    if (request is None) != is_taken_back:
        raise ConfigError("explain wants either a REQUEST or --taken-back")
    if is_taken_back:
        document = access.ask("GET", "/v1/taken-back")
        with as_conductors(access):
            rows = _taken_back_rows(document)
        if output.is_json:
            output.document(document)
        else:
            output.table(rows, ["KEY", "SERVER", "BYTES", "OUTCOME", "IDLE", "LEFT", "MADE FOR"])
        return ExitCode.OK
    assert request is not None
    found = access.ask("GET", f"/v1/decisions/{quote(request, safe='')}")
    with as_conductors(access):
        lines = _lines(found)
    output.result(found, "\n".join(lines))
    return ExitCode.OK


def _taken_back_rows(document: dict[str, Any]) -> list[list[str]]:
    return [
        [
            printable(one["key"]), printable(one["server"]), f"{one['size_bytes']:,}",
            one["outcome"], f"{one['idle_seconds']:.0f} s", f"{one['replicas_without']}",
            printable(one["request_id"] or "a hot block"),
        ]
        for one in document["taken_back"]
    ]  # fmt: skip


def _lines(found: dict[str, Any]) -> list[str]:
    decided = found["decision"]
    lines = [
        f"request     {printable(found['request_id'])}, {found['num_tokens']:,} tokens, "
        f"{found['num_blocks']} full blocks",
        f"decided     in {found['decision_seconds'] * 1e6:.0f} µs",
    ]
    lines += _accepted(found, decided) if found["accepted"] else _refused(decided)
    if found["candidates"]:
        lines.append("candidates")
        rows = [["  NAME", "PREFIX", "QUEUE", "SOURCE", "TRANSFER", "PREFILL", "TTFT", ""]]
        rows += [_candidate(one) for one in sorted(found["candidates"], key=_rank)]
        lines += aligned(rows)
    if found["decode_candidates"]:
        lines.append("to decode")
        rows = [["  NAME", "BATCH", "CONTEXT", "TBT", "LOAD", ""]]
        rows += [
            [
                "  " + printable(one["name"]), f"{one['batch']:.0f}",
                f"{one['context_tokens']:,.0f}", f"{one['tbt_s'] * 1e3:.1f} ms",
                f"{one['load']:.2f}", printable(one["why"]),
            ]
            for one in sorted(
                found["decode_candidates"], key=lambda one: (one["why"] != "chosen", one["load"])
            )
        ]  # fmt: skip
        lines += aligned(rows)
    for event in found["became"]:
        after_s = event["unix_s"] - found["decided_unix_s"]
        lines.append(f"then        {event['what']}, after {after_s:.3f} s")
    if found["stage"]:
        lines.append(f"now         {found['stage']}")
    return lines


def _rank(one: dict[str, Any]) -> tuple[bool, bool, float]:
    """Order candidates: the chosen one, then by what they would have taken."""
    ttft_s = one["ttft_s"]
    return one["why"] != "chosen", ttft_s is None, ttft_s or 0.0


def _candidate(one: dict[str, Any]) -> list[str]:
    def seconds(name: str) -> str:
        return "-" if one[name] is None else f"{one[name]:.3f} s"

    waits = f" after {one['ready_s']:.3f} s" if one["ready_s"] else ""
    return [
        "  " + printable(one["name"]), f"{one['prefix_tokens']:,}", seconds("queue_s"),
        printable(one["source"] or "-"), seconds("transfer_s") + waits, seconds("prefill_s"),
        seconds("ttft_s"), printable(one["why"]),
    ]  # fmt: skip


def _accepted(found: dict[str, Any], decided: dict[str, Any]) -> list[str]:
    lines = [
        f"prefill     {printable(decided['prefill'])}",
        f"decode      {printable(decided['decode'])}, load {decided['decode_load']:.2f}",
        f"prefix      {decided['prefix_tokens']:,} tokens need not be computed",
    ]
    if decided["source"] is not None:
        lines.append(
            f"transfer    {found['moved_blocks']} blocks, "
            f"{approximate_size(decided['transfer_bytes'])}, from {printable(decided['source'])}"
        )
    waits = f", source {decided['ready_s']:.3f}" if decided["ready_s"] else ""
    lines.append(
        f"predicted   TTFT {decided['ttft_s']:.3f} s: queue {decided['queue_s']:.3f}{waits}, "
        f"transfer {decided['transfer_s']:.3f}, prefill {decided['prefill_s']:.3f}; "
        f"{decided['tbt_s'] * 1e3:.1f} ms a token"
    )
    return lines


def _refused(decided: dict[str, Any]) -> list[str]:
    again_s = decided["retry_after_s"]
    return [
        f"refused     {decided['reason']}: {printable(decided['message'])}",
        "try again   does not help" if again_s is None else f"try again   after {again_s:.1f} s",
    ]
