from mooncake_store.protocol import types_pb2 as _types_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class FateKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FATE_KIND_UNSPECIFIED: _ClassVar[FateKind]
    FATE_KIND_EVICTED_FOR_PUT: _ClassVar[FateKind]
    FATE_KIND_EVICTED_AT_WATERMARK: _ClassVar[FateKind]
    FATE_KIND_EVICTED_FOR_COPY: _ClassVar[FateKind]
    FATE_KIND_EXPIRED: _ClassVar[FateKind]
    FATE_KIND_REMOVED: _ClassVar[FateKind]
    FATE_KIND_REPLACED: _ClassVar[FateKind]
    FATE_KIND_OUTRANKED: _ClassVar[FateKind]
    FATE_KIND_NODE_LOST: _ClassVar[FateKind]
    FATE_KIND_NOT_KEPT: _ClassVar[FateKind]
    FATE_KIND_STRUCK: _ClassVar[FateKind]
    FATE_KIND_CONDEMNED: _ClassVar[FateKind]
    FATE_KIND_PUT_SESSION_ENDED: _ClassVar[FateKind]
    FATE_KIND_PUT_DEADLINE: _ClassVar[FateKind]
    FATE_KIND_PUT_REVOKED: _ClassVar[FateKind]
    FATE_KIND_PUT_NO_SPACE: _ClassVar[FateKind]
    FATE_KIND_PUT_NODE_RESTARTED: _ClassVar[FateKind]

class TaskKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TASK_KIND_UNSPECIFIED: _ClassVar[TaskKind]
    TASK_KIND_DRAIN: _ClassVar[TaskKind]
    TASK_KIND_REPAIR: _ClassVar[TaskKind]
    TASK_KIND_REPLICATE: _ClassVar[TaskKind]
    TASK_KIND_MOVE: _ClassVar[TaskKind]

class TaskState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TASK_STATE_UNSPECIFIED: _ClassVar[TaskState]
    TASK_STATE_WAITING: _ClassVar[TaskState]
    TASK_STATE_RUNNING: _ClassVar[TaskState]
    TASK_STATE_BLOCKED: _ClassVar[TaskState]
    TASK_STATE_DONE: _ClassVar[TaskState]
    TASK_STATE_CANCELLED: _ClassVar[TaskState]

class MemberState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    MEMBER_STATE_JOINING: _ClassVar[MemberState]
    MEMBER_STATE_READY: _ClassVar[MemberState]
    MEMBER_STATE_DRAINING: _ClassVar[MemberState]
    MEMBER_STATE_GONE: _ClassVar[MemberState]

class EventKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    EVENT_KIND_UNSPECIFIED: _ClassVar[EventKind]
    EVENT_KIND_STORED: _ClassVar[EventKind]
    EVENT_KIND_REMOVED: _ClassVar[EventKind]
    EVENT_KIND_EVICTED: _ClassVar[EventKind]
    EVENT_KIND_EXPIRED: _ClassVar[EventKind]
    EVENT_KIND_REPLICA_ADDED: _ClassVar[EventKind]
    EVENT_KIND_REPLICA_LOST: _ClassVar[EventKind]
    EVENT_KIND_SERVER_JOINED: _ClassVar[EventKind]
    EVENT_KIND_SERVER_LOST: _ClassVar[EventKind]
    EVENT_KIND_LOST: _ClassVar[EventKind]
