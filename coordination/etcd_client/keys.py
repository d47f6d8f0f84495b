"""Reading and changing keys."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mooncake_store.coordination.etcd_client.endpoints import Endpoints, Method
from mooncake_store.coordination.etcd_client.store import (
    Delete,
    Entries,
    Entry,
    KeyIs,
    Operation,
    Outcome,
    Put,
    Read,
)
from mooncake_store.protocol import etcd_pb2 as pb

__all__ = ["Keys", "entry_of"]

_PAGE = 5_000  # keys of one answer; etcd makes each in one piece

_RANGE = Method(
    "/etcdserverpb.KV/Range", pb.RangeRequest.SerializeToString, pb.RangeResponse.FromString
)
_PUT = Method("/etcdserverpb.KV/Put", pb.PutRequest.SerializeToString, pb.PutResponse.FromString)
_TXN = Method("/etcdserverpb.KV/Txn", pb.TxnRequest.SerializeToString, pb.TxnResponse.FromString)
_COMPACT = Method(
    "/etcdserverpb.KV/Compact",
    pb.CompactionRequest.SerializeToString,
    pb.CompactionResponse.FromString,
)


def entry_of(kv: pb.KeyValue) -> Entry:
    """Return a key as the interface has it."""
    return Entry(kv.key, kv.value, kv.create_revision, kv.mod_revision, kv.lease)


class Keys:
    """The calls of etcd's KV service."""

    def __init__(self, endpoints: Endpoints) -> None:
        self._endpoints = endpoints

    async def read(self, key: bytes, end: bytes, revision: int) -> Entries:
        found: list[Entry] = []
        while True:
            request = pb.RangeRequest(key=key, range_end=end, limit=_PAGE, revision=revision)
            answer = await self._endpoints.call(_RANGE, request, is_repeatable=True)
            # Further pages are of the revision of the first.
            revision = revision or answer.header.revision
            found += map(entry_of, answer.kvs)
            if not answer.more:
                return Entries(tuple(found), revision)
            key = found[-1].key + b"\x00"

    async def put(self, key: bytes, value: bytes, lease: int) -> int:
        request = pb.PutRequest(key=key, value=value, lease=lease)
        answer = await self._endpoints.call(_PUT, request, is_repeatable=True)
        return answer.header.revision

    async def transact(
        self,
        conditions: Sequence[KeyIs],
        then: Sequence[Operation],
        otherwise: Sequence[Operation],
        is_repeatable: bool,
    ) -> Outcome:
        request = pb.TxnRequest(
            compare=[compare for each in conditions for compare in _compares(each)],
            success=map(_request_of, then),
            failure=map(_request_of, otherwise),
        )
        answer = await self._endpoints.call(_TXN, request, is_repeatable=is_repeatable)
        reads = [
            tuple(map(entry_of, each.range.kvs))
            for each in answer.responses
            if each.WhichOneof("response") == "range"
        ]
        return Outcome(answer.succeeded, answer.header.revision, tuple(reads))

    async def compact(self, revision: int) -> None:
        request = pb.CompactionRequest(revision=revision, physical=True)
        await self._endpoints.call(_COMPACT, request, is_repeatable=False)


def _compares(condition: KeyIs) -> Iterable[pb.Compare]:
    if condition.created is not None:
        yield pb.Compare(
            target=pb.Compare.TARGET_CREATE, key=condition.key, create_revision=condition.created
        )
    if condition.changed is not None:
        yield pb.Compare(
            target=pb.Compare.TARGET_MOD, key=condition.key, mod_revision=condition.changed
        )


def _request_of(operation: Operation) -> pb.RequestOp:
    if isinstance(operation, Put):
        return pb.RequestOp(
            put=pb.PutRequest(key=operation.key, value=operation.value, lease=operation.lease)
        )
    if isinstance(operation, Read):
        return pb.RequestOp(range=pb.RangeRequest(key=operation.key, range_end=operation.end))
    assert isinstance(operation, Delete)
    return pb.RequestOp(
        delete_range=pb.DeleteRangeRequest(key=operation.key, range_end=operation.end)
    )
