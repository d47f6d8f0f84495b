"""Makes tests/golden/frames.json: frames of every method, key hashes and checksums.

The file is the contract; this script spares the typing. A change of a line that is there already
is a change of the wire protocol: raise its version. Run it with the package installed:

    python tests/golden/make_frames.py
"""

from __future__ import annotations

import json
from pathlib import Path

from mooncake_store._native import ffi, lib
from mooncake_store.errors import Status
from mooncake_store.protocol import frames as wire
from mooncake_store.protocol.frames import Frame
from mooncake_store.protocol.methods import (
    AnnotateField,
    EventKind,
    ExplainFlag,
    FateKind,
    FrameFlag,
    InventoryState,
    Kind,
    MemberState,
    Method,
    ObjectFlag,
    PutFlag,
    ReplicaState,
    Right,
    Role,
    TaskKind,
    TaskState,
    Tier,
)

PATH = Path(__file__).with_name("frames.json")

# Requests are numbered in the order in which their lines came; this one is made on its own.
READ_ANSWERED = 82

SECRET = bytes(range(192))
EPOCH = 7
CLUSTER = 0x0123456789ABCDEF
SESSION = EPOCH << 32 | 3
TASK = EPOCH << 32 | 5
VERSION = wire.version(EPOCH, 41)
BOOT_ID = bytes.fromhex("3f1c9d2ab47e4e0f8a5566778899aabb")
NODE_ID = bytes.fromhex("6b1f0c3e5d7a4c21b0d1e2f3a4b5c6d7")

KEYS = (b"k", b"vllm/llama-3-8b/0/9f86d081884c7d65", "zwölf/十二".encode(), b"x" * 1024)
TENANTS = (b"default", b"", b"tenant-with-a-name-of-64-bytes----------------------------------")


def hash_of(key: bytes, tenant: bytes = b"default") -> bytes:
    """Return a key's hash as the wire has it."""
    out = ffi.new("uint8_t[16]")
    lib.ms_hash_key_bytes(SECRET, tenant, len(tenant), key, len(key), out)
    return bytes(ffi.buffer(out))


KEY, HASH, PARENT = KEYS[1], hash_of(KEYS[1]), hash_of(KEYS[0])
HASHES = tuple(map(hash_of, KEYS))

REPLICA = wire.Replica(
    server=2,
    incarnation=9,
    segment=0,
    extents=(wire.Extent(page=16, page_count=2), wire.Extent(page=1 << 20, page_count=1)),
    tier=Tier.DRAM,
    state=ReplicaState.COMPLETE,
)
LOCATION = wire.Location(
    version=VERSION,
    size=10_000,
    checksum=0x8A9136AA,
    flags=ObjectFlag.HAS_CHECKSUM | ObjectFlag.SOFT_PIN,
    lifetime_ms=30_000,
    replicas=(
        REPLICA,
        wire.Replica(
            server=5,
            incarnation=1,
            segment=1,
            tier=Tier.SSD,
            extents=(wire.Extent(page=0, page_count=3),),
        ),
    ),
)
MISS = wire.Location(status=Status.NOT_FOUND)
SEAL = wire.Seal(
    hash=HASH,
    size=10_000,
    key=KEY,
    expiry_ms=1_800_000_000_000,
    parent=PARENT,
    group=77,
    number=12,
    checksum=0x8A9136AA,
    part=1,
    part_count=2,
    flags=ObjectFlag.HAS_CHECKSUM,
)
SERVER = wire.ServerInfo(
    node_id=NODE_ID,
    incarnation=9,
    state=MemberState.READY,
    server=2,
    boot_id=BOOT_ID,
    segments=(
        wire.SegmentInfo(segment=0, tier=Tier.DRAM, page_count=262_144, page_count_ready=16_384),
        wire.SegmentInfo(segment=1, tier=Tier.SSD, page_count=1 << 28, page_count_ready=1 << 28),
    ),
    name=b"node-a",
    host=b"host-1",
    socket_path=b"/run/user/1000/mooncake-store/node-a.sock",
    addresses=b"127.0.0.1:40001,[::1]:40001",
)
END = wire.EndItem(
    hash=HASH,
    version=VERSION,
    replica_mask=0b11,
    checksum=0x8A9136AA,
    flags=ObjectFlag.HAS_CHECKSUM,
)
FREE = wire.Free(
    epoch=EPOCH,
    incarnation=9,
    items=(
        wire.FreeItem(version=VERSION, segment=0, page=16, page_count=2, session=SESSION),
        wire.FreeItem(version=VERSION - 1, segment=1, page=0, page_count=3),
    ),
)
KEY_ITEM = wire.KeyItem(hash=HASH, key=KEY, flags=FrameFlag.FORCE)
WRITE = wire.WriteRequest(
    items=(
        wire.WriteItem(
            segment=0, page=16, page_count=2, version=VERSION, offset=0, length=5, seal=None
        ),
        wire.WriteItem(
            segment=0,
            page=1 << 20,
            page_count=1,
            version=VERSION,
            offset=0,
            length=3,
            seal=SEAL,
        ),
        wire.WriteItem(
            segment=1,
            page=0,
            page_count=3,
            source=4,
            source_offset=8192,
            version=VERSION,
            offset=4096,
            length=5904,
        ),
    )
)