FATE_KIND_UNSPECIFIED: FateKind
FATE_KIND_EVICTED_FOR_PUT: FateKind
FATE_KIND_EVICTED_AT_WATERMARK: FateKind
FATE_KIND_EVICTED_FOR_COPY: FateKind
FATE_KIND_EXPIRED: FateKind
FATE_KIND_REMOVED: FateKind
FATE_KIND_REPLACED: FateKind
FATE_KIND_OUTRANKED: FateKind
FATE_KIND_NODE_LOST: FateKind
FATE_KIND_NOT_KEPT: FateKind
FATE_KIND_STRUCK: FateKind
FATE_KIND_CONDEMNED: FateKind
FATE_KIND_PUT_SESSION_ENDED: FateKind
FATE_KIND_PUT_DEADLINE: FateKind
FATE_KIND_PUT_REVOKED: FateKind
FATE_KIND_PUT_NO_SPACE: FateKind
FATE_KIND_PUT_NODE_RESTARTED: FateKind
TASK_KIND_UNSPECIFIED: TaskKind
TASK_KIND_DRAIN: TaskKind
TASK_KIND_REPAIR: TaskKind
TASK_KIND_REPLICATE: TaskKind
TASK_KIND_MOVE: TaskKind
TASK_STATE_UNSPECIFIED: TaskState
TASK_STATE_WAITING: TaskState
TASK_STATE_RUNNING: TaskState
TASK_STATE_BLOCKED: TaskState
TASK_STATE_DONE: TaskState
TASK_STATE_CANCELLED: TaskState
MEMBER_STATE_JOINING: MemberState
MEMBER_STATE_READY: MemberState
MEMBER_STATE_DRAINING: MemberState
MEMBER_STATE_GONE: MemberState
EVENT_KIND_UNSPECIFIED: EventKind
EVENT_KIND_STORED: EventKind
EVENT_KIND_REMOVED: EventKind
EVENT_KIND_EVICTED: EventKind
EVENT_KIND_EXPIRED: EventKind
EVENT_KIND_REPLICA_ADDED: EventKind
EVENT_KIND_REPLICA_LOST: EventKind
EVENT_KIND_SERVER_JOINED: EventKind
EVENT_KIND_SERVER_LOST: EventKind
EVENT_KIND_LOST: EventKind

class OpenSessionRequest(_message.Message):
    __slots__ = ("tenant", "token", "name")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    token: str
    name: str
    def __init__(self, tenant: _Optional[str] = ..., token: _Optional[str] = ..., name: _Optional[str] = ...) -> None: ...

class OpenSessionResponse(_message.Message):
    __slots__ = ("session", "epoch", "timeout_ms", "location_lifetime_ms")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    LOCATION_LIFETIME_MS_FIELD_NUMBER: _ClassVar[int]
    session: int
    epoch: int
    timeout_ms: int
    location_lifetime_ms: int
    def __init__(self, session: _Optional[int] = ..., epoch: _Optional[int] = ..., timeout_ms: _Optional[int] = ..., location_lifetime_ms: _Optional[int] = ...) -> None: ...

class KeepAliveRequest(_message.Message):
    __slots__ = ("session",)
    SESSION_FIELD_NUMBER: _ClassVar[int]
    session: int
    def __init__(self, session: _Optional[int] = ...) -> None: ...

class KeepAliveResponse(_message.Message):
    __slots__ = ("members_serial",)
    MEMBERS_SERIAL_FIELD_NUMBER: _ClassVar[int]
    members_serial: int
    def __init__(self, members_serial: _Optional[int] = ...) -> None: ...

class CloseSessionRequest(_message.Message):
    __slots__ = ("session",)
    SESSION_FIELD_NUMBER: _ClassVar[int]
    session: int
    def __init__(self, session: _Optional[int] = ...) -> None: ...

class CloseSessionResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ExistsRequest(_message.Message):
    __slots__ = ("session", "keys")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    session: int
    keys: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, session: _Optional[int] = ..., keys: _Optional[_Iterable[str]] = ...) -> None: ...

class ExistsResponse(_message.Message):
    __slots__ = ("exists",)
    EXISTS_FIELD_NUMBER: _ClassVar[int]
    exists: _containers.RepeatedScalarFieldContainer[bool]
    def __init__(self, exists: _Optional[_Iterable[bool]] = ...) -> None: ...

class LookupRequest(_message.Message):
    __slots__ = ("session", "keys")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    session: int
    keys: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, session: _Optional[int] = ..., keys: _Optional[_Iterable[str]] = ...) -> None: ...

class LookupResponse(_message.Message):
    __slots__ = ("locations",)
    LOCATIONS_FIELD_NUMBER: _ClassVar[int]
    locations: _containers.RepeatedCompositeFieldContainer[_types_pb2.Location]
    def __init__(self, locations: _Optional[_Iterable[_Union[_types_pb2.Location, _Mapping]]] = ...) -> None: ...

