from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class RequestEvent(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    REQUEST_EVENT_UNSPECIFIED: _ClassVar[RequestEvent]
    REQUEST_EVENT_PREFILLED: _ClassVar[RequestEvent]
    REQUEST_EVENT_FINISHED: _ClassVar[RequestEvent]
    REQUEST_EVENT_FAILED: _ClassVar[RequestEvent]

class Role(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ROLE_UNSPECIFIED: _ClassVar[Role]
    ROLE_PREFILL: _ClassVar[Role]
    ROLE_DECODE: _ClassVar[Role]
    ROLE_BOTH: _ClassVar[Role]

class BlocksResult(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    BLOCKS_RESULT_UNSPECIFIED: _ClassVar[BlocksResult]
    BLOCKS_RESULT_APPLIED: _ClassVar[BlocksResult]
    BLOCKS_RESULT_DUPLICATE: _ClassVar[BlocksResult]
    BLOCKS_RESULT_OUTDATED: _ClassVar[BlocksResult]
    BLOCKS_RESULT_REFUSED: _ClassVar[BlocksResult]

class InstanceState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    INSTANCE_STATE_UNSPECIFIED: _ClassVar[InstanceState]
    INSTANCE_STATE_OPEN: _ClassVar[InstanceState]
    INSTANCE_STATE_DRAINING: _ClassVar[InstanceState]
    INSTANCE_STATE_SILENT: _ClassVar[InstanceState]
REQUEST_EVENT_UNSPECIFIED: RequestEvent
REQUEST_EVENT_PREFILLED: RequestEvent
REQUEST_EVENT_FINISHED: RequestEvent
REQUEST_EVENT_FAILED: RequestEvent
ROLE_UNSPECIFIED: Role
ROLE_PREFILL: Role
ROLE_DECODE: Role
ROLE_BOTH: Role
BLOCKS_RESULT_UNSPECIFIED: BlocksResult
BLOCKS_RESULT_APPLIED: BlocksResult
BLOCKS_RESULT_DUPLICATE: BlocksResult
BLOCKS_RESULT_OUTDATED: BlocksResult
BLOCKS_RESULT_REFUSED: BlocksResult
INSTANCE_STATE_UNSPECIFIED: InstanceState
INSTANCE_STATE_OPEN: InstanceState
INSTANCE_STATE_DRAINING: InstanceState
INSTANCE_STATE_SILENT: InstanceState

class ServiceLevel(_message.Message):
    __slots__ = ("ttft_s", "tbt_s")
    TTFT_S_FIELD_NUMBER: _ClassVar[int]
    TBT_S_FIELD_NUMBER: _ClassVar[int]
    ttft_s: float
    tbt_s: float
    def __init__(self, ttft_s: _Optional[float] = ..., tbt_s: _Optional[float] = ...) -> None: ...

class ScheduleRequest(_message.Message):
    __slots__ = ("request_id", "token_ids", "num_tokens", "block_keys", "expected_output_tokens", "slo", "track")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    BLOCK_KEYS_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SLO_FIELD_NUMBER: _ClassVar[int]
    TRACK_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    num_tokens: int
    block_keys: _containers.RepeatedScalarFieldContainer[str]
    expected_output_tokens: float
    slo: ServiceLevel
    track: bool
    def __init__(self, request_id: _Optional[str] = ..., token_ids: _Optional[_Iterable[int]] = ..., num_tokens: _Optional[int] = ..., block_keys: _Optional[_Iterable[str]] = ..., expected_output_tokens: _Optional[float] = ..., slo: _Optional[_Union[ServiceLevel, _Mapping]] = ..., track: bool = ...) -> None: ...

class Place(_message.Message):
    __slots__ = ("instance", "url")
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    URL_FIELD_NUMBER: _ClassVar[int]
    instance: str
    url: str
    def __init__(self, instance: _Optional[str] = ..., url: _Optional[str] = ...) -> None: ...

class Transfer(_message.Message):
    __slots__ = ("source", "tokens", "bytes", "blocks")
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    source: str
    tokens: int
    bytes: float
    blocks: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, source: _Optional[str] = ..., tokens: _Optional[int] = ..., bytes: _Optional[float] = ..., blocks: _Optional[_Iterable[str]] = ...) -> None: ...

class Predicted(_message.Message):
    __slots__ = ("ttft_s", "tbt_s", "queue_s", "ready_s", "transfer_s", "prefill_s")
    TTFT_S_FIELD_NUMBER: _ClassVar[int]
    TBT_S_FIELD_NUMBER: _ClassVar[int]
    QUEUE_S_FIELD_NUMBER: _ClassVar[int]
    READY_S_FIELD_NUMBER: _ClassVar[int]
    TRANSFER_S_FIELD_NUMBER: _ClassVar[int]
    PREFILL_S_FIELD_NUMBER: _ClassVar[int]
    ttft_s: float
    tbt_s: float
    queue_s: float
    ready_s: float
    transfer_s: float
    prefill_s: float
    def __init__(self, ttft_s: _Optional[float] = ..., tbt_s: _Optional[float] = ..., queue_s: _Optional[float] = ..., ready_s: _Optional[float] = ..., transfer_s: _Optional[float] = ..., prefill_s: _Optional[float] = ...) -> None: ...

class ScheduleResponse(_message.Message):
    __slots__ = ("request_id", "prefill", "decode", "prefix_tokens", "transfer", "predicted")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    PREFILL_FIELD_NUMBER: _ClassVar[int]
    DECODE_FIELD_NUMBER: _ClassVar[int]
    PREFIX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TRANSFER_FIELD_NUMBER: _ClassVar[int]
    PREDICTED_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    prefill: Place
    decode: Place
    prefix_tokens: int
    transfer: Transfer
    predicted: Predicted
    def __init__(self, request_id: _Optional[str] = ..., prefill: _Optional[_Union[Place, _Mapping]] = ..., decode: _Optional[_Union[Place, _Mapping]] = ..., prefix_tokens: _Optional[int] = ..., transfer: _Optional[_Union[Transfer, _Mapping]] = ..., predicted: _Optional[_Union[Predicted, _Mapping]] = ...) -> None: ...

class MeasuredTransfer(_message.Message):
    __slots__ = ("bytes", "seconds")
    BYTES_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    bytes: float
    seconds: float
    def __init__(self, bytes: _Optional[float] = ..., seconds: _Optional[float] = ...) -> None: ...

class ReportRequest(_message.Message):
    __slots__ = ("request_id", "event", "output_tokens", "transfer")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    EVENT_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TRANSFER_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    event: RequestEvent
    output_tokens: int
    transfer: MeasuredTransfer
    def __init__(self, request_id: _Optional[str] = ..., event: _Optional[_Union[RequestEvent, str]] = ..., output_tokens: _Optional[int] = ..., transfer: _Optional[_Union[MeasuredTransfer, _Mapping]] = ...) -> None: ...

class ReportResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RegisterRequest(_message.Message):
    __slots__ = ("name", "role", "url", "server", "incarnation")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    URL_FIELD_NUMBER: _ClassVar[int]
    SERVER_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    name: str
    role: Role
    url: str
    server: str
    incarnation: int
    def __init__(self, name: _Optional[str] = ..., role: _Optional[_Union[Role, str]] = ..., url: _Optional[str] = ..., server: _Optional[str] = ..., incarnation: _Optional[int] = ...) -> None: ...

class RegisterResponse(_message.Message):
    __slots__ = ("name", "incarnation", "heartbeat_interval_ms", "block_tokens", "key_prefixes")
    NAME_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_INTERVAL_MS_FIELD_NUMBER: _ClassVar[int]
    BLOCK_TOKENS_FIELD_NUMBER: _ClassVar[int]
    KEY_PREFIXES_FIELD_NUMBER: _ClassVar[int]
    name: str
    incarnation: int
    heartbeat_interval_ms: int
    block_tokens: int
    key_prefixes: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., incarnation: _Optional[int] = ..., heartbeat_interval_ms: _Optional[int] = ..., block_tokens: _Optional[int] = ..., key_prefixes: _Optional[_Iterable[str]] = ...) -> None: ...

class Load(_message.Message):
    __slots__ = ("queue_s", "queued_tokens", "requests", "batch", "context_tokens", "reserved_tokens")
    QUEUE_S_FIELD_NUMBER: _ClassVar[int]
    QUEUED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    RESERVED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    queue_s: float
    queued_tokens: int
    requests: int
    batch: int
    context_tokens: int
    reserved_tokens: int
    def __init__(self, queue_s: _Optional[float] = ..., queued_tokens: _Optional[int] = ..., requests: _Optional[int] = ..., batch: _Optional[int] = ..., context_tokens: _Optional[int] = ..., reserved_tokens: _Optional[int] = ...) -> None: ...

class HeartbeatRequest(_message.Message):
    __slots__ = ("name", "sequence", "load")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    name: str
    sequence: int
    load: Load
    def __init__(self, name: _Optional[str] = ..., sequence: _Optional[int] = ..., load: _Optional[_Union[Load, _Mapping]] = ...) -> None: ...

class HeartbeatResponse(_message.Message):
    __slots__ = ("counts",)
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    counts: bool
    def __init__(self, counts: bool = ...) -> None: ...

class BlockKeys(_message.Message):
    __slots__ = ("keys",)
    KEYS_FIELD_NUMBER: _ClassVar[int]
    keys: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, keys: _Optional[_Iterable[str]] = ...) -> None: ...

