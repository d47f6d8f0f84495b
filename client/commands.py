"""Calls that are not hot: what they send to the master, and what its answers mean.  No I/O here.

Each is a `Command`: the frame's method and body, and a function from the answer's body to the
result.  The sync and the async client carry them out in their own ways.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Generic, TypeVar

from mooncake_store.client.core import encode_key
from mooncake_store.client.results import (
    Counters,
    EventPage,
    Explanation,
    Fate,
    Listed,
    Member,
    ObjectStat,
    OpenPut,
    ReplicaPlace,
    ReplicaStat,
    StoreEvent,
)
from mooncake_store.errors import InUseError, ObjectBusyError, ObjectNotFoundError, RequestError
from mooncake_store.protocol import frames
from mooncake_store.protocol.methods import (
    AnnotateField,
    ExplainFlag,
    FateKind,
    FrameFlag,
    MemberState,
    Method,
    ObjectFlag,
    Policy,
    ReplicaState,
    Tier,
    replicas_wanted,
)

__all__ = [
    "Command",
    "annotate",
    "change_replica",
    "counters",
    "events",
    "explain",
    "forget_member",
    "holders",
    "list_step",
    "members",
    "remove_matching_step",
    "stat",
]

Result = TypeVar("Result")
HashOf = Callable[[str], bytes]


@dataclass(frozen=True, slots=True)
class Command(Generic[Result]):
    """One frame to the master and the meaning of its answer."""

    method: int
    body: bytes
    decode: Callable[[bytes], Result]
    flags: int = 0
    numbered: bool = False
    key: str | None = None


def _key_item(key: str, hash_of: HashOf) -> frames.KeyItem:
    return frames.KeyItem(hash=hash_of(key), key=encode_key(key))


def _ttl_s(ttl_ms: int) -> float | None:
    return ttl_ms / 1000 if ttl_ms else None


def _replicas(location: frames.Location, names: dict[int, str]) -> tuple[ReplicaStat, ...]:
    return tuple(
        ReplicaStat(
            node=names.get(replica.server, f"server {replica.server}"),
            tier=Tier(replica.tier).name.lower(),
            extent_count=len(replica.extents),
            is_complete=replica.state == ReplicaState.COMPLETE,
        )
        for replica in location.replicas
    )


def _stat(key: str, answer: frames.StatAnswer, names: dict[int, str]) -> ObjectStat:
    location = answer.location
    return ObjectStat(
        key=key,
        size_bytes=location.size,
        version=location.version,
        replicas=_replicas(location, names),
        replicas_wanted=replicas_wanted(location.flags),
        age_s=answer.age_ms / 1000,
        idle_s=answer.idle_ms / 1000,
        ttl_s=_ttl_s(answer.ttl_ms),
        pin_count=answer.pin_count,
        use_count=answer.use_count,
        is_hard_pinned=bool(location.flags & ObjectFlag.HARD_PIN),
        is_soft_pinned=bool(location.flags & ObjectFlag.SOFT_PIN),
        checksum=location.checksum if location.flags & ObjectFlag.HAS_CHECKSUM else None,
    )


def stat(key: str, hash_of: HashOf, names: dict[int, str]) -> Command[ObjectStat]:
    """What the master knows of `key`; `names` are those of the servers by number."""

    def decode(body: bytes) -> ObjectStat:
        return _stat(key, frames.StatAnswer.decode(body), names)

    return Command(Method.STAT, _key_item(key, hash_of).encode(), decode, key=key)


def word_of(words: type[IntEnum], number: int) -> str:
    """A number's name; a newer master may use numbers that this side has no word for."""
    try:
        return words(number).name.lower()
    except ValueError:
        return f"{words.__name__.lower()}_{number}"