class MatchPrefixRequest(_message.Message):
    __slots__ = ("session", "keys", "pin", "pin_deadline_ms")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    PIN_FIELD_NUMBER: _ClassVar[int]
    PIN_DEADLINE_MS_FIELD_NUMBER: _ClassVar[int]
    session: int
    keys: _containers.RepeatedScalarFieldContainer[str]
    pin: bool
    pin_deadline_ms: int
    def __init__(self, session: _Optional[int] = ..., keys: _Optional[_Iterable[str]] = ..., pin: bool = ..., pin_deadline_ms: _Optional[int] = ...) -> None: ...

class MatchPrefixResponse(_message.Message):
    __slots__ = ("locations",)
    LOCATIONS_FIELD_NUMBER: _ClassVar[int]
    locations: _containers.RepeatedCompositeFieldContainer[_types_pb2.Location]
    def __init__(self, locations: _Optional[_Iterable[_Union[_types_pb2.Location, _Mapping]]] = ...) -> None: ...

class PutItem(_message.Message):
    __slots__ = ("key", "size_bytes", "ttl_ms", "deadline_ms", "parent", "group", "replica_count", "replica_count_min", "upsert", "hard_pin", "soft_pin", "strict_replicas", "preferred_server")
    KEY_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    TTL_MS_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_MS_FIELD_NUMBER: _ClassVar[int]
    PARENT_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    REPLICA_COUNT_FIELD_NUMBER: _ClassVar[int]
    REPLICA_COUNT_MIN_FIELD_NUMBER: _ClassVar[int]
    UPSERT_FIELD_NUMBER: _ClassVar[int]
    HARD_PIN_FIELD_NUMBER: _ClassVar[int]
    SOFT_PIN_FIELD_NUMBER: _ClassVar[int]
    STRICT_REPLICAS_FIELD_NUMBER: _ClassVar[int]
    PREFERRED_SERVER_FIELD_NUMBER: _ClassVar[int]
    key: str
    size_bytes: int
    ttl_ms: int
    deadline_ms: int
    parent: str
    group: int
    replica_count: int
    replica_count_min: int
    upsert: bool
    hard_pin: bool
    soft_pin: bool
    strict_replicas: bool
    preferred_server: int
    def __init__(self, key: _Optional[str] = ..., size_bytes: _Optional[int] = ..., ttl_ms: _Optional[int] = ..., deadline_ms: _Optional[int] = ..., parent: _Optional[str] = ..., group: _Optional[int] = ..., replica_count: _Optional[int] = ..., replica_count_min: _Optional[int] = ..., upsert: bool = ..., hard_pin: bool = ..., soft_pin: bool = ..., strict_replicas: bool = ..., preferred_server: _Optional[int] = ...) -> None: ...

class PutStartRequest(_message.Message):
    __slots__ = ("session", "number", "items")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    session: int
    number: int
    items: _containers.RepeatedCompositeFieldContainer[PutItem]
    def __init__(self, session: _Optional[int] = ..., number: _Optional[int] = ..., items: _Optional[_Iterable[_Union[PutItem, _Mapping]]] = ...) -> None: ...

class PutStartResponse(_message.Message):
    __slots__ = ("grants", "message")
    GRANTS_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    grants: _containers.RepeatedCompositeFieldContainer[_types_pb2.Location]
    message: str
    def __init__(self, grants: _Optional[_Iterable[_Union[_types_pb2.Location, _Mapping]]] = ..., message: _Optional[str] = ...) -> None: ...

class EndItem(_message.Message):
    __slots__ = ("key", "version", "replicas", "checksum")
    KEY_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    key: str
    version: int
    replicas: _containers.RepeatedScalarFieldContainer[int]
    checksum: int
    def __init__(self, key: _Optional[str] = ..., version: _Optional[int] = ..., replicas: _Optional[_Iterable[int]] = ..., checksum: _Optional[int] = ...) -> None: ...

class PutEndRequest(_message.Message):
    __slots__ = ("session", "number", "items")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    session: int
    number: int
    items: _containers.RepeatedCompositeFieldContainer[EndItem]
    def __init__(self, session: _Optional[int] = ..., number: _Optional[int] = ..., items: _Optional[_Iterable[_Union[EndItem, _Mapping]]] = ...) -> None: ...

