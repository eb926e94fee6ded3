"""What a session is opened with: everything the planner must know of one expert-parallel group."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cached_property

from taot_api.contract_error import ContractError, Reason
from taot_api.layer_block import LayerBlock, layer_blocks
from taot_planning import ALGORITHMS, PlanningOptions, Topology
from taot_planning.arrays import IntArray, frozen_ints
from taot_planning.layer_problem import MAX_TOKEN_PICOSECONDS, LayerRates, check_homes
from taot_planning.options import SEARCH_EFFORTS

NAME_PATTERN = re.compile(r"[A-Za-z0-9._-]{1,128}")
"""Names of training jobs and groups, as a whole."""

MAX_EXPERT_SIZE_BYTES = 2**40
"""1 TiB: sums over all guests of a plan stay below 2^63."""

DEFAULT_RECENT_REPORTS = 4
"""Recent reports that a placement should hold for, where the session does not say."""

MAX_RECENT_REPORTS = 64
"""Recent reports that a session may ask for: their counts are kept."""


@dataclass(frozen=True, kw_only=True, eq=False)
class LayerSpec:
    """One mixture-of-experts layer. Layers of a session may differ in everything."""

    name: str
    """For people and dashboards, such as `layers.12.mlp`."""

    top_k: int
    """Experts chosen per token."""

    expert_size_bytes: int
    """Weight size of one expert, the amount moved per guest."""

    home_E: IntArray
    """Home rank of each expert. Shape: [experts]."""

    drops_tokens: bool = False
    """Whether the router may drop tokens, so that counts may add up to less than valid tokens x top_k."""

    token_picoseconds: int = 0
    """Time that a rank of normal speed takes to compute one token in one expert, forward, up to 10^12; 0: unknown."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "home_E", frozen_ints(self.home_E, name="home_ranks", num_axes=1))
        if self.num_experts < 1:
            raise ContractError(Reason.INVALID_LAYER, "a layer needs at least one expert", field="home_ranks")
        if not 1 <= self.top_k <= self.num_experts:
            message = f"must be between 1 and the {self.num_experts} experts, got {self.top_k}"
            raise ContractError(Reason.INVALID_LAYER, message, field="top_k")
        if not 0 <= self.expert_size_bytes <= MAX_EXPERT_SIZE_BYTES:
            message = f"must be between 0 and 2^40 bytes (1 TiB), got {self.expert_size_bytes}"
            raise ContractError(Reason.INVALID_LAYER, message, field="expert_size_bytes")
        if not 0 <= self.token_picoseconds <= MAX_TOKEN_PICOSECONDS:
            message = f"must be between 1 and 10^12 (a second), or 0 when unknown, got {self.token_picoseconds}"
            raise ContractError(Reason.INVALID_LAYER, message, field="token_picoseconds")

    @property
    def num_experts(self) -> int:
        """Experts in the layer."""
        return int(self.home_E.size)

    @property
    def rates(self) -> LayerRates | None:
        """What computing and moving an expert take, None when unknown."""
        if not self.token_picoseconds:
            return None
        return LayerRates(token_picoseconds=self.token_picoseconds, expert_size_bytes=self.expert_size_bytes)


@dataclass(frozen=True, kw_only=True, eq=False)
class SessionSpec:
    """One expert-parallel group of one run of a training job."""

    training_job: str
    """The job, as operators know it. 1 to 128 characters of `[A-Za-z0-9._-]`."""

    group: str
    """The expert-parallel group within the job, likewise."""

    incarnation: int
    """Orders the lives of this group: the leader's start time in microseconds since 1970."""

    topology: Topology
    """The ranks of the group."""

    layers: tuple[LayerSpec, ...] = ()
    """In forward order; empty for a pipeline stage without mixture-of-experts layers."""

    algorithm: str = "taot"
    """Which algorithm plans."""

    options: PlanningOptions = field(default_factory=PlanningOptions)
    """How it plans."""

    plan_interval: int = 1
    """Plan once every this many reports."""

    recent_reports: int | None = None
    """How many recent reports the placement should hold for besides the one that is planned, up to 64. None: the
    planner's default."""

    client_release: str = ""
    """The client's release, for logs and support."""

    def __post_init__(self) -> None:
        for name in ("training_job", "group"):
            if not NAME_PATTERN.fullmatch(getattr(self, name)):
                message = f"must be 1 to 128 characters of [A-Za-z0-9._-], got {getattr(self, name)[:200]!r}"
                raise ContractError(Reason.INVALID_NAME, message, field=name)
        if self.incarnation < 1:
            raise ContractError(
                Reason.INVALID_INCARNATION, f"must be >= 1, got {self.incarnation}", field="incarnation"
            )
        if self.algorithm not in ALGORITHMS:
            message = f"unknown algorithm {self.algorithm!r}: choose one of {', '.join(sorted(ALGORITHMS))}"
            raise ContractError(Reason.UNKNOWN_ALGORITHM, message, field="options.algorithm")
        self._check_options()
        self._check_layers()

    @property
    def effective_recent_reports(self) -> int:
        """Recent reports to hold for, after the default has been filled in."""
        return DEFAULT_RECENT_REPORTS if self.recent_reports is None else self.recent_reports

    @cached_property
    def layer_blocks(self) -> tuple[LayerBlock, ...]:
        """The layers, those with as many experts together."""
        return layer_blocks(self.layers)

    def _check_options(self) -> None:
        if self.plan_interval < 1:
            message = f"must be >= 1, got {self.plan_interval}"
            raise ContractError(Reason.INVALID_OPTION, message, field="options.plan_interval")
        if not 0 <= self.effective_recent_reports <= MAX_RECENT_REPORTS:
            message = f"must be between 0 and {MAX_RECENT_REPORTS}, got {self.recent_reports}"
            raise ContractError(Reason.INVALID_OPTION, message, field="options.recent_report_count")
        if self.options.effort not in SEARCH_EFFORTS:
            message = (
                f"the service does not plan with {self.options.effort!r}: choose one of {', '.join(SEARCH_EFFORTS)}"
            )
            raise ContractError(Reason.INVALID_OPTION, message, field="options.effort")
        if self.options.objective == "step_time":
            self._check_rates()

    def _check_rates(self) -> None:
        """Checks that step times can be predicted."""
        silent = [
            f"topology.levels[{index}].bandwidth_bytes_per_second"
            for index, level in enumerate(self.topology.levels)
            if level.bandwidth_bytes_per_second is None
        ]
        silent += [
            f"layers[{index}].token_picoseconds" for index, layer in enumerate(self.layers) if layer.rates is None
        ]
        if silent:
            message = f"'step_time' needs the rates of all levels and layers: set {silent[0]}"
            raise ContractError(Reason.INVALID_OPTION, message, field="options.objective")

    def _check_layers(self) -> None:
        names: set[str] = set()
        for index, layer in enumerate(self.layers):
            if layer.name in names:
                message = f"the name {layer.name!r} is taken by another layer"
                raise ContractError(Reason.INVALID_LAYER, message, field=f"layers[{index}].name")
            names.add(layer.name)
            try:
                check_homes(layer.home_E, num_ranks=self.topology.num_ranks)
            except ValueError as error:
                raise ContractError(Reason.INVALID_LAYER, str(error), field=f"layers[{index}].home_ranks") from error