def explain(key: str, hash_of: HashOf, members: Sequence[Member]) -> Command[Explanation]:
    """Where `key` is, or what has become of it; `members` name the servers."""
    names = {member.server: member.name for member in members}
    states = {member.server: member.state for member in members}

    def place(replica: frames.Replica) -> ReplicaPlace:
        return ReplicaPlace(
            node=names.get(replica.server, f"server {replica.server}"),
            node_state=states.get(replica.server, "gone"),
            tier=Tier(replica.tier).name.lower(),
            segment=replica.segment,
            extents=tuple((extent.page, extent.page_count) for extent in replica.extents),
            is_complete=replica.state == ReplicaState.COMPLETE,
        )

    def fate(item: frames.Fate) -> Fate:
        server = item.server - 1
        return Fate(
            kind=word_of(FateKind, item.kind),
            version=item.version or None,
            size_bytes=item.size,
            age_s=item.age_ms / 1000,
            session=item.session or None,
            session_name=item.name.decode(errors="replace"),
            bytes_wanted=item.bytes_wanted,
            node=names.get(server, f"server {server}") if item.server else None,
        )

    def decode(body: bytes) -> Explanation:
        answer = frames.ExplainAnswer.decode(body)
        found = answer.stat
        has_parent = found is not None and found.parent != frames.NO_HASH
        return Explanation(
            key=key,
            stat=None if found is None else _stat(key, found, names),
            places=() if found is None else tuple(map(place, found.location.replicas)),
            group=0 if found is None else found.group,
            parent_hash=found.parent if found is not None and has_parent else None,
            child_count=answer.child_count,
            open_put=OpenPut(
                version=answer.put_version or None,
                size_bytes=answer.put_size,
                session=answer.put_session,
                session_name=answer.put_name.decode(errors="replace"),
                deadline_s=answer.put_deadline_ms / 1000,
            )
            if answer.flags & ExplainFlag.PUTTING
            else None,
            fates=tuple(map(fate, answer.fates)),
            leading_s=answer.leading_ms / 1000,
            history_s=answer.history_ms / 1000,
            policy=word_of(Policy, answer.policy),
        )

    return Command(Method.EXPLAIN, _key_item(key, hash_of).encode(), decode, key=key)


def annotate(
    key: str,
    hash_of: HashOf,
    hard_pin: bool | None,
    soft_pin: bool | None,
    ttl_s: float | None,
) -> Command[None]:
    """Set what is not None; ttl_s 0 means for ever."""
    fields = flags = ttl_ms = 0
    if hard_pin is not None:
        fields |= AnnotateField.HARD_PIN
        flags |= ObjectFlag.HARD_PIN if hard_pin else 0
    if soft_pin is not None:
        fields |= AnnotateField.SOFT_PIN
        flags |= ObjectFlag.SOFT_PIN if soft_pin else 0
    if ttl_s is not None:
        if ttl_s < 0:
            raise RequestError("ttl_s is 0 (for ever) or above")
        fields |= AnnotateField.TTL
        ttl_ms = max(1, round(ttl_s * 1000)) if ttl_s else 0
    if not fields:
        raise RequestError("say what to set: hard_pin, soft_pin or ttl_s")
    body = frames.Annotate(_key_item(key, hash_of), fields=fields, flags=flags, ttl_ms=ttl_ms)
    return Command(Method.ANNOTATE, body.encode(), lambda _: None, key=key)


_NUMBER_END = (1 << 32) - 1  # on the wire a server is its number and 1, as 32 bits; 0 names none


def change_replica(
    key: str, hash_of: HashOf, count: int, target: int | None, source: int | None
) -> Command[int]:
    """Copy, drop or move; decodes to the number of replicas there are then."""
    if not 0 <= count <= frames.REPLICAS_MAX:
        raise RequestError(f"replicas: 1 to {frames.REPLICAS_MAX}, or 0 to move")
    for server in (target, source):
        if server is not None and not 0 <= server < _NUMBER_END:
            raise RequestError(f"{server} is no number of a store server, see members()")
    if target is not None and target == source:
        raise RequestError("a replica cannot move from a store server to the same one")
    body = frames.ChangeReplica(
        _key_item(key, hash_of),
        replica_count=count,
        target_server=0 if target is None else target + 1,
        source_server=0 if source is None else source + 1,
    )
    return Command(
        Method.CHANGE_REPLICA,
        body.encode(),
        lambda answer: len(frames.Location.decode(answer).replicas),
        key=key,
    )


def _list_request(pattern: str, cursor: int, limit: int, *, regex: bool, force: bool) -> bytes:
    flags = (FrameFlag.REGEX if regex else 0) | (FrameFlag.FORCE if force else 0)
    encoded = pattern.encode()
    if len(encoded) > frames.PATTERN_BYTES_MAX:
        raise RequestError(f"a pattern has at most {frames.PATTERN_BYTES_MAX} bytes")
    return frames.ListRequest(pattern=encoded, cursor=cursor, limit=limit, flags=flags).encode()


def list_step(
    pattern: str, cursor: int, limit: int, *, regex: bool
) -> Command[tuple[int, list[Listed]]]:
    """One step of a listing; decodes to the next cursor (0: that was all) and what was found."""

    def decode(body: bytes) -> tuple[int, list[Listed]]:
        answer = frames.ListAnswer.decode(body)
        return answer.cursor, [
            Listed(
                key=item.key.decode(errors="replace"),
                size_bytes=item.size,
                replica_count=item.replica_count,
                is_hard_pinned=bool(item.flags & ObjectFlag.HARD_PIN),
                is_pinned=bool(item.pinned),
                ttl_s=_ttl_s(item.ttl_ms),
            )
            for item in answer.items
        ]

    body = _list_request(pattern, cursor, limit, regex=regex, force=False)
    return Command(Method.LIST, body, decode, flags=FrameFlag.REGEX if regex else 0)