class PutEndResponse(_message.Message):
    __slots__ = ("statuses",)
    STATUSES_FIELD_NUMBER: _ClassVar[int]
    statuses: _containers.RepeatedScalarFieldContainer[_types_pb2.Status]
    def __init__(self, statuses: _Optional[_Iterable[_Union[_types_pb2.Status, str]]] = ...) -> None: ...

class RevokeRequest(_message.Message):
    __slots__ = ("session", "number", "items")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    session: int
    number: int
    items: _containers.RepeatedCompositeFieldContainer[EndItem]
    def __init__(self, session: _Optional[int] = ..., number: _Optional[int] = ..., items: _Optional[_Iterable[_Union[EndItem, _Mapping]]] = ...) -> None: ...

class RevokeResponse(_message.Message):
    __slots__ = ("statuses",)
    STATUSES_FIELD_NUMBER: _ClassVar[int]
    statuses: _containers.RepeatedScalarFieldContainer[_types_pb2.Status]
    def __init__(self, statuses: _Optional[_Iterable[_Union[_types_pb2.Status, str]]] = ...) -> None: ...

class RemoveRequest(_message.Message):
    __slots__ = ("session", "number", "keys", "force")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    FORCE_FIELD_NUMBER: _ClassVar[int]
    session: int
    number: int
    keys: _containers.RepeatedScalarFieldContainer[str]
    force: bool
    def __init__(self, session: _Optional[int] = ..., number: _Optional[int] = ..., keys: _Optional[_Iterable[str]] = ..., force: bool = ...) -> None: ...

class RemoveResponse(_message.Message):
    __slots__ = ("statuses",)
    STATUSES_FIELD_NUMBER: _ClassVar[int]
    statuses: _containers.RepeatedScalarFieldContainer[_types_pb2.Status]
    def __init__(self, statuses: _Optional[_Iterable[_Union[_types_pb2.Status, str]]] = ...) -> None: ...

class Pattern(_message.Message):
    __slots__ = ("prefix", "regex")
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    REGEX_FIELD_NUMBER: _ClassVar[int]
    prefix: str
    regex: str
    def __init__(self, prefix: _Optional[str] = ..., regex: _Optional[str] = ...) -> None: ...

class RemoveMatchingRequest(_message.Message):
    __slots__ = ("session", "pattern", "force")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    PATTERN_FIELD_NUMBER: _ClassVar[int]
    FORCE_FIELD_NUMBER: _ClassVar[int]
    session: int
    pattern: Pattern
    force: bool
    def __init__(self, session: _Optional[int] = ..., pattern: _Optional[_Union[Pattern, _Mapping]] = ..., force: bool = ...) -> None: ...

class RemoveMatchingResponse(_message.Message):
    __slots__ = ("removed_count",)
    REMOVED_COUNT_FIELD_NUMBER: _ClassVar[int]
    removed_count: int
    def __init__(self, removed_count: _Optional[int] = ...) -> None: ...

class TouchRequest(_message.Message):
    __slots__ = ("session", "keys")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    session: int
    keys: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, session: _Optional[int] = ..., keys: _Optional[_Iterable[str]] = ...) -> None: ...

class TouchResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class PinRequest(_message.Message):
    __slots__ = ("session", "keys", "deadline_ms")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_MS_FIELD_NUMBER: _ClassVar[int]
    session: int
    keys: _containers.RepeatedScalarFieldContainer[str]
    deadline_ms: int
    def __init__(self, session: _Optional[int] = ..., keys: _Optional[_Iterable[str]] = ..., deadline_ms: _Optional[int] = ...) -> None: ...

class PinResponse(_message.Message):
    __slots__ = ("statuses",)
    STATUSES_FIELD_NUMBER: _ClassVar[int]
    statuses: _containers.RepeatedScalarFieldContainer[_types_pb2.Status]
    def __init__(self, statuses: _Optional[_Iterable[_Union[_types_pb2.Status, str]]] = ...) -> None: ...

class UnpinRequest(_message.Message):
    __slots__ = ("session", "keys")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    session: int
    keys: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, session: _Optional[int] = ..., keys: _Optional[_Iterable[str]] = ...) -> None: ...