class BlockEvent(_message.Message):
    __slots__ = ("stored", "removed")
    STORED_FIELD_NUMBER: _ClassVar[int]
    REMOVED_FIELD_NUMBER: _ClassVar[int]
    stored: BlockKeys
    removed: BlockKeys
    def __init__(self, stored: _Optional[_Union[BlockKeys, _Mapping]] = ..., removed: _Optional[_Union[BlockKeys, _Mapping]] = ...) -> None: ...

class ReportBlocksRequest(_message.Message):
    __slots__ = ("name", "epoch", "first", "events", "snapshot", "sequence")
    NAME_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    name: str
    epoch: int
    first: int
    events: _containers.RepeatedCompositeFieldContainer[BlockEvent]
    snapshot: BlockKeys
    sequence: int
    def __init__(self, name: _Optional[str] = ..., epoch: _Optional[int] = ..., first: _Optional[int] = ..., events: _Optional[_Iterable[_Union[BlockEvent, _Mapping]]] = ..., snapshot: _Optional[_Union[BlockKeys, _Mapping]] = ..., sequence: _Optional[int] = ...) -> None: ...

class ReportBlocksResponse(_message.Message):
    __slots__ = ("result", "needs_snapshot")
    RESULT_FIELD_NUMBER: _ClassVar[int]
    NEEDS_SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    result: BlocksResult
    needs_snapshot: bool
    def __init__(self, result: _Optional[_Union[BlocksResult, str]] = ..., needs_snapshot: bool = ...) -> None: ...

class DrainRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class DrainResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ForgetRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class ForgetResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListInstancesRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class PrefillLoad(_message.Message):
    __slots__ = ("queue_s", "requests")
    QUEUE_S_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    queue_s: float
    requests: int
    def __init__(self, queue_s: _Optional[float] = ..., requests: _Optional[int] = ...) -> None: ...

class DecodeLoad(_message.Message):
    __slots__ = ("batch", "context_tokens", "reserved_tokens")
    BATCH_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    RESERVED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    batch: float
    context_tokens: float
    reserved_tokens: float
    def __init__(self, batch: _Optional[float] = ..., context_tokens: _Optional[float] = ..., reserved_tokens: _Optional[float] = ...) -> None: ...

class Instance(_message.Message):
    __slots__ = ("name", "role", "url", "server", "state", "incarnation", "heard_s_ago", "report_s_ago", "stale_reports", "prefill", "decode")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    URL_FIELD_NUMBER: _ClassVar[int]
    SERVER_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    HEARD_S_AGO_FIELD_NUMBER: _ClassVar[int]
    REPORT_S_AGO_FIELD_NUMBER: _ClassVar[int]
    STALE_REPORTS_FIELD_NUMBER: _ClassVar[int]
    PREFILL_FIELD_NUMBER: _ClassVar[int]
    DECODE_FIELD_NUMBER: _ClassVar[int]
    name: str
    role: Role
    url: str
    server: str
    state: InstanceState
    incarnation: int
    heard_s_ago: float
    report_s_ago: float
    stale_reports: int
    prefill: PrefillLoad
    decode: DecodeLoad
    def __init__(self, name: _Optional[str] = ..., role: _Optional[_Union[Role, str]] = ..., url: _Optional[str] = ..., server: _Optional[str] = ..., state: _Optional[_Union[InstanceState, str]] = ..., incarnation: _Optional[int] = ..., heard_s_ago: _Optional[float] = ..., report_s_ago: _Optional[float] = ..., stale_reports: _Optional[int] = ..., prefill: _Optional[_Union[PrefillLoad, _Mapping]] = ..., decode: _Optional[_Union[DecodeLoad, _Mapping]] = ...) -> None: ...

