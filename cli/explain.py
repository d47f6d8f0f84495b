"""`mooncake-store explain`."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from mooncake_store.cli.exit_codes import ExitCode
from mooncake_store.cli.options import KEY, Access, client_options
from mooncake_store.cli.output import Output, approximate_size, printable

if TYPE_CHECKING:
    from mooncake_store.client import Explanation, Fate, ObjectStat

_MINUTE_S, _HOUR_S, _DAY_S = 60, 3600, 86_400


@click.command("explain")
@click.argument("key", type=KEY)
@client_options
def command(output: Output, access: Access, key: str) -> int:
    """Tell where the object KEY is, or when and why it went.

    The master that leads remembers the last ends of objects (--fates-max of `master`), not those
    before it led. Asking is no use of the object.

    \b
    mooncake-store explain greeting
    """
    with access.client() as store:
        found = store.explain(key)
    output.result(_document(found), "\n".join(_lines(found)))
    return ExitCode.OK


def _document(found: Explanation) -> dict[str, Any]:
    stat, put = found.stat, found.open_put
    return {
        "key": found.key,
        "stored": stat is not None,
        "object": None if stat is None else {
            "size_bytes": stat.size_bytes, "version": stat.version,
            "replicas": [
                asdict(place) | {
                    "extents": [
                        {"page": page, "page_count": count} for page, count in place.extents
                    ]
                }
                for place in found.places
            ],
            "age_seconds": stat.age_s, "idle_seconds": stat.idle_s, "ttl_seconds": stat.ttl_s,
            "pins": stat.pin_count, "uses": stat.use_count,
            "hard_pinned": stat.is_hard_pinned, "soft_pinned": stat.is_soft_pinned,
            "group": found.group, "children": found.child_count,
            "parent_hash": None if found.parent_hash is None else found.parent_hash.hex(),
        },
        "open_put": None if put is None else {
            "version": put.version, "size_bytes": put.size_bytes, "session": put.session,
            "session_name": put.session_name, "deadline_seconds": put.deadline_s,
        },
        "fates": [
            {
                "kind": fate.kind, "version": fate.version, "size_bytes": fate.size_bytes,
                "age_seconds": fate.age_s, "session": fate.session,
                "session_name": fate.session_name, "bytes_wanted": fate.bytes_wanted,
                "node": fate.node,
                "text": _sentence(fate, found.policy),
            }
            for fate in found.fates
        ],
        "policy": found.policy,
        "leading_seconds": found.leading_s,
        "history_seconds": found.history_s,
    }  # fmt: skip


def _lines(found: Explanation) -> list[str]:
    lines = [f"key       {printable(found.key)}"]
    lines += _stored(found, found.stat) if found.stat is not None else ["state     not stored"]
    put = found.open_put
    if put is not None:
        where = "waits for room" if put.version is None else "is being written"
        lines.append(
            f"put       {approximate_size(put.size_bytes)} by "
            f"{_session(put.session_name, put.session)} {where}, "
            f"{_ago(put.deadline_s)} left"
        )
    if found.stat is None and found.fates:
        lines.append(f"why       {_told(found.fates[0], found.policy)}")
    older = found.fates if found.stat is not None else found.fates[1:]
    lines += [f"before    {_told(fate, found.policy)}" for fate in older]
    if found.stat is None and not found.fates and put is None:
        lines.append(f"why       {_unknown(found)}")
    elif found.history_s < found.leading_s:
        lines.append(f"history   complete for the last {_ago(found.history_s)}")
    return lines


def _stored(found: Explanation, stat: ObjectStat) -> list[str]:
    kept = [
        "hard pin" if stat.is_hard_pinned else "",
        "soft pin" if stat.is_soft_pinned else "",
        f"{stat.pin_count} session pins" if stat.pin_count else "",
        f"{found.child_count} stored children" if found.child_count else "",
    ]
    lines = [
        "state     stored",
        f"size      {approximate_size(stat.size_bytes)} ({stat.size_bytes:,} bytes)",
        f"version   {stat.version}",
    ]
    for place in found.places:
        pages = ", ".join(f"{page}+{count}" for page, count in place.extents)
        state = "complete" if place.is_complete else "being written"
        lines.append(
            f"replica   {printable(place.node)} ({place.node_state}), {place.tier} segment "
            f"{place.segment}, pages {pages}, {state}"
        )
    lines += [
        f"age       {_ago(stat.age_s)}, last used {_ago(stat.idle_s)} ago, {stat.use_count} uses",
        f"kept by   {', '.join(part for part in kept if part) or 'nothing: it may be evicted'}",
    ]
    if stat.ttl_s is not None:
        lines.append(f"ttl       {_ago(stat.ttl_s)} left")
    if found.parent_hash is not None:
        lines.append(f"parent    key of hash {found.parent_hash.hex()}")
    if found.group:
        lines.append(f"group     {found.group}")
    return lines


def _told(fate: Fate, policy: str) -> str:
    what = "" if fate.version is None else f", version {fate.version}"
    where = f", on {printable(fate.node)}" if fate.node is not None else ""
    size = approximate_size(fate.size_bytes)
    return f"{_ago(fate.age_s)} ago: {_sentence(fate, policy)} ({size}{what}{where})"


def _sentence(fate: Fate, policy: str) -> str:
    """Why, without when."""
    who = _session(fate.session_name, fate.session)
    size = approximate_size(fate.bytes_wanted)
    waited = " while it waited for room" if fate.version is None else ""
    sentences = {
        "evicted_for_put": f"evicted ({policy}): a put of {size} by {who} needed room",
        "evicted_at_watermark": f"evicted ({policy}): above the watermark, to keep {size} free",
        "evicted_for_copy": f"evicted ({policy}): a replica of another object needed {size}",
        "expired": "its TTL was over",
        "removed": f"removed by {who}",
        "replaced": f"replaced by a put of {size} by {who}",
        "outranked": "a store server came back with a later version",
        "node_lost": "its last store server was gone for longer than the grace",
        "not_kept": "its last store server came back without it",
        "struck": "it was removed or replaced while its store server was away",
        "condemned": "its store server was away for too many removals, all that it held went",
        "put_session_ended": f"its put never finished: the session of {who} ended",
        "put_deadline": f"its put by {who} never finished: the deadline passed{waited}",
        "put_revoked": f"its put never finished: {who} gave it up",
        "put_no_space": f"its put by {who} was refused: what may leave makes no room for it",
        "put_node_restarted": "its put never finished: its store servers were restarted",
    }
    return sentences.get(fate.kind, f"{fate.kind}: a newer master's word")


def _unknown(found: Explanation) -> str:
    if found.history_s < found.leading_s:
        return (
            f"not seen in the last {_ago(found.history_s)}, as far back as the history goes: "
            "never put, or gone before"
        )
    return f"never seen since this master leads, for {_ago(found.leading_s)}"


def _session(name: str, session: int | None) -> str:
    return printable(name) if name else f"session {session}" if session else "nobody known"


def _ago(duration_s: float) -> str:
    """A duration for people, in one unit."""
    if duration_s < _MINUTE_S:
        return f"{duration_s:.1f} s"
    if duration_s < _HOUR_S:
        return f"{duration_s / _MINUTE_S:.1f} min"
    if duration_s < _DAY_S:
        return f"{duration_s / _HOUR_S:.1f} h"
    return f"{duration_s / _DAY_S:.1f} d"