class UnpinResponse(_message.Message):
    __slots__ = ("statuses",)
    STATUSES_FIELD_NUMBER: _ClassVar[int]
    statuses: _containers.RepeatedScalarFieldContainer[_types_pb2.Status]
    def __init__(self, statuses: _Optional[_Iterable[_Union[_types_pb2.Status, str]]] = ...) -> None: ...

class AnnotateRequest(_message.Message):
    __slots__ = ("session", "key", "hard_pin", "soft_pin", "ttl_ms")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    HARD_PIN_FIELD_NUMBER: _ClassVar[int]
    SOFT_PIN_FIELD_NUMBER: _ClassVar[int]
    TTL_MS_FIELD_NUMBER: _ClassVar[int]
    session: int
    key: str
    hard_pin: bool
    soft_pin: bool
    ttl_ms: int
    def __init__(self, session: _Optional[int] = ..., key: _Optional[str] = ..., hard_pin: bool = ..., soft_pin: bool = ..., ttl_ms: _Optional[int] = ...) -> None: ...

class AnnotateResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ChangeReplicaRequest(_message.Message):
    __slots__ = ("session", "key", "replica_count", "target_server", "source_server")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    REPLICA_COUNT_FIELD_NUMBER: _ClassVar[int]
    TARGET_SERVER_FIELD_NUMBER: _ClassVar[int]
    SOURCE_SERVER_FIELD_NUMBER: _ClassVar[int]
    session: int
    key: str
    replica_count: int
    target_server: int
    source_server: int
    def __init__(self, session: _Optional[int] = ..., key: _Optional[str] = ..., replica_count: _Optional[int] = ..., target_server: _Optional[int] = ..., source_server: _Optional[int] = ...) -> None: ...

class ChangeReplicaResponse(_message.Message):
    __slots__ = ("location",)
    LOCATION_FIELD_NUMBER: _ClassVar[int]
    location: _types_pb2.Location
    def __init__(self, location: _Optional[_Union[_types_pb2.Location, _Mapping]] = ...) -> None: ...

class ListRequest(_message.Message):
    __slots__ = ("session", "pattern", "cursor", "limit")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    PATTERN_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    session: int
    pattern: Pattern
    cursor: int
    limit: int
    def __init__(self, session: _Optional[int] = ..., pattern: _Optional[_Union[Pattern, _Mapping]] = ..., cursor: _Optional[int] = ..., limit: _Optional[int] = ...) -> None: ...

class ListItem(_message.Message):
    __slots__ = ("key", "size_bytes", "version", "replica_count", "hard_pin", "soft_pin", "has_checksum", "pinned", "ttl_ms")
    KEY_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    REPLICA_COUNT_FIELD_NUMBER: _ClassVar[int]
    HARD_PIN_FIELD_NUMBER: _ClassVar[int]
    SOFT_PIN_FIELD_NUMBER: _ClassVar[int]
    HAS_CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    PINNED_FIELD_NUMBER: _ClassVar[int]
    TTL_MS_FIELD_NUMBER: _ClassVar[int]
    key: str
    size_bytes: int
    version: int
    replica_count: int
    hard_pin: bool
    soft_pin: bool
    has_checksum: bool
    pinned: bool
    ttl_ms: int
    def __init__(self, key: _Optional[str] = ..., size_bytes: _Optional[int] = ..., version: _Optional[int] = ..., replica_count: _Optional[int] = ..., hard_pin: bool = ..., soft_pin: bool = ..., has_checksum: bool = ..., pinned: bool = ..., ttl_ms: _Optional[int] = ...) -> None: ...

class ListResponse(_message.Message):
    __slots__ = ("items", "cursor")
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    items: _containers.RepeatedCompositeFieldContainer[ListItem]
    cursor: int
    def __init__(self, items: _Optional[_Iterable[_Union[ListItem, _Mapping]]] = ..., cursor: _Optional[int] = ...) -> None: ...

class StatRequest(_message.Message):
    __slots__ = ("session", "key")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    session: int
    key: str
    def __init__(self, session: _Optional[int] = ..., key: _Optional[str] = ...) -> None: ...

