from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Status(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    STATUS_OK: _ClassVar[Status]
    STATUS_EXISTS: _ClassVar[Status]
    STATUS_NOT_FOUND: _ClassVar[Status]
    STATUS_GONE: _ClassVar[Status]
    STATUS_NO_SPACE: _ClassVar[Status]
    STATUS_BUSY: _ClassVar[Status]
    STATUS_BAD_REQUEST: _ClassVar[Status]
    STATUS_BAD_KEY: _ClassVar[Status]
    STATUS_TOO_LARGE: _ClassVar[Status]
    STATUS_BUFFER_TOO_SMALL: _ClassVar[Status]
    STATUS_TIMEOUT: _ClassVar[Status]
    STATUS_CANCELLED: _ClassVar[Status]
    STATUS_UNAVAILABLE: _ClassVar[Status]
    STATUS_WRONG_EPOCH: _ClassVar[Status]
    STATUS_WRONG_INCARNATION: _ClassVar[Status]
    STATUS_FENCED: _ClassVar[Status]
    STATUS_SESSION_LOST: _ClassVar[Status]
    STATUS_NOT_LEADER: _ClassVar[Status]
    STATUS_VERSION_MISMATCH: _ClassVar[Status]
    STATUS_BAD_FRAME: _ClassVar[Status]
    STATUS_BAD_CHECKSUM: _ClassVar[Status]
    STATUS_OUT_OF_RANGE: _ClassVar[Status]
    STATUS_NOT_REGISTERED: _ClassVar[Status]
    STATUS_NO_MEMORY: _ClassVar[Status]
    STATUS_IO_ERROR: _ClassVar[Status]
    STATUS_REFUSED: _ClassVar[Status]
    STATUS_CLOSED: _ClassVar[Status]
    STATUS_LIMIT: _ClassVar[Status]
    STATUS_COMPLETE: _ClassVar[Status]
    STATUS_PINNED: _ClassVar[Status]
    STATUS_FORKED: _ClassVar[Status]
    STATUS_INTERNAL: _ClassVar[Status]
    STATUS_PENDING: _ClassVar[Status]

class Tier(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TIER_DRAM: _ClassVar[Tier]
    TIER_SSD: _ClassVar[Tier]
    TIER_VRAM: _ClassVar[Tier]

class ReplicaState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    REPLICA_STATE_WRITING: _ClassVar[ReplicaState]
    REPLICA_STATE_COMPLETE: _ClassVar[ReplicaState]
    REPLICA_STATE_LEAVING: _ClassVar[ReplicaState]
STATUS_OK: Status
STATUS_EXISTS: Status
STATUS_NOT_FOUND: Status
STATUS_GONE: Status
STATUS_NO_SPACE: Status
STATUS_BUSY: Status
STATUS_BAD_REQUEST: Status
STATUS_BAD_KEY: Status
STATUS_TOO_LARGE: Status
STATUS_BUFFER_TOO_SMALL: Status
STATUS_TIMEOUT: Status
STATUS_CANCELLED: Status
STATUS_UNAVAILABLE: Status
STATUS_WRONG_EPOCH: Status
STATUS_WRONG_INCARNATION: Status
STATUS_FENCED: Status
STATUS_SESSION_LOST: Status
STATUS_NOT_LEADER: Status
STATUS_VERSION_MISMATCH: Status
STATUS_BAD_FRAME: Status
STATUS_BAD_CHECKSUM: Status
STATUS_OUT_OF_RANGE: Status
STATUS_NOT_REGISTERED: Status
STATUS_NO_MEMORY: Status
STATUS_IO_ERROR: Status
STATUS_REFUSED: Status
STATUS_CLOSED: Status
STATUS_LIMIT: Status
STATUS_COMPLETE: Status
STATUS_PINNED: Status
STATUS_FORKED: Status
STATUS_INTERNAL: Status
STATUS_PENDING: Status
TIER_DRAM: Tier
TIER_SSD: Tier
TIER_VRAM: Tier
REPLICA_STATE_WRITING: ReplicaState
REPLICA_STATE_COMPLETE: ReplicaState
REPLICA_STATE_LEAVING: ReplicaState

class Extent(_message.Message):
    __slots__ = ("page", "page_count")
    PAGE_FIELD_NUMBER: _ClassVar[int]
    PAGE_COUNT_FIELD_NUMBER: _ClassVar[int]
    page: int
    page_count: int
    def __init__(self, page: _Optional[int] = ..., page_count: _Optional[int] = ...) -> None: ...

class Replica(_message.Message):
    __slots__ = ("server", "incarnation", "segment", "tier", "state", "extents")
    SERVER_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    SEGMENT_FIELD_NUMBER: _ClassVar[int]
    TIER_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    EXTENTS_FIELD_NUMBER: _ClassVar[int]
    server: int
    incarnation: int
    segment: int
    tier: Tier
    state: ReplicaState
    extents: _containers.RepeatedCompositeFieldContainer[Extent]
    def __init__(self, server: _Optional[int] = ..., incarnation: _Optional[int] = ..., segment: _Optional[int] = ..., tier: _Optional[_Union[Tier, str]] = ..., state: _Optional[_Union[ReplicaState, str]] = ..., extents: _Optional[_Iterable[_Union[Extent, _Mapping]]] = ...) -> None: ...

class Location(_message.Message):
    __slots__ = ("status", "version", "size_bytes", "checksum", "hard_pin", "soft_pin", "lifetime_ms", "replicas", "replicas_wanted")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    HARD_PIN_FIELD_NUMBER: _ClassVar[int]
    SOFT_PIN_FIELD_NUMBER: _ClassVar[int]
    LIFETIME_MS_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_WANTED_FIELD_NUMBER: _ClassVar[int]
    status: Status
    version: int
    size_bytes: int
    checksum: int
    hard_pin: bool
    soft_pin: bool
    lifetime_ms: int
    replicas: _containers.RepeatedCompositeFieldContainer[Replica]
    replicas_wanted: int
    def __init__(self, status: _Optional[_Union[Status, str]] = ..., version: _Optional[int] = ..., size_bytes: _Optional[int] = ..., checksum: _Optional[int] = ..., hard_pin: bool = ..., soft_pin: bool = ..., lifetime_ms: _Optional[int] = ..., replicas: _Optional[_Iterable[_Union[Replica, _Mapping]]] = ..., replicas_wanted: _Optional[int] = ...) -> None: ...
