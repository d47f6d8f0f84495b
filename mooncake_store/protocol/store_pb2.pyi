from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Opcode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    OPCODE_READ: _ClassVar[Opcode]
    OPCODE_WRITE: _ClassVar[Opcode]

class TransferState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TRANSFER_STATE_WAITING: _ClassVar[TransferState]
    TRANSFER_STATE_PENDING: _ClassVar[TransferState]
    TRANSFER_STATE_COMPLETED: _ClassVar[TransferState]
    TRANSFER_STATE_FAILED: _ClassVar[TransferState]
    TRANSFER_STATE_TIMED_OUT: _ClassVar[TransferState]
    TRANSFER_STATE_CANCELLED: _ClassVar[TransferState]
OPCODE_READ: Opcode
OPCODE_WRITE: Opcode
TRANSFER_STATE_WAITING: TransferState
TRANSFER_STATE_PENDING: TransferState
TRANSFER_STATE_COMPLETED: TransferState
TRANSFER_STATE_FAILED: TransferState
TRANSFER_STATE_TIMED_OUT: TransferState
TRANSFER_STATE_CANCELLED: TransferState

class PutHeader(_message.Message):
    __slots__ = ("key", "size_bytes", "replica_count", "upsert", "hard_pin", "soft_pin", "ttl_ms", "parent")
    KEY_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    REPLICA_COUNT_FIELD_NUMBER: _ClassVar[int]
    UPSERT_FIELD_NUMBER: _ClassVar[int]
    HARD_PIN_FIELD_NUMBER: _ClassVar[int]
    SOFT_PIN_FIELD_NUMBER: _ClassVar[int]
    TTL_MS_FIELD_NUMBER: _ClassVar[int]
    PARENT_FIELD_NUMBER: _ClassVar[int]
    key: str
    size_bytes: int
    replica_count: int
    upsert: bool
    hard_pin: bool
    soft_pin: bool
    ttl_ms: int
    parent: str
    def __init__(self, key: _Optional[str] = ..., size_bytes: _Optional[int] = ..., replica_count: _Optional[int] = ..., upsert: bool = ..., hard_pin: bool = ..., soft_pin: bool = ..., ttl_ms: _Optional[int] = ..., parent: _Optional[str] = ...) -> None: ...

class PutChunk(_message.Message):
    __slots__ = ("header", "data")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    header: PutHeader
    data: bytes
    def __init__(self, header: _Optional[_Union[PutHeader, _Mapping]] = ..., data: _Optional[bytes] = ...) -> None: ...

class PutResult(_message.Message):
    __slots__ = ("stored", "replica_count")
    STORED_FIELD_NUMBER: _ClassVar[int]
    REPLICA_COUNT_FIELD_NUMBER: _ClassVar[int]
    stored: bool
    replica_count: int
    def __init__(self, stored: bool = ..., replica_count: _Optional[int] = ...) -> None: ...

class GetObjectRequest(_message.Message):
    __slots__ = ("key", "offset", "length")
    KEY_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    key: str
    offset: int
    length: int
    def __init__(self, key: _Optional[str] = ..., offset: _Optional[int] = ..., length: _Optional[int] = ...) -> None: ...

class GetHeader(_message.Message):
    __slots__ = ("size_bytes", "length", "checksum")
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    size_bytes: int
    length: int
    checksum: int
    def __init__(self, size_bytes: _Optional[int] = ..., length: _Optional[int] = ..., checksum: _Optional[int] = ...) -> None: ...

class GetChunk(_message.Message):
    __slots__ = ("header", "data")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    header: GetHeader
    data: bytes
    def __init__(self, header: _Optional[_Union[GetHeader, _Mapping]] = ..., data: _Optional[bytes] = ...) -> None: ...

class ChangeObjectReplicaRequest(_message.Message):
    __slots__ = ("key", "replica_count", "target_node", "source_node")
    KEY_FIELD_NUMBER: _ClassVar[int]
    REPLICA_COUNT_FIELD_NUMBER: _ClassVar[int]
    TARGET_NODE_FIELD_NUMBER: _ClassVar[int]
    SOURCE_NODE_FIELD_NUMBER: _ClassVar[int]
    key: str
    replica_count: int
    target_node: str
    source_node: str
    def __init__(self, key: _Optional[str] = ..., replica_count: _Optional[int] = ..., target_node: _Optional[str] = ..., source_node: _Optional[str] = ...) -> None: ...