class StatResponse(_message.Message):
    __slots__ = ("location", "age_ms", "idle_ms", "ttl_ms", "pin_count", "use_count", "group", "parent_hash")
    LOCATION_FIELD_NUMBER: _ClassVar[int]
    AGE_MS_FIELD_NUMBER: _ClassVar[int]
    IDLE_MS_FIELD_NUMBER: _ClassVar[int]
    TTL_MS_FIELD_NUMBER: _ClassVar[int]
    PIN_COUNT_FIELD_NUMBER: _ClassVar[int]
    USE_COUNT_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    PARENT_HASH_FIELD_NUMBER: _ClassVar[int]
    location: _types_pb2.Location
    age_ms: int
    idle_ms: int
    ttl_ms: int
    pin_count: int
    use_count: int
    group: int
    parent_hash: bytes
    def __init__(self, location: _Optional[_Union[_types_pb2.Location, _Mapping]] = ..., age_ms: _Optional[int] = ..., idle_ms: _Optional[int] = ..., ttl_ms: _Optional[int] = ..., pin_count: _Optional[int] = ..., use_count: _Optional[int] = ..., group: _Optional[int] = ..., parent_hash: _Optional[bytes] = ...) -> None: ...

class ExplainRequest(_message.Message):
    __slots__ = ("session", "key")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    session: int
    key: str
    def __init__(self, session: _Optional[int] = ..., key: _Optional[str] = ...) -> None: ...

class Fate(_message.Message):
    __slots__ = ("kind", "version", "size_bytes", "age_ms", "session", "session_name", "bytes_wanted", "server")
    KIND_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    AGE_MS_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    SESSION_NAME_FIELD_NUMBER: _ClassVar[int]
    BYTES_WANTED_FIELD_NUMBER: _ClassVar[int]
    SERVER_FIELD_NUMBER: _ClassVar[int]
    kind: FateKind
    version: int
    size_bytes: int
    age_ms: int
    session: int
    session_name: str
    bytes_wanted: int
    server: int
    def __init__(self, kind: _Optional[_Union[FateKind, str]] = ..., version: _Optional[int] = ..., size_bytes: _Optional[int] = ..., age_ms: _Optional[int] = ..., session: _Optional[int] = ..., session_name: _Optional[str] = ..., bytes_wanted: _Optional[int] = ..., server: _Optional[int] = ...) -> None: ...

class OpenPut(_message.Message):
    __slots__ = ("version", "size_bytes", "session", "session_name", "deadline_ms")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    SESSION_NAME_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_MS_FIELD_NUMBER: _ClassVar[int]
    version: int
    size_bytes: int
    session: int
    session_name: str
    deadline_ms: int
    def __init__(self, version: _Optional[int] = ..., size_bytes: _Optional[int] = ..., session: _Optional[int] = ..., session_name: _Optional[str] = ..., deadline_ms: _Optional[int] = ...) -> None: ...

class ExplainResponse(_message.Message):
    __slots__ = ("stat", "open_put", "fates", "leading_ms", "history_ms", "child_count", "policy")
    STAT_FIELD_NUMBER: _ClassVar[int]
    OPEN_PUT_FIELD_NUMBER: _ClassVar[int]
    FATES_FIELD_NUMBER: _ClassVar[int]
    LEADING_MS_FIELD_NUMBER: _ClassVar[int]
    HISTORY_MS_FIELD_NUMBER: _ClassVar[int]
    CHILD_COUNT_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    stat: StatResponse
    open_put: OpenPut
    fates: _containers.RepeatedCompositeFieldContainer[Fate]
    leading_ms: int
    history_ms: int
    child_count: int
    policy: str
    def __init__(self, stat: _Optional[_Union[StatResponse, _Mapping]] = ..., open_put: _Optional[_Union[OpenPut, _Mapping]] = ..., fates: _Optional[_Iterable[_Union[Fate, _Mapping]]] = ..., leading_ms: _Optional[int] = ..., history_ms: _Optional[int] = ..., child_count: _Optional[int] = ..., policy: _Optional[str] = ...) -> None: ...