def remove_matching_step(
    pattern: str, cursor: int, *, regex: bool, force: bool
) -> Command[tuple[int, int]]:
    """One step of a removal; decodes to the next cursor and how many were removed."""

    def decode(body: bytes) -> tuple[int, int]:
        answer = frames.Removed.decode(body)
        return answer.cursor, answer.count

    body = _list_request(pattern, cursor, 1000, regex=regex, force=force)
    return Command(Method.REMOVE_MATCHING, body, decode, flags=FrameFlag.REGEX if regex else 0)


def members() -> Command[list[Member]]:
    """The store servers."""

    def decode(body: bytes) -> list[Member]:
        return [
            Member(
                name=item.name.decode(errors="replace"),
                node_id=str(uuid.UUID(bytes=item.node_id)),
                server=item.server,
                incarnation=item.incarnation,
                state=MemberState(item.state).name.lower(),
                host=item.host.decode(errors="replace"),
                addresses=tuple(part for part in item.addresses.decode().split(",") if part),
                unix_path=item.socket_path.decode(errors="replace"),
                size_bytes=sum(segment.page_count for segment in item.segments) * frames.PAGE_SIZE,
                ready_bytes=sum(segment.page_count_ready for segment in item.segments)
                * frames.PAGE_SIZE,
            )
            for item in frames.Members.decode(body).items
        ]

    return Command(Method.MEMBERS, b"", decode)


def counters(names: Mapping[int, str]) -> Command[Counters]:
    """What the master has counted; `names` are those of its metrics, by number."""

    def decode(body: bytes) -> Counters:
        totals: dict[str, int] = {}
        by_server: dict[int, dict[str, int]] = {}
        for item in frames.Counters.decode(body).items:
            # A newer master counts more than this side has names for.
            name = names.get(item.id, f"metric_{item.id:08x}")
            counted = by_server.setdefault(item.label - 1, {}) if item.label else totals
            counted[name] = item.value
        return Counters(totals, by_server)

    return Command(Method.STATUS, b"", decode)


def forget_member(node: str) -> Generator[Command[Any], Any, None]:
    """A store server that is gone is a member no more; by name or id."""
    encoded = node.encode(errors="replace")  # no server's name has what is no UTF-8
    if not 0 < len(encoded) <= frames.NAME_BYTES_MAX:
        raise RequestError(f"a node's name or id has 1 to {frames.NAME_BYTES_MAX} bytes")
    command: Command[None] = Command(
        Method.FORGET, frames.NodeName(encoded).encode(), lambda _: None
    )
    try:
        yield command
    except ObjectBusyError as error:
        hint = "stop that server first, with --no-keep to give its memory back"
        raise InUseError(error.message, node=node, stage="forget", hint=hint) from error
    except ObjectNotFoundError as error:  # what helps with objects does not help here
        error.hint = "`mooncake-store status` shows who is there"
        raise


def events(epoch: int, sequence: int, limit: int) -> Command[EventPage]:
    """Changes from `sequence` on; 0: from now on."""
    body = frames.EventsRequest(sequence=sequence, epoch=epoch, limit=limit)

    def decode(answer: bytes) -> EventPage:
        found = frames.EventsAnswer.decode(answer)
        return EventPage(
            epoch=found.epoch,
            next_sequence=found.sequence_next,
            events=[
                StoreEvent(item.kind, item.key.decode(errors="replace"), item.server - 1)
                if item.server
                else StoreEvent(item.kind, item.key.decode(errors="replace"), None)
                for item in found.items
            ],
        )

    return Command(Method.EVENTS, body.encode(), decode)


def holders(keys: Sequence[str], hash_of: HashOf) -> Command[list[tuple[int, ...]]]:
    """The numbers of the servers that hold each of `keys`; not a use of them."""

    def decode(answer: bytes) -> list[tuple[int, ...]]:
        return [
            tuple(
                replica.server
                for replica in location.replicas
                if replica.state == ReplicaState.COMPLETE
            )
            for location in frames.Locations.decode(answer).items
        ]

    body = frames.Hashes(tuple(hash_of(key) for key in keys))
    return Command(Method.LOOKUP, body.encode(), decode, flags=FrameFlag.PEEK)
