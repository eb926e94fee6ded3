from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Effort(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    EFFORT_UNSPECIFIED: _ClassVar[Effort]
    EFFORT_FAST: _ClassVar[Effort]
    EFFORT_BALANCED: _ClassVar[Effort]
EFFORT_UNSPECIFIED: Effort
EFFORT_FAST: Effort
EFFORT_BALANCED: Effort

class Session(_message.Message):
    __slots__ = ("session_id", "planner_epoch", "create_time", "lease_duration", "planner_release")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    PLANNER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    CREATE_TIME_FIELD_NUMBER: _ClassVar[int]
    LEASE_DURATION_FIELD_NUMBER: _ClassVar[int]
    PLANNER_RELEASE_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    planner_epoch: str
    create_time: _timestamp_pb2.Timestamp
    lease_duration: _duration_pb2.Duration
    planner_release: str
    def __init__(self, session_id: _Optional[str] = ..., planner_epoch: _Optional[str] = ..., create_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., lease_duration: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., planner_release: _Optional[str] = ...) -> None: ...

class PlanIdentity(_message.Message):
    __slots__ = ("planner_epoch", "version")
    PLANNER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    planner_epoch: str
    version: int
    def __init__(self, planner_epoch: _Optional[str] = ..., version: _Optional[int] = ...) -> None: ...

class Plan(_message.Message):
    __slots__ = ("identity", "source_step", "source_micro_batch", "layers", "digest", "stats", "create_time")
    IDENTITY_FIELD_NUMBER: _ClassVar[int]
    SOURCE_STEP_FIELD_NUMBER: _ClassVar[int]
    SOURCE_MICRO_BATCH_FIELD_NUMBER: _ClassVar[int]
    LAYERS_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    STATS_FIELD_NUMBER: _ClassVar[int]
    CREATE_TIME_FIELD_NUMBER: _ClassVar[int]
    identity: PlanIdentity
    source_step: int
    source_micro_batch: int
    layers: _containers.RepeatedCompositeFieldContainer[LayerPlan]
    digest: bytes
    stats: PlanStats
    create_time: _timestamp_pb2.Timestamp
    def __init__(self, identity: _Optional[_Union[PlanIdentity, _Mapping]] = ..., source_step: _Optional[int] = ..., source_micro_batch: _Optional[int] = ..., layers: _Optional[_Iterable[_Union[LayerPlan, _Mapping]]] = ..., digest: _Optional[bytes] = ..., stats: _Optional[_Union[PlanStats, _Mapping]] = ..., create_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class LayerPlan(_message.Message):
    __slots__ = ("guest_experts", "token_quotas", "stats", "gates")
    GUEST_EXPERTS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_QUOTAS_FIELD_NUMBER: _ClassVar[int]
    STATS_FIELD_NUMBER: _ClassVar[int]
    GATES_FIELD_NUMBER: _ClassVar[int]
    guest_experts: Int32Tensor
    token_quotas: Int32Tensor
    stats: PlanStats
    gates: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, guest_experts: _Optional[_Union[Int32Tensor, _Mapping]] = ..., token_quotas: _Optional[_Union[Int32Tensor, _Mapping]] = ..., stats: _Optional[_Union[PlanStats, _Mapping]] = ..., gates: _Optional[_Iterable[str]] = ...) -> None: ...

class OpenSessionRequest(_message.Message):
    __slots__ = ("training_job", "group", "incarnation", "layers", "topology", "options", "client_release")
    TRAINING_JOB_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    LAYERS_FIELD_NUMBER: _ClassVar[int]
    TOPOLOGY_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    CLIENT_RELEASE_FIELD_NUMBER: _ClassVar[int]
    training_job: str
    group: str
    incarnation: int
    layers: _containers.RepeatedCompositeFieldContainer[MoeLayer]
    topology: Topology
    options: PlannerOptions
    client_release: str
    def __init__(self, training_job: _Optional[str] = ..., group: _Optional[str] = ..., incarnation: _Optional[int] = ..., layers: _Optional[_Iterable[_Union[MoeLayer, _Mapping]]] = ..., topology: _Optional[_Union[Topology, _Mapping]] = ..., options: _Optional[_Union[PlannerOptions, _Mapping]] = ..., client_release: _Optional[str] = ...) -> None: ...

class OpenSessionResponse(_message.Message):
    __slots__ = ("session",)
    SESSION_FIELD_NUMBER: _ClassVar[int]
    session: Session
    def __init__(self, session: _Optional[_Union[Session, _Mapping]] = ...) -> None: ...

class ReportRoutingRequest(_message.Message):
    __slots__ = ("session_id", "step", "micro_batch", "is_rehearsal", "valid_token_counts", "token_counts", "applied_plan", "telemetry", "measured_rates")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    MICRO_BATCH_FIELD_NUMBER: _ClassVar[int]
    IS_REHEARSAL_FIELD_NUMBER: _ClassVar[int]
    VALID_TOKEN_COUNTS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_COUNTS_FIELD_NUMBER: _ClassVar[int]
    APPLIED_PLAN_FIELD_NUMBER: _ClassVar[int]
    TELEMETRY_FIELD_NUMBER: _ClassVar[int]
    MEASURED_RATES_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    step: int
    micro_batch: int
    is_rehearsal: bool
    valid_token_counts: _containers.RepeatedScalarFieldContainer[int]
    token_counts: _containers.RepeatedCompositeFieldContainer[Int32Tensor]
    applied_plan: PlanIdentity
    telemetry: _containers.RepeatedCompositeFieldContainer[RankTelemetry]
    measured_rates: MeasuredRates
    def __init__(self, session_id: _Optional[str] = ..., step: _Optional[int] = ..., micro_batch: _Optional[int] = ..., is_rehearsal: bool = ..., valid_token_counts: _Optional[_Iterable[int]] = ..., token_counts: _Optional[_Iterable[_Union[Int32Tensor, _Mapping]]] = ..., applied_plan: _Optional[_Union[PlanIdentity, _Mapping]] = ..., telemetry: _Optional[_Iterable[_Union[RankTelemetry, _Mapping]]] = ..., measured_rates: _Optional[_Union[MeasuredRates, _Mapping]] = ...) -> None: ...

class MeasuredRates(_message.Message):
    __slots__ = ("token_picoseconds", "bandwidths_bytes_per_second")
    TOKEN_PICOSECONDS_FIELD_NUMBER: _ClassVar[int]
    BANDWIDTHS_BYTES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    token_picoseconds: _containers.RepeatedScalarFieldContainer[int]
    bandwidths_bytes_per_second: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, token_picoseconds: _Optional[_Iterable[int]] = ..., bandwidths_bytes_per_second: _Optional[_Iterable[int]] = ...) -> None: ...