class TaskFailure(_message.Message):
    __slots__ = ("key", "size_bytes", "status")
    KEY_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    key: str
    size_bytes: int
    status: _types_pb2.Status
    def __init__(self, key: _Optional[str] = ..., size_bytes: _Optional[int] = ..., status: _Optional[_Union[_types_pb2.Status, str]] = ...) -> None: ...

class Task(_message.Message):
    __slots__ = ("task", "kind", "state", "source_server", "target_server", "replica_count", "prefix", "objects_done", "objects_total", "bytes_done", "bytes_total", "objects_failed", "objects_left", "sole_left", "age_ms", "ended_ms", "failures")
    TASK_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    SOURCE_SERVER_FIELD_NUMBER: _ClassVar[int]
    TARGET_SERVER_FIELD_NUMBER: _ClassVar[int]
    REPLICA_COUNT_FIELD_NUMBER: _ClassVar[int]
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    OBJECTS_DONE_FIELD_NUMBER: _ClassVar[int]
    OBJECTS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    BYTES_DONE_FIELD_NUMBER: _ClassVar[int]
    BYTES_TOTAL_FIELD_NUMBER: _ClassVar[int]
    OBJECTS_FAILED_FIELD_NUMBER: _ClassVar[int]
    OBJECTS_LEFT_FIELD_NUMBER: _ClassVar[int]
    SOLE_LEFT_FIELD_NUMBER: _ClassVar[int]
    AGE_MS_FIELD_NUMBER: _ClassVar[int]
    ENDED_MS_FIELD_NUMBER: _ClassVar[int]
    FAILURES_FIELD_NUMBER: _ClassVar[int]
    task: int
    kind: TaskKind
    state: TaskState
    source_server: int
    target_server: int
    replica_count: int
    prefix: str
    objects_done: int
    objects_total: int
    bytes_done: int
    bytes_total: int
    objects_failed: int
    objects_left: int
    sole_left: int
    age_ms: int
    ended_ms: int
    failures: _containers.RepeatedCompositeFieldContainer[TaskFailure]
    def __init__(self, task: _Optional[int] = ..., kind: _Optional[_Union[TaskKind, str]] = ..., state: _Optional[_Union[TaskState, str]] = ..., source_server: _Optional[int] = ..., target_server: _Optional[int] = ..., replica_count: _Optional[int] = ..., prefix: _Optional[str] = ..., objects_done: _Optional[int] = ..., objects_total: _Optional[int] = ..., bytes_done: _Optional[int] = ..., bytes_total: _Optional[int] = ..., objects_failed: _Optional[int] = ..., objects_left: _Optional[int] = ..., sole_left: _Optional[int] = ..., age_ms: _Optional[int] = ..., ended_ms: _Optional[int] = ..., failures: _Optional[_Iterable[_Union[TaskFailure, _Mapping]]] = ...) -> None: ...

class StartTaskRequest(_message.Message):
    __slots__ = ("session", "kind", "source_server", "target_server", "replica_count", "prefix")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    SOURCE_SERVER_FIELD_NUMBER: _ClassVar[int]
    TARGET_SERVER_FIELD_NUMBER: _ClassVar[int]
    REPLICA_COUNT_FIELD_NUMBER: _ClassVar[int]
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    session: int
    kind: TaskKind
    source_server: int
    target_server: int
    replica_count: int
    prefix: str
    def __init__(self, session: _Optional[int] = ..., kind: _Optional[_Union[TaskKind, str]] = ..., source_server: _Optional[int] = ..., target_server: _Optional[int] = ..., replica_count: _Optional[int] = ..., prefix: _Optional[str] = ...) -> None: ...

class StartTaskResponse(_message.Message):
    __slots__ = ("task",)
    TASK_FIELD_NUMBER: _ClassVar[int]
    task: Task
    def __init__(self, task: _Optional[_Union[Task, _Mapping]] = ...) -> None: ...

class ListTasksRequest(_message.Message):
    __slots__ = ("task", "failures_max")
    TASK_FIELD_NUMBER: _ClassVar[int]
    FAILURES_MAX_FIELD_NUMBER: _ClassVar[int]
    task: int
    failures_max: int
    def __init__(self, task: _Optional[int] = ..., failures_max: _Optional[int] = ...) -> None: ...