class ListInstancesResponse(_message.Message):
    __slots__ = ("instances",)
    INSTANCES_FIELD_NUMBER: _ClassVar[int]
    instances: _containers.RepeatedCompositeFieldContainer[Instance]
    def __init__(self, instances: _Optional[_Iterable[_Union[Instance, _Mapping]]] = ...) -> None: ...

class ExplainRequest(_message.Message):
    __slots__ = ("request_id",)
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    def __init__(self, request_id: _Optional[str] = ...) -> None: ...

class Decided(_message.Message):
    __slots__ = ("request_id", "prefill", "prefill_url", "decode", "decode_url", "num_tokens", "prefix_tokens", "transfer_tokens", "transfer_bytes", "source", "source_server", "target_server", "pinned_blocks", "queue_s", "ready_s", "transfer_s", "prefill_s", "ttft_s", "tbt_s", "decode_load", "pool_load", "reason", "message", "retry_after_s")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    PREFILL_FIELD_NUMBER: _ClassVar[int]
    PREFILL_URL_FIELD_NUMBER: _ClassVar[int]
    DECODE_FIELD_NUMBER: _ClassVar[int]
    DECODE_URL_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PREFIX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TRANSFER_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TRANSFER_BYTES_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    SOURCE_SERVER_FIELD_NUMBER: _ClassVar[int]
    TARGET_SERVER_FIELD_NUMBER: _ClassVar[int]
    PINNED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    QUEUE_S_FIELD_NUMBER: _ClassVar[int]
    READY_S_FIELD_NUMBER: _ClassVar[int]
    TRANSFER_S_FIELD_NUMBER: _ClassVar[int]
    PREFILL_S_FIELD_NUMBER: _ClassVar[int]
    TTFT_S_FIELD_NUMBER: _ClassVar[int]
    TBT_S_FIELD_NUMBER: _ClassVar[int]
    DECODE_LOAD_FIELD_NUMBER: _ClassVar[int]
    POOL_LOAD_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_S_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    prefill: str
    prefill_url: str
    decode: str
    decode_url: str
    num_tokens: int
    prefix_tokens: int
    transfer_tokens: int
    transfer_bytes: float
    source: str
    source_server: str
    target_server: str
    pinned_blocks: int
    queue_s: float
    ready_s: float
    transfer_s: float
    prefill_s: float
    ttft_s: float
    tbt_s: float
    decode_load: float
    pool_load: float
    reason: str
    message: str
    retry_after_s: float
    def __init__(self, request_id: _Optional[str] = ..., prefill: _Optional[str] = ..., prefill_url: _Optional[str] = ..., decode: _Optional[str] = ..., decode_url: _Optional[str] = ..., num_tokens: _Optional[int] = ..., prefix_tokens: _Optional[int] = ..., transfer_tokens: _Optional[int] = ..., transfer_bytes: _Optional[float] = ..., source: _Optional[str] = ..., source_server: _Optional[str] = ..., target_server: _Optional[str] = ..., pinned_blocks: _Optional[int] = ..., queue_s: _Optional[float] = ..., ready_s: _Optional[float] = ..., transfer_s: _Optional[float] = ..., prefill_s: _Optional[float] = ..., ttft_s: _Optional[float] = ..., tbt_s: _Optional[float] = ..., decode_load: _Optional[float] = ..., pool_load: _Optional[float] = ..., reason: _Optional[str] = ..., message: _Optional[str] = ..., retry_after_s: _Optional[float] = ...) -> None: ...