class ReportRoutingResponse(_message.Message):
    __slots__ = ("latest_plan", "is_paused")
    LATEST_PLAN_FIELD_NUMBER: _ClassVar[int]
    IS_PAUSED_FIELD_NUMBER: _ClassVar[int]
    latest_plan: PlanIdentity
    is_paused: bool
    def __init__(self, latest_plan: _Optional[_Union[PlanIdentity, _Mapping]] = ..., is_paused: bool = ...) -> None: ...

class StreamReportsRequest(_message.Message):
    __slots__ = ("report", "trace_context")
    class TraceContextEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    REPORT_FIELD_NUMBER: _ClassVar[int]
    TRACE_CONTEXT_FIELD_NUMBER: _ClassVar[int]
    report: ReportRoutingRequest
    trace_context: _containers.ScalarMap[str, str]
    def __init__(self, report: _Optional[_Union[ReportRoutingRequest, _Mapping]] = ..., trace_context: _Optional[_Mapping[str, str]] = ...) -> None: ...

class StreamReportsResponse(_message.Message):
    __slots__ = ("answered_count", "refused_reports", "response")
    ANSWERED_COUNT_FIELD_NUMBER: _ClassVar[int]
    REFUSED_REPORTS_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_FIELD_NUMBER: _ClassVar[int]
    answered_count: int
    refused_reports: _containers.RepeatedCompositeFieldContainer[RefusedReport]
    response: ReportRoutingResponse
    def __init__(self, answered_count: _Optional[int] = ..., refused_reports: _Optional[_Iterable[_Union[RefusedReport, _Mapping]]] = ..., response: _Optional[_Union[ReportRoutingResponse, _Mapping]] = ...) -> None: ...

class RefusedReport(_message.Message):
    __slots__ = ("index", "status")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    index: int
    status: bytes
    def __init__(self, index: _Optional[int] = ..., status: _Optional[bytes] = ...) -> None: ...