class ListTasksResponse(_message.Message):
    __slots__ = ("tasks",)
    TASKS_FIELD_NUMBER: _ClassVar[int]
    tasks: _containers.RepeatedCompositeFieldContainer[Task]
    def __init__(self, tasks: _Optional[_Iterable[_Union[Task, _Mapping]]] = ...) -> None: ...

class CancelTaskRequest(_message.Message):
    __slots__ = ("session", "task")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    session: int
    task: int
    def __init__(self, session: _Optional[int] = ..., task: _Optional[int] = ...) -> None: ...

class CancelTaskResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ForgetMemberRequest(_message.Message):
    __slots__ = ("session", "node")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    session: int
    node: str
    def __init__(self, session: _Optional[int] = ..., node: _Optional[str] = ...) -> None: ...

class ForgetMemberResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class MembersRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Segment(_message.Message):
    __slots__ = ("segment", "tier", "page_count", "page_count_ready")
    SEGMENT_FIELD_NUMBER: _ClassVar[int]
    TIER_FIELD_NUMBER: _ClassVar[int]
    PAGE_COUNT_FIELD_NUMBER: _ClassVar[int]
    PAGE_COUNT_READY_FIELD_NUMBER: _ClassVar[int]
    segment: int
    tier: _types_pb2.Tier
    page_count: int
    page_count_ready: int
    def __init__(self, segment: _Optional[int] = ..., tier: _Optional[_Union[_types_pb2.Tier, str]] = ..., page_count: _Optional[int] = ..., page_count_ready: _Optional[int] = ...) -> None: ...

class Member(_message.Message):
    __slots__ = ("server", "node_id", "incarnation", "state", "name", "host", "addresses", "segments")
    SERVER_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    server: int
    node_id: bytes
    incarnation: int
    state: MemberState
    name: str
    host: str
    addresses: _containers.RepeatedScalarFieldContainer[str]
    segments: _containers.RepeatedCompositeFieldContainer[Segment]
    def __init__(self, server: _Optional[int] = ..., node_id: _Optional[bytes] = ..., incarnation: _Optional[int] = ..., state: _Optional[_Union[MemberState, str]] = ..., name: _Optional[str] = ..., host: _Optional[str] = ..., addresses: _Optional[_Iterable[str]] = ..., segments: _Optional[_Iterable[_Union[Segment, _Mapping]]] = ...) -> None: ...

class MembersResponse(_message.Message):
    __slots__ = ("serial", "members")
    SERIAL_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    serial: int
    members: _containers.RepeatedCompositeFieldContainer[Member]
    def __init__(self, serial: _Optional[int] = ..., members: _Optional[_Iterable[_Union[Member, _Mapping]]] = ...) -> None: ...

class StatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Counter(_message.Message):
    __slots__ = ("name", "server", "value")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SERVER_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    name: str
    server: int
    value: int
    def __init__(self, name: _Optional[str] = ..., server: _Optional[int] = ..., value: _Optional[int] = ...) -> None: ...

class StatusResponse(_message.Message):
    __slots__ = ("epoch", "counters")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    COUNTERS_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    counters: _containers.RepeatedCompositeFieldContainer[Counter]
    def __init__(self, epoch: _Optional[int] = ..., counters: _Optional[_Iterable[_Union[Counter, _Mapping]]] = ...) -> None: ...

class EventsRequest(_message.Message):
    __slots__ = ("sequence", "epoch")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    epoch: int
    def __init__(self, sequence: _Optional[int] = ..., epoch: _Optional[int] = ...) -> None: ...

class Event(_message.Message):
    __slots__ = ("sequence", "epoch", "kind", "key", "version", "size_bytes", "server", "age_ms")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    SERVER_FIELD_NUMBER: _ClassVar[int]
    AGE_MS_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    epoch: int
    kind: EventKind
    key: str
    version: int
    size_bytes: int
    server: int
    age_ms: int
    def __init__(self, sequence: _Optional[int] = ..., epoch: _Optional[int] = ..., kind: _Optional[_Union[EventKind, str]] = ..., key: _Optional[str] = ..., version: _Optional[int] = ..., size_bytes: _Optional[int] = ..., server: _Optional[int] = ..., age_ms: _Optional[int] = ...) -> None: ...
