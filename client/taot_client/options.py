"""How the agent behaves: one object, given once, the same on every rank of the group."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal, get_args

from taot_api.session_spec import MAX_RECENT_REPORTS
from taot_client.planner_access import PlannerAccess
from taot_planning.algorithms import NEEDS_SCIPY

PlanSource = Literal["ahead", "inline", "blocking", "observe"]
"""Where placements come from.

ahead: the planner service, from the counts of an earlier micro-batch; the default with a service.
inline: planned on every rank from the counts at hand; the default without a service.
blocking: the planner service, from the counts at hand, while the ranks wait (bounded).
observe: report and record what a plan would gain; move nothing.
"""


SlotResidency = Literal["resident", "shared"]
"""Where guest weights are kept.

resident: every layer has slots of its own, and weights move once per optimizer step; the default.
shared: two sets of slots serve all layers in turn, and weights are sent again in backward: less memory, more traffic.
"""

Relay = Literal["auto", "on", "off"]
"""Whether guests of one expert in one remote node cross once and are passed on inside; auto: where links between nodes
cost more than those within (`inter_node_cost` above 1)."""


@dataclass(frozen=True, kw_only=True)
class AgentOptions:
    """Options of the agent. Ranks compare them at start; address of, access to and waits for the planner may differ."""

    planner_address: str | None = None
    """host:port of the planner service, or a `unix:` path. None: no service."""

    planner_access: PlannerAccess = PlannerAccess()
    """Tokens and certificates for the planner; what it leaves out comes from the environment."""

    plan_source: PlanSource | None = None
    """See `PlanSource`. None: `ahead` with a planner address, `inline` without."""

    training_job: str = "training"
    """The job, as operators know it. 1 to 128 characters of `[A-Za-z0-9._-]`."""

    group: str | None = None
    """This expert-parallel group within the job, likewise. None: `ExpertParallelGroup.name`."""

    algorithm: str = "taot"
    """Which algorithm plans, in the service and inline."""

    tolerance: float = 0.015
    """Residual imbalance asked for, relative to the mean load."""

    min_imbalance: float = 0.0
    """Layers whose imbalance is not above this are left alone."""

    min_tokens_per_guest: int = 0
    """Guests that would take fewer tokens are not made, by the algorithm `taot`."""

    recent_reports: int | None = None
    """How many recent micro-batches the planner's placements should hold for besides the one that is planned, 0 to 64.
    Ranks that plan inline plan for the counts at hand alone. None: the planner's default."""

    num_slots: int = 2
    """Guest experts each rank can hold per layer; their memory is allocated once."""

    slot_residency: SlotResidency = "resident"
    """See `SlotResidency`."""

    relay: Relay = "auto"
    """See `Relay`."""

    measured_gates: bool = True
    """Make guests only where the compute and link rates measured while training promise a gain, and switch layers off
    whose measured gain stays negative. False: wherever the plan says."""

    deterministic: bool = False
    """Plan from the counts at hand alone, with no service, history or timings: two runs, and a run resumed from a
    checkpoint, are equal bit for bit where the rest of training is."""

    ranks_per_node: int | None = None
    """Consecutive ranks per node. None: ranks with the same host name share a node."""

    inter_node_cost: float = 3.0
    """Cost of moving an expert between nodes, relative to a move within one."""

    when_away: Literal["inline", "none"] = "inline"
    """What to do while the planner service is away: plan inline, or leave every expert at home."""

    max_plan_age_steps: int = 16
    """A plan whose counts are older than this counts as no plan: the planner has stopped answering."""

    connect_timeout: timedelta = timedelta(seconds=5)
    """How long the start waits for the planner; later it is looked for in the background."""

    plan_deadline: timedelta = timedelta(milliseconds=200)
    """How long ranks wait for a plan in `blocking` mode."""

    transfer_timeout: timedelta = timedelta(seconds=8)
    """How long a rank waits for guest weights or gradients once its peers are known to have reached the layer.
    With NCCL the host does not wait: there `group_timeout` bounds a transfer."""

    group_timeout: timedelta = timedelta(minutes=10)
    """Timeout of the process groups that the agent creates."""

    debug: bool = False
    """Fill free slots with NaN and compare checksums of guest weights when they arrive and when they are used."""

    def __post_init__(self) -> None:
        if self.plan_source is not None and self.plan_source not in get_args(PlanSource):
            raise ValueError(f"plan_source must be one of {get_args(PlanSource)}, got {self.plan_source!r}")
        if self.planner_address is None and self.plan_source not in (None, "inline"):
            raise ValueError(f"plan_source {self.plan_source!r} needs a planner: set planner_address, or use 'inline'")
        if not timedelta(0) < self.plan_deadline < self.transfer_timeout < self.group_timeout:
            raise ValueError(
                "the waits must form a ladder, plan_deadline < transfer_timeout < group_timeout, got"
                f" {self.plan_deadline}, {self.transfer_timeout}, {self.group_timeout}"
            )
        if self.deterministic and self.plan_source not in (None, "inline"):
            raise ValueError(f"deterministic training plans inline, got plan_source {self.plan_source!r}")
        for name, known in (("slot_residency", SlotResidency), ("relay", Relay)):
            if getattr(self, name) not in get_args(known):
                raise ValueError(f"{name} must be one of {get_args(known)}, got {getattr(self, name)!r}")
        self._check_ranges()
        self._check_algorithm()

    def _check_ranges(self) -> None:
        if self.num_slots < 0 or self.num_slots > MAX_SLOTS:
            raise ValueError(f"num_slots must be between 0 and {MAX_SLOTS}, got {self.num_slots}")
        for name in ("tolerance", "min_imbalance"):
            if not 0 <= getattr(self, name) <= 100:
                raise ValueError(f"{name} must be between 0 and 100 times the mean load, got {getattr(self, name)}")
        if not 0 <= self.min_tokens_per_guest < 2**31:
            raise ValueError(f"min_tokens_per_guest must be between 0 and 2^31-1, got {self.min_tokens_per_guest}")
        if self.recent_reports is not None and not 0 <= self.recent_reports <= MAX_RECENT_REPORTS:
            raise ValueError(
                f"recent_reports must be between 0 and {MAX_RECENT_REPORTS}, or None for the planner's default, got"
                f" {self.recent_reports}"
            )
        if self.ranks_per_node is not None and self.ranks_per_node < 1:
            raise ValueError(f"ranks_per_node must be >= 1, or None for host names, got {self.ranks_per_node}")
        if not 1 <= self.inter_node_cost < math.inf:
            raise ValueError(f"inter_node_cost must be >= 1, the cost within a node, got {self.inter_node_cost}")
        if self.when_away not in ("inline", "none"):
            raise ValueError(f"when_away must be 'inline' or 'none', got {self.when_away!r}")
        if self.max_plan_age_steps < 1:
            raise ValueError(f"max_plan_age_steps must be >= 1, got {self.max_plan_age_steps}")

    def _check_algorithm(self) -> None:
        may_plan_inline = self.effective_plan_source == "inline" or (
            self.effective_plan_source in ("ahead", "blocking") and self.when_away == "inline"
        )
        if self.algorithm in NEEDS_SCIPY and may_plan_inline:
            raise ValueError(
                f"{self.algorithm!r} solves a linear program, whose answer may differ between machines, and cannot be"
                " planned by the ranks: use it with a planner and when_away='none', or choose another algorithm"
            )

    @property
    def uses_measured_gates(self) -> bool:
        """Whether times decide: never in deterministic training."""
        return self.measured_gates and not self.deterministic

    @property
    def effective_plan_source(self) -> PlanSource:
        """The plan source after the default has been filled in."""
        if self.plan_source is not None:
            return self.plan_source
        if self.deterministic:
            return "inline"
        return "inline" if self.planner_address is None else "ahead"


MAX_SLOTS = 62
"""Readiness of a rank's slots travels as the bits of one int64."""