class RankTelemetry(_message.Message):
    __slots__ = ("computed_token_counts", "exposed_transfer_duration", "transfer_duration", "intra_node_sent_bytes", "inter_node_sent_bytes", "fallback_counts", "applied_layer_count", "error_counts")
    class FallbackCountsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class ErrorCountsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    COMPUTED_TOKEN_COUNTS_FIELD_NUMBER: _ClassVar[int]
    EXPOSED_TRANSFER_DURATION_FIELD_NUMBER: _ClassVar[int]
    TRANSFER_DURATION_FIELD_NUMBER: _ClassVar[int]
    INTRA_NODE_SENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    INTER_NODE_SENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    FALLBACK_COUNTS_FIELD_NUMBER: _ClassVar[int]
    APPLIED_LAYER_COUNT_FIELD_NUMBER: _ClassVar[int]
    ERROR_COUNTS_FIELD_NUMBER: _ClassVar[int]
    computed_token_counts: Int32Tensor
    exposed_transfer_duration: _duration_pb2.Duration
    transfer_duration: _duration_pb2.Duration
    intra_node_sent_bytes: int
    inter_node_sent_bytes: int
    fallback_counts: _containers.ScalarMap[str, int]
    applied_layer_count: int
    error_counts: _containers.ScalarMap[str, int]
    def __init__(self, computed_token_counts: _Optional[_Union[Int32Tensor, _Mapping]] = ..., exposed_transfer_duration: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., transfer_duration: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., intra_node_sent_bytes: _Optional[int] = ..., inter_node_sent_bytes: _Optional[int] = ..., fallback_counts: _Optional[_Mapping[str, int]] = ..., applied_layer_count: _Optional[int] = ..., error_counts: _Optional[_Mapping[str, int]] = ...) -> None: ...

class PlanNowRequest(_message.Message):
    __slots__ = ("report", "layer_indices")
    REPORT_FIELD_NUMBER: _ClassVar[int]
    LAYER_INDICES_FIELD_NUMBER: _ClassVar[int]
    report: ReportRoutingRequest
    layer_indices: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, report: _Optional[_Union[ReportRoutingRequest, _Mapping]] = ..., layer_indices: _Optional[_Iterable[int]] = ...) -> None: ...

class PlanNowResponse(_message.Message):
    __slots__ = ("plan",)
    PLAN_FIELD_NUMBER: _ClassVar[int]
    plan: Plan
    def __init__(self, plan: _Optional[_Union[Plan, _Mapping]] = ...) -> None: ...

class WatchPlansRequest(_message.Message):
    __slots__ = ("session_id", "after_version")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    AFTER_VERSION_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    after_version: int
    def __init__(self, session_id: _Optional[str] = ..., after_version: _Optional[int] = ...) -> None: ...

class WatchPlansResponse(_message.Message):
    __slots__ = ("plan",)
    PLAN_FIELD_NUMBER: _ClassVar[int]
    plan: Plan
    def __init__(self, plan: _Optional[_Union[Plan, _Mapping]] = ...) -> None: ...

class GetPlanRequest(_message.Message):
    __slots__ = ("session_id", "version")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    version: int
    def __init__(self, session_id: _Optional[str] = ..., version: _Optional[int] = ...) -> None: ...

class GetPlanResponse(_message.Message):
    __slots__ = ("plan",)
    PLAN_FIELD_NUMBER: _ClassVar[int]
    plan: Plan
    def __init__(self, plan: _Optional[_Union[Plan, _Mapping]] = ...) -> None: ...

class CloseSessionRequest(_message.Message):
    __slots__ = ("session_id",)
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    def __init__(self, session_id: _Optional[str] = ...) -> None: ...

class CloseSessionResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class MoeLayer(_message.Message):
    __slots__ = ("name", "expert_count", "top_k", "expert_size_bytes", "home_ranks", "drops_tokens", "token_picoseconds")
    NAME_FIELD_NUMBER: _ClassVar[int]
    EXPERT_COUNT_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    EXPERT_SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    HOME_RANKS_FIELD_NUMBER: _ClassVar[int]
    DROPS_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_PICOSECONDS_FIELD_NUMBER: _ClassVar[int]
    name: str
    expert_count: int
    top_k: int
    expert_size_bytes: int
    home_ranks: _containers.RepeatedScalarFieldContainer[int]
    drops_tokens: bool
    token_picoseconds: int
    def __init__(self, name: _Optional[str] = ..., expert_count: _Optional[int] = ..., top_k: _Optional[int] = ..., expert_size_bytes: _Optional[int] = ..., home_ranks: _Optional[_Iterable[int]] = ..., drops_tokens: bool = ..., token_picoseconds: _Optional[int] = ...) -> None: ...