def bodies() -> dict[str, tuple[Kind, Method, Status, wire.Body]]:
    """Return what the frames say, by the name of the frame."""
    request, answer, oneway, ok = Kind.REQUEST, Kind.ANSWER, Kind.ONEWAY, Status.OK
    hello = wire.Hello(
        role=Role.CLIENT,
        session=SESSION,
        epoch=EPOCH,
        pid=4242,
        boot_id=BOOT_ID,
        cluster=CLUSTER,
        name=b"worker-0",
    )
    hashes = wire.Hashes(HASHES)
    two = wire.Statuses((Status.OK, Status.NOT_FOUND))
    return {
        "hello from a client to a master": (request, Method.HELLO, ok, hello),
        "hello from a client to a store server": (
            request,
            Method.HELLO,
            ok,
            wire.Hello(
                role=Role.CLIENT,
                right=Right.WRITE,
                incarnation=9,
                session=SESSION,
                epoch=EPOCH,
                pid=4242,
                boot_id=BOOT_ID,
                cluster=CLUSTER,
                token=b"secret",
            ),
        ),
        "hello from a store server": (
            request,
            Method.HELLO,
            ok,
            wire.Hello(
                role=Role.SERVER,
                boot_id=BOOT_ID,
                cluster=CLUSTER,
                pid=17,
                name=b"node-a",
                server=SERVER,
            ),
        ),
        "hello answered by a master": (
            answer,
            Method.HELLO,
            ok,
            wire.HelloAnswer(
                role=Role.MASTER,
                epoch=EPOCH,
                session=SESSION,
                cluster=CLUSTER,
                session_timeout_ms=10_000,
                location_lifetime_ms=30_000,
                members_serial=4,
                boot_id=BOOT_ID,
                node_name=b"master",
                secret=SECRET,
            ),
        ),
        "hello answered by a store server": (
            answer,
            Method.HELLO,
            ok,
            wire.HelloAnswer(
                role=Role.SERVER, epoch=EPOCH, incarnation=9, boot_id=BOOT_ID, node_name=b"node-a"
            ),
        ),
        "ping": (request, Method.PING, ok, wire.Empty()),
        "ping answered": (answer, Method.PING, ok, wire.Empty()),
        "open_segment": (request, Method.OPEN_SEGMENT, ok, wire.Empty()),
        "open_segment answered": (
            answer,
            Method.OPEN_SEGMENT,
            ok,
            wire.Regions(
                regions=(
                    wire.Region(0x7F00_0000_0000, 1 << 30, 0, b"cpu:0"),
                    wire.Region(0x7E00_0000_0000, 4096, 1, b"*"),
                ),
                topology=b'{"cpu:0": [["eth0"], ["eth1"]]}',
                socket_path=b"/run/user/1000/mooncake-store/engine.sock",
            ),
        ),
        "read": (
            request,
            Method.READ,
            ok,
            wire.ReadRequest(
                (
                    wire.ReadItem(
                        segment=0,
                        flags=1,
                        offset=16 * 4096,
                        length=5,
                        word=wire.word(VERSION, live=True),
                        guard_page=16,
                    ),
                    wire.ReadItem(segment=0, offset=0, length=4096),
                )
            ),
        ),
        "write with a seal": (request, Method.WRITE, ok, WRITE),
        "write answered": (answer, Method.WRITE, ok, wire.StatusesOrEmpty()),
        "write refused": (
            answer,
            Method.WRITE,
            Status.FENCED,
            wire.StatusesOrEmpty((Status.FENCED, Status.FENCED, Status.OUT_OF_RANGE)),
        ),
        "attach": (request, Method.ATTACH, ok, wire.SegmentNumber(1)),
        "attach answered": (
            answer,
            Method.ATTACH,
            ok,
            wire.Attached(page_count=262_144, incarnation=9, page_first=1),
        ),
        "share": (request, Method.SHARE, ok, wire.Share(64 << 20)),
        "share answered": (answer, Method.SHARE, ok, wire.SegmentNumber(3)),
        "unshare": (request, Method.UNSHARE, ok, wire.SegmentNumber(3)),
        "unshare answered": (answer, Method.UNSHARE, ok, wire.Empty()),
        "notify": (oneway, Method.NOTIFY, ok, wire.Notify(b"decode-1", b"block 7 is there")),
        "notify answered": (answer, Method.NOTIFY, ok, wire.Empty()),
        "cut": (request, Method.CUT, ok, wire.Cut(0x1122334455667788)),
        "cut answered": (answer, Method.CUT, ok, wire.Cut(0x1122334455667788)),
        "topology": (request, Method.TOPOLOGY, ok, wire.TopologyText(b"")),
        "topology answered": (answer, Method.TOPOLOGY, ok, wire.TopologyText(b'{"nics":{}}')),
        "topology has changed": (oneway, Method.TOPOLOGY, ok, wire.TopologyText(b'{"nics":{}}')),
        "exists": (request, Method.EXISTS_KEYS, ok, hashes),
        "exists answered": (answer, Method.EXISTS_KEYS, ok, wire.Empty()),
        "lookup": (request, Method.LOOKUP, ok, hashes),
        "lookup answered": (answer, Method.LOOKUP, ok, wire.Locations((LOCATION, MISS))),
        "match_prefix": (
            request,
            Method.MATCH_PREFIX,
            ok,
            wire.Match(HASHES, pin=1, pin_deadline_ms=60_000),
        ),
        "match_prefix answered": (answer, Method.MATCH_PREFIX, ok, wire.Locations((LOCATION,))),
        "put_start": (
            request,
            Method.PUT_START,
            ok,
            wire.PutStart(
                number=11,
                number_done=10,
                items=(
                    wire.PutItem(
                        hash=HASH,
                        size=10_000,
                        key=KEY,
                        ttl_ms=3_600_000,
                        deadline_ms=60_000,
                        parent=PARENT,
                        group=77,
                        replica_count=2,
                        replica_count_min=2,
                        flags=PutFlag.UPSERT | PutFlag.STRICT_REPLICAS,
                        preferred_server=3,
                        spared_first=2,
                        spared_second=5,
                    ),
                    wire.PutItem(hash=HASHES[2], size=0, key=KEYS[2], deadline_ms=60_000),
                ),
            ),
        ),
        "put_start answered": (
            answer,
            Method.PUT_START,
            ok,
            wire.Grants((LOCATION, wire.Location(status=Status.EXISTS))),
        ),
        "put_start answered, no space": (
            answer,
            Method.PUT_START,
            ok,
            wire.Grants(
                (wire.Location(status=Status.NO_SPACE),), b"1 GiB: 900 MiB pinned, 124 MiB leased"
            ),
        ),
        "put_end": (
            request,
            Method.PUT_END,
            ok,
            wire.PutEnd(number=12, number_done=11, items=(END,)),
        ),
        "put_end answered": (answer, Method.PUT_END, ok, wire.Statuses((Status.OK,))),
        "revoke": (request, Method.REVOKE, ok, wire.PutEnd(number=13, items=(END,))),
        "revoke answered": (answer, Method.REVOKE, ok, wire.Statuses((Status.COMPLETE,))),
        "remove": (
            request,
            Method.REMOVE,
            ok,
            wire.Remove(
                number=14, number_done=13, items=(KEY_ITEM, wire.KeyItem(HASHES[2], KEYS[2]))
            ),
        ),
        "remove answered": (answer, Method.REMOVE, ok, two),
        "touch": (oneway, Method.TOUCH, ok, hashes),
        "pin": (request, Method.PIN, ok, wire.Match(HASHES[:2], pin=1, number=7)),
        "pin answered": (answer, Method.PIN, ok, two),
        "unpin": (request, Method.UNPIN, ok, wire.Match(HASHES[:2], number=8)),
        "unpin answered": (answer, Method.UNPIN, ok, two),
        "pins": (
            request,
            Method.PINS,
            ok,
            wire.Pins(9, (wire.PinsItem(HASHES[0], 2, 60_000), wire.PinsItem(HASHES[1], 0))),
        ),
        "pins answered": (answer, Method.PINS, ok, two),
        "list": (
            request,
            Method.LIST,
            ok,
            wire.ListRequest(pattern=b"^vllm/.*", cursor=5, limit=100, flags=FrameFlag.REGEX),
        ),
        "list answered": (
            answer,
            Method.LIST,
            ok,
            wire.ListAnswer(
                cursor=99,
                items=(
                    wire.ListItem(key=KEY, size=10_000, version=VERSION, replica_count=2, pinned=1),
                    wire.ListItem(key=KEYS[2], flags=ObjectFlag.HARD_PIN, ttl_ms=1234),
                ),
            ),
        ),
        "stat": (request, Method.STAT, ok, wire.KeyItem(HASH, KEY)),
        "stat answered": (
            answer,
            Method.STAT,
            ok,
            wire.StatAnswer(
                location=LOCATION,
                age_ms=5000,
                idle_ms=17,
                ttl_ms=3_595_000,
                pin_count=1,
                use_count=12,
                group=77,
                parent=PARENT,
            ),
        ),
        "stat refused": (answer, Method.STAT, Status.NOT_FOUND, wire.Empty()),
        "annotate": (
            request,
            Method.ANNOTATE,
            ok,
            wire.Annotate(
                item=wire.KeyItem(HASH, KEY),
                fields=AnnotateField.HARD_PIN | AnnotateField.TTL,
                flags=ObjectFlag.HARD_PIN,
                ttl_ms=60_000,
            ),
        ),
        "annotate answered": (answer, Method.ANNOTATE, ok, wire.Empty()),
        "change_replica": (
            request,
            Method.CHANGE_REPLICA,
            ok,
            wire.ChangeReplica(
                item=wire.KeyItem(HASH, KEY), replica_count=2, target_server=6, source_server=3
            ),
        ),
        "change_replica answered": (answer, Method.CHANGE_REPLICA, ok, LOCATION),
        "members": (request, Method.MEMBERS, ok, wire.Empty()),
        "members answered": (answer, Method.MEMBERS, ok, wire.Members(4, (SERVER,))),
        "status": (request, Method.STATUS, ok, wire.Empty()),
        "status answered": (
            answer,
            Method.STATUS,
            ok,
            wire.Counters((wire.Counter(0, 0, 1_000_000), wire.Counter(3, 3, 42))),
        ),
        "remove_matching": (
            request,
            Method.REMOVE_MATCHING,
            ok,
            wire.ListRequest(pattern=b"vllm/", limit=1000, flags=FrameFlag.FORCE),
        ),
        "remove_matching answered": (
            answer,
            Method.REMOVE_MATCHING,
            ok,
            wire.Removed(cursor=0, count=17),
        ),
        "events": (request, Method.EVENTS, ok, wire.EventsRequest(100, EPOCH, 1000)),
        "events answered": (
            answer,
            Method.EVENTS,
            ok,
            wire.EventsAnswer(
                sequence_next=102,
                epoch=EPOCH,
                items=(
                    wire.Event(100, EventKind.STORED, KEY, VERSION, 10_000, 0, 12),
                    wire.Event(101, EventKind.SERVER_LOST, server=3),
                ),
            ),
        ),
        "keepalive": (request, Method.KEEPALIVE, ok, wire.Empty()),
        "keepalive answered": (answer, Method.KEEPALIVE, ok, wire.KeepAliveAnswer(4)),
        "close_session": (request, Method.CLOSE_SESSION, ok, wire.Empty()),
        "close_session answered": (answer, Method.CLOSE_SESSION, ok, wire.Empty()),
        "adopt": (request, Method.ADOPT, ok, wire.Adopt(epoch=EPOCH, server=2)),
        "adopt answered": (answer, Method.ADOPT, ok, wire.Empty()),
        "inventory": (
            oneway,
            Method.INVENTORY,
            ok,
            wire.Inventory(
                (
                    wire.InventoryItem(
                        hash=HASH,
                        version=VERSION,
                        page=16,
                        page_count=2,
                        size=10_000,
                        note=VERSION,
                        parent=PARENT,
                        group=77,
                        checksum=0x8A9136AA,
                        part=0,
                        part_count=2,
                        flags=ObjectFlag.HAS_CHECKSUM,
                        tenant=b"default",
                        key=KEY,
                    ),
                    wire.InventoryItem(
                        hash=wire.NO_HASH,
                        version=VERSION - 9,
                        page=40,
                        page_count=1,
                        state=InventoryState.IN_USE,
                    ),
                )
            ),
        ),
        "free": (oneway, Method.FREE, ok, FREE),
        "cleared": (oneway, Method.CLEARED, ok, FREE),
        "freed": (oneway, Method.FREED, ok, FREE),
        "note": (
            request,
            Method.NOTE,
            ok,
            wire.Note(
                epoch=EPOCH,
                incarnation=9,
                version=VERSION,
                note=VERSION + 5,
                segment=0,
                page=16,
                expiry_ms=1_800_000_000_000,
                flags=ObjectFlag.HARD_PIN,
            ),
        ),
        "note answered": (answer, Method.NOTE, ok, wire.Empty()),
        "note refused": (answer, Method.NOTE, Status.GONE, wire.Empty()),
        "copy": (
            request,
            Method.COPY,
            ok,
            wire.Copy(
                epoch=EPOCH,
                incarnation=9,
                task=1001,
                source=wire.Location(version=VERSION, size=10_000, replicas=(REPLICA,)),
                target=LOCATION.replicas[1],
                seal=SEAL,
            ),
        ),
        "copy answered": (answer, Method.COPY, ok, wire.Empty()),
        "relayed_end": (oneway, Method.RELAYED_END, ok, wire.RelayedEnd(SESSION, 12, (END,))),
        "server_stats": (
            oneway,
            Method.SERVER_STATS,
            ok,
            wire.ServerStats(EPOCH, 9, SERVER.segments, (wire.Counter(1, 0, 5),)),
        ),
        "view_open": (
            request,
            Method.VIEW_OPEN,
            ok,
            wire.Views((wire.ViewItem(VERSION, 0, 16), wire.ViewItem(VERSION, 0, 1 << 20))),
        ),
        "view_open answered": (answer, Method.VIEW_OPEN, ok, two),
        "view_close": (
            request,
            Method.VIEW_CLOSE,
            ok,
            wire.Views((wire.ViewItem(VERSION, 0, 16, 3),)),
        ),
        "view_close answered": (
            answer,
            Method.VIEW_CLOSE,
            ok,
            wire.Statuses((Status.NOT_FOUND,)),
        ),
        "seal": (
            request,
            Method.SEAL,
            ok,
            wire.WriteRequest(
                (
                    wire.WriteItem(
                        segment=0,
                        page=16,
                        page_count=2,
                        version=VERSION,
                        offset=0,
                        length=0,
                        seal=SEAL,
                    ),
                )
            ),
        ),
        "seal answered": (answer, Method.SEAL, ok, wire.StatusesOrEmpty()),
        "explain": (request, Method.EXPLAIN, ok, wire.KeyItem(HASH, KEY)),
        "explain answered": (
            answer,
            Method.EXPLAIN,
            ok,
            wire.ExplainAnswer(
                leading_ms=86_400_000,
                history_ms=3_600_000,
                put_version=VERSION + 5,
                put_size=20_000,
                put_session=SESSION,
                put_deadline_ms=9_000,
                flags=ExplainFlag.STORED | ExplainFlag.PUTTING,
                child_count=2,
                policy=3,
                put_name=b"vllm-worker-0",
                stat=wire.StatAnswer(location=LOCATION, age_ms=5000, idle_ms=17, use_count=12),
                fates=(
                    wire.Fate(
                        FateKind.EVICTED_FOR_PUT,
                        version=VERSION - 7,
                        size=10_000,
                        age_ms=60_000,
                        session=SESSION,
                        bytes_wanted=1 << 20,
                        server=3,
                        name=b"vllm-worker-0",
                    ),
                    wire.Fate(FateKind.EXPIRED, version=VERSION - 9, size=1, age_ms=99_000),
                ),
            ),
        ),
        "explain answered, nothing known": (
            answer,
            Method.EXPLAIN,
            ok,
            wire.ExplainAnswer(leading_ms=1000, history_ms=1000),
        ),
        "forget": (request, Method.FORGET, ok, wire.NodeName(b"node-a")),
        "forget answered": (answer, Method.FORGET, ok, wire.Empty()),
        "start_task": (
            request,
            Method.START_TASK,
            ok,
            wire.TaskOrder(TaskKind.REPLICATE, replica_count=2, prefix=b"vllm/"),
        ),
        "start_task answered": (
            answer,
            Method.START_TASK,
            ok,
            wire.TasksAnswer(
                (
                    wire.Task(
                        TASK,
                        TaskKind.REPLICATE,
                        TaskState.RUNNING,
                        replica_count=2,
                        prefix=b"vllm/",
                    ),
                )
            ),
        ),
        "tasks": (request, Method.TASKS, ok, wire.TasksRequest(failures_max=10)),
        "tasks answered": (
            answer,
            Method.TASKS,
            ok,
            wire.TasksAnswer(
                (
                    wire.Task(
                        TASK + 1,
                        TaskKind.DRAIN,
                        TaskState.BLOCKED,
                        objects_done=1000,
                        objects_total=1001,
                        bytes_done=1000 << 20,
                        bytes_total=1001 << 20,
                        objects_failed=1,
                        objects_left=1,
                        sole_left=1,
                        age_ms=12_000,
                        source_server=3,
                        failures=(wire.TaskFailure(1 << 20, Status.NO_SPACE, KEY),),
                    ),
                    wire.Task(TASK, TaskKind.MOVE, TaskState.DONE, ended_ms=7, target_server=2),
                )
            ),
        ),
        "cancel_task": (request, Method.CANCEL_TASK, ok, wire.TasksRequest(TASK)),
        "cancel_task answered": (answer, Method.CANCEL_TASK, ok, wire.Empty()),
        "rdma_ports": (request, Method.RDMA_PORTS, ok, wire.Empty()),
        "rdma_ports answered": (
            answer,
            Method.RDMA_PORTS,
            ok,
            wire.RdmaPorts(
                (
                    wire.RdmaPort(
                        nic=0,
                        link=2,
                        mtu=5,
                        message_bytes_max=1 << 30,
                        gids=(wire.RdmaGid(RDMA_GID, 2, 3), wire.RdmaGid(RDMA_GID, 1, 2)),
                    ),
                    wire.RdmaPort(nic=2, link=1, mtu=4, message_bytes_max=1 << 23, lid=17),
                )
            ),
        ),
        "rdma_connect": (request, Method.RDMA_CONNECT, ok, RDMA_END),
        "rdma_connect answered": (answer, Method.RDMA_CONNECT, ok, RDMA_END),
        "rdma_disconnect": (request, Method.RDMA_DISCONNECT, ok, wire.SegmentNumber(0x11)),
        "rdma_disconnect answered": (answer, Method.RDMA_DISCONNECT, ok, wire.Empty()),
        "rdma_segment": (request, Method.RDMA_SEGMENT, ok, wire.SegmentNumber(1)),
        "rdma_segment answered": (
            answer,
            Method.RDMA_SEGMENT,
            ok,
            wire.RdmaSegment(
                is_whole=1,
                chunks=(
                    wire.RdmaChunk(0, 1 << 28, 0x7F00_0000_0000, 0x1234, 0),
                    wire.RdmaChunk(0, 1 << 20, 0x7E00_0000_0000, 0x5678, 0, is_words=1),
                ),
            ),
        ),
    }