class Candidate(_message.Message):
    __slots__ = ("name", "prefix_tokens", "queue_s", "is_closed", "requests", "source", "used_tokens", "ready_s", "transfer_s", "prefill_s", "ttft_s", "why")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PREFIX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    QUEUE_S_FIELD_NUMBER: _ClassVar[int]
    IS_CLOSED_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    USED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    READY_S_FIELD_NUMBER: _ClassVar[int]
    TRANSFER_S_FIELD_NUMBER: _ClassVar[int]
    PREFILL_S_FIELD_NUMBER: _ClassVar[int]
    TTFT_S_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    name: str
    prefix_tokens: int
    queue_s: float
    is_closed: bool
    requests: int
    source: str
    used_tokens: int
    ready_s: float
    transfer_s: float
    prefill_s: float
    ttft_s: float
    why: str
    def __init__(self, name: _Optional[str] = ..., prefix_tokens: _Optional[int] = ..., queue_s: _Optional[float] = ..., is_closed: bool = ..., requests: _Optional[int] = ..., source: _Optional[str] = ..., used_tokens: _Optional[int] = ..., ready_s: _Optional[float] = ..., transfer_s: _Optional[float] = ..., prefill_s: _Optional[float] = ..., ttft_s: _Optional[float] = ..., why: _Optional[str] = ...) -> None: ...

class DecodeCandidate(_message.Message):
    __slots__ = ("name", "batch", "context_tokens", "tbt_s", "load", "is_closed", "why")
    NAME_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TBT_S_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    IS_CLOSED_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    name: str
    batch: float
    context_tokens: float
    tbt_s: float
    load: float
    is_closed: bool
    why: str
    def __init__(self, name: _Optional[str] = ..., batch: _Optional[float] = ..., context_tokens: _Optional[float] = ..., tbt_s: _Optional[float] = ..., load: _Optional[float] = ..., is_closed: bool = ..., why: _Optional[str] = ...) -> None: ...

class Became(_message.Message):
    __slots__ = ("unix_s", "what")
    UNIX_S_FIELD_NUMBER: _ClassVar[int]
    WHAT_FIELD_NUMBER: _ClassVar[int]
    unix_s: float
    what: str
    def __init__(self, unix_s: _Optional[float] = ..., what: _Optional[str] = ...) -> None: ...

class ExplainResponse(_message.Message):
    __slots__ = ("request_id", "accepted", "decided_unix_s", "decision_seconds", "num_tokens", "num_blocks", "decision", "moved_blocks", "candidates", "became", "stage", "decode_candidates")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    DECIDED_UNIX_S_FIELD_NUMBER: _ClassVar[int]
    DECISION_SECONDS_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    DECISION_FIELD_NUMBER: _ClassVar[int]
    MOVED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    CANDIDATES_FIELD_NUMBER: _ClassVar[int]
    BECAME_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    DECODE_CANDIDATES_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    accepted: bool
    decided_unix_s: float
    decision_seconds: float
    num_tokens: int
    num_blocks: int
    decision: Decided
    moved_blocks: int
    candidates: _containers.RepeatedCompositeFieldContainer[Candidate]
    became: _containers.RepeatedCompositeFieldContainer[Became]
    stage: str
    decode_candidates: _containers.RepeatedCompositeFieldContainer[DecodeCandidate]
    def __init__(self, request_id: _Optional[str] = ..., accepted: bool = ..., decided_unix_s: _Optional[float] = ..., decision_seconds: _Optional[float] = ..., num_tokens: _Optional[int] = ..., num_blocks: _Optional[int] = ..., decision: _Optional[_Union[Decided, _Mapping]] = ..., moved_blocks: _Optional[int] = ..., candidates: _Optional[_Iterable[_Union[Candidate, _Mapping]]] = ..., became: _Optional[_Iterable[_Union[Became, _Mapping]]] = ..., stage: _Optional[str] = ..., decode_candidates: _Optional[_Iterable[_Union[DecodeCandidate, _Mapping]]] = ...) -> None: ...