class ChangeObjectReplicaResponse(_message.Message):
    __slots__ = ("nodes",)
    NODES_FIELD_NUMBER: _ClassVar[int]
    nodes: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, nodes: _Optional[_Iterable[str]] = ...) -> None: ...

class RegisterLocalMemoryRequest(_message.Message):
    __slots__ = ("address", "length", "location")
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    LOCATION_FIELD_NUMBER: _ClassVar[int]
    address: int
    length: int
    location: str
    def __init__(self, address: _Optional[int] = ..., length: _Optional[int] = ..., location: _Optional[str] = ...) -> None: ...

class RegisterLocalMemoryResponse(_message.Message):
    __slots__ = ("address",)
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    address: int
    def __init__(self, address: _Optional[int] = ...) -> None: ...

class UnregisterLocalMemoryRequest(_message.Message):
    __slots__ = ("address",)
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    address: int
    def __init__(self, address: _Optional[int] = ...) -> None: ...

class UnregisterLocalMemoryResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class OpenSegmentRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class Region(_message.Message):
    __slots__ = ("address", "length")
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    address: int
    length: int
    def __init__(self, address: _Optional[int] = ..., length: _Optional[int] = ...) -> None: ...

class OpenSegmentResponse(_message.Message):
    __slots__ = ("segment", "regions")
    SEGMENT_FIELD_NUMBER: _ClassVar[int]
    REGIONS_FIELD_NUMBER: _ClassVar[int]
    segment: int
    regions: _containers.RepeatedCompositeFieldContainer[Region]
    def __init__(self, segment: _Optional[int] = ..., regions: _Optional[_Iterable[_Union[Region, _Mapping]]] = ...) -> None: ...

class AllocateBatchIdRequest(_message.Message):
    __slots__ = ("size",)
    SIZE_FIELD_NUMBER: _ClassVar[int]
    size: int
    def __init__(self, size: _Optional[int] = ...) -> None: ...

class AllocateBatchIdResponse(_message.Message):
    __slots__ = ("batch",)
    BATCH_FIELD_NUMBER: _ClassVar[int]
    batch: int
    def __init__(self, batch: _Optional[int] = ...) -> None: ...

class TransferRequest(_message.Message):
    __slots__ = ("opcode", "segment", "local_address", "remote_offset", "length")
    OPCODE_FIELD_NUMBER: _ClassVar[int]
    SEGMENT_FIELD_NUMBER: _ClassVar[int]
    LOCAL_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    REMOTE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    opcode: Opcode
    segment: int
    local_address: int
    remote_offset: int
    length: int
    def __init__(self, opcode: _Optional[_Union[Opcode, str]] = ..., segment: _Optional[int] = ..., local_address: _Optional[int] = ..., remote_offset: _Optional[int] = ..., length: _Optional[int] = ...) -> None: ...

class SubmitTransferRequest(_message.Message):
    __slots__ = ("batch", "requests", "timeout_ms")
    BATCH_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    batch: int
    requests: _containers.RepeatedCompositeFieldContainer[TransferRequest]
    timeout_ms: int
    def __init__(self, batch: _Optional[int] = ..., requests: _Optional[_Iterable[_Union[TransferRequest, _Mapping]]] = ..., timeout_ms: _Optional[int] = ...) -> None: ...

class SubmitTransferResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetTransferStatusRequest(_message.Message):
    __slots__ = ("batch", "index")
    BATCH_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    batch: int
    index: int
    def __init__(self, batch: _Optional[int] = ..., index: _Optional[int] = ...) -> None: ...

class GetTransferStatusResponse(_message.Message):
    __slots__ = ("state", "transferred_bytes", "message")
    STATE_FIELD_NUMBER: _ClassVar[int]
    TRANSFERRED_BYTES_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    state: TransferState
    transferred_bytes: int
    message: str
    def __init__(self, state: _Optional[_Union[TransferState, str]] = ..., transferred_bytes: _Optional[int] = ..., message: _Optional[str] = ...) -> None: ...

class FreeBatchIdRequest(_message.Message):
    __slots__ = ("batch",)
    BATCH_FIELD_NUMBER: _ClassVar[int]
    batch: int
    def __init__(self, batch: _Optional[int] = ...) -> None: ...

class FreeBatchIdResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