RDMA_GID = bytes.fromhex("00000000000000000000ffff0a000005")
RDMA_END = wire.RdmaEnd(
    generation=9,
    nic=2,
    queue_pair=0x11,
    packet=0xABCDEF,
    mtu=5,
    gid_index=3,
    gid=RDMA_GID,
    reads_out=16,
    reads_in=16,
)
PAYLOADS = {"write with a seal": b"helloyou", "exists answered": b"\1\0\1\1"}
FLAGS = {"inventory": FrameFlag.LAST, "write with a seal": FrameFlag.RELAY}
SENTENCES = {"stat refused": b"no such key", "note refused": b""}


def frames() -> dict[str, Frame]:
    """Return the whole frames, by name."""
    made = {}
    for request, (name, (kind, method, status, body)) in enumerate(bodies().items(), 1):
        made[name] = Frame(
            method=method,
            kind=kind,
            status=status if kind == Kind.ANSWER else 5000 if kind == Kind.REQUEST else 0,
            epoch=EPOCH,
            request=request + (request >= READ_ANSWERED),
            flags=FLAGS.get(name, 0),
            body=SENTENCES.get(name, body.encode()),
            payload=PAYLOADS.get(name, b""),
        )
    results = wire.ReadResults(
        (
            wire.ReadResult(Status.OK, wire.word(VERSION, live=True)),
            wire.ReadResult(Status.OUT_OF_RANGE),
        )
    )
    made["read answered"] = Frame(
        method=Method.READ,
        kind=Kind.ANSWER,
        epoch=EPOCH,
        request=READ_ANSWERED,
        payload=b"hello",
        trailer=results.encode(),
    )
    return made


def document() -> str:
    """Return the file's text: one vector a line, so that a C test can read it line by line."""
    lines = ['{"frames": [']
    lines += _lines({"name": name, "hex": frame.encode().hex()} for name, frame in frames().items())
    lines += ['], "secret": ' + json.dumps(SECRET.hex()) + ",", '"hashes": [']
    lines += _lines(
        {"tenant": tenant.hex(), "key": key.hex(), "hash": hash_of(key, tenant).hex()}
        for tenant in TENANTS
        for key in KEYS
    )
    lines += ["]}", ""]
    return "\n".join(lines)


def _lines(values) -> list[str]:
    texts = [json.dumps(value) for value in values]
    return [text + "," for text in texts[:-1]] + texts[-1:]


if __name__ == "__main__":
    PATH.write_text(document())
    print(f"{PATH}: {len(frames())} frames")