class Topology(_message.Message):
    __slots__ = ("levels", "ranks", "cost_matrix_milli", "has_relay")
    class Level(_message.Message):
        __slots__ = ("name", "transfer_cost_milli", "bandwidth_bytes_per_second")
        NAME_FIELD_NUMBER: _ClassVar[int]
        TRANSFER_COST_MILLI_FIELD_NUMBER: _ClassVar[int]
        BANDWIDTH_BYTES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
        name: str
        transfer_cost_milli: int
        bandwidth_bytes_per_second: int
        def __init__(self, name: _Optional[str] = ..., transfer_cost_milli: _Optional[int] = ..., bandwidth_bytes_per_second: _Optional[int] = ...) -> None: ...
    class Rank(_message.Message):
        __slots__ = ("host", "domains", "slot_count", "speed_milli", "token_cap")
        HOST_FIELD_NUMBER: _ClassVar[int]
        DOMAINS_FIELD_NUMBER: _ClassVar[int]
        SLOT_COUNT_FIELD_NUMBER: _ClassVar[int]
        SPEED_MILLI_FIELD_NUMBER: _ClassVar[int]
        TOKEN_CAP_FIELD_NUMBER: _ClassVar[int]
        host: str
        domains: _containers.RepeatedScalarFieldContainer[int]
        slot_count: int
        speed_milli: int
        token_cap: int
        def __init__(self, host: _Optional[str] = ..., domains: _Optional[_Iterable[int]] = ..., slot_count: _Optional[int] = ..., speed_milli: _Optional[int] = ..., token_cap: _Optional[int] = ...) -> None: ...
    LEVELS_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    COST_MATRIX_MILLI_FIELD_NUMBER: _ClassVar[int]
    HAS_RELAY_FIELD_NUMBER: _ClassVar[int]
    levels: _containers.RepeatedCompositeFieldContainer[Topology.Level]
    ranks: _containers.RepeatedCompositeFieldContainer[Topology.Rank]
    cost_matrix_milli: Int32Tensor
    has_relay: bool
    def __init__(self, levels: _Optional[_Iterable[_Union[Topology.Level, _Mapping]]] = ..., ranks: _Optional[_Iterable[_Union[Topology.Rank, _Mapping]]] = ..., cost_matrix_milli: _Optional[_Union[Int32Tensor, _Mapping]] = ..., has_relay: bool = ...) -> None: ...

class PlannerOptions(_message.Message):
    __slots__ = ("algorithm", "tolerance_ppm", "mu_ppm", "min_imbalance_ppm", "min_tokens_per_guest", "effort", "plan_interval", "objective", "recent_report_count", "stretch_percent")
    ALGORITHM_FIELD_NUMBER: _ClassVar[int]
    TOLERANCE_PPM_FIELD_NUMBER: _ClassVar[int]
    MU_PPM_FIELD_NUMBER: _ClassVar[int]
    MIN_IMBALANCE_PPM_FIELD_NUMBER: _ClassVar[int]
    MIN_TOKENS_PER_GUEST_FIELD_NUMBER: _ClassVar[int]
    EFFORT_FIELD_NUMBER: _ClassVar[int]
    PLAN_INTERVAL_FIELD_NUMBER: _ClassVar[int]
    OBJECTIVE_FIELD_NUMBER: _ClassVar[int]
    RECENT_REPORT_COUNT_FIELD_NUMBER: _ClassVar[int]
    STRETCH_PERCENT_FIELD_NUMBER: _ClassVar[int]
    algorithm: str
    tolerance_ppm: int
    mu_ppm: int
    min_imbalance_ppm: int
    min_tokens_per_guest: int
    effort: Effort
    plan_interval: int
    objective: str
    recent_report_count: int
    stretch_percent: int
    def __init__(self, algorithm: _Optional[str] = ..., tolerance_ppm: _Optional[int] = ..., mu_ppm: _Optional[int] = ..., min_imbalance_ppm: _Optional[int] = ..., min_tokens_per_guest: _Optional[int] = ..., effort: _Optional[_Union[Effort, str]] = ..., plan_interval: _Optional[int] = ..., objective: _Optional[str] = ..., recent_report_count: _Optional[int] = ..., stretch_percent: _Optional[int] = ...) -> None: ...

class PlanStats(_message.Message):
    __slots__ = ("imbalance_before", "imbalance_after", "weighted_cost", "transfer_size_bytes", "planning_duration", "predicted_gain")
    IMBALANCE_BEFORE_FIELD_NUMBER: _ClassVar[int]
    IMBALANCE_AFTER_FIELD_NUMBER: _ClassVar[int]
    WEIGHTED_COST_FIELD_NUMBER: _ClassVar[int]
    TRANSFER_SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    PLANNING_DURATION_FIELD_NUMBER: _ClassVar[int]
    PREDICTED_GAIN_FIELD_NUMBER: _ClassVar[int]
    imbalance_before: float
    imbalance_after: float
    weighted_cost: float
    transfer_size_bytes: int
    planning_duration: _duration_pb2.Duration
    predicted_gain: _duration_pb2.Duration
    def __init__(self, imbalance_before: _Optional[float] = ..., imbalance_after: _Optional[float] = ..., weighted_cost: _Optional[float] = ..., transfer_size_bytes: _Optional[int] = ..., planning_duration: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., predicted_gain: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class Int32Tensor(_message.Message):
    __slots__ = ("shape", "data")
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    shape: _containers.RepeatedScalarFieldContainer[int]
    data: bytes
    def __init__(self, shape: _Optional[_Iterable[int]] = ..., data: _Optional[bytes] = ...) -> None: ...
