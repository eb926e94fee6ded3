"""The recent past of one session, for people: a bounded list of its reports and plans. Pure."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from taot_api.published_plan import PublishedPlan
from taot_api.routing_report import RoutingReport
from taot_planning import EMPTY_SLOT
from taot_planning.arrays import IntArray
from taot_service.realised_imbalance import computed_tokens, mean_of_known, realised_imbalances

HISTORY_POINTS = 240
"""Reports, and plans, that are remembered per session."""


@dataclass(frozen=True, kw_only=True)
class ReportPoint:
    """One report of training tokens."""

    step: int
    """Its step."""

    micro_batch: int
    """Its micro-batch within the step."""

    applied_version: int | None
    """The plan in force while its tokens were computed; None: there was none."""

    imbalance_realised: float | None
    """Mean over layers of the imbalance that the ranks measured since the report before; None: they told nothing."""

    exposed_transfer_seconds: float
    """Time that ranks stood still for guests since the report before, summed over ranks."""

    fallbacks: int
    """Passes of layers without guests that were wanted, since the report before."""

    is_paused: bool
    """Whether the session was paused when it came."""


@dataclass(frozen=True, kw_only=True)
class PlanPoint:
    """One plan."""

    version: int
    """Its version."""

    source_step: int
    """The step whose counts it was made from."""

    source_micro_batch: int
    """The micro-batch whose counts it was made from."""

    imbalance_before: float
    """Mean over layers of the imbalance without guests."""

    imbalance_after: float
    """Mean over layers of the imbalance with it."""

    weighted_cost: float
    """Summed cost of its guests."""

    guests: int
    """Its guests, over all layers."""


class SessionHistory:
    """What a session has seen lately."""

    def __init__(self) -> None:
        self.reports: deque[ReportPoint] = deque(maxlen=HISTORY_POINTS)
        self.plans: deque[PlanPoint] = deque(maxlen=HISTORY_POINTS)
        self.realised_LR: IntArray | None = None
        """Tokens that each rank computed in each layer, as told last; None: never. Shape: [layers, ranks]."""
        self.realised_L: tuple[float | None, ...] = ()
        """Imbalance of these, per layer; None where nothing was computed."""

    def add_report(self, report: RoutingReport, *, speed_milli_R: IntArray | None, is_paused: bool) -> None:
        """Remembers a report of training tokens."""
        if report.telemetry_R and report.counts_L:
            self.realised_LR = computed_tokens(report)
            self.realised_L = realised_imbalances(self.realised_LR, speed_milli_R)
            realised = mean_of_known(self.realised_L)
        else:
            realised = None
        self.reports.append(
            ReportPoint(
                step=report.step,
                micro_batch=report.micro_batch,
                applied_version=report.applied_plan.version if report.applied_plan is not None else None,
                imbalance_realised=realised,
                exposed_transfer_seconds=sum(rank.exposed_transfer_seconds for rank in report.telemetry_R),
                fallbacks=sum(sum(rank.fallbacks.values()) for rank in report.telemetry_R),
                is_paused=is_paused,
            )
        )

    def add_plan(self, plan: PublishedPlan) -> None:
        """Remembers a plan that was put in force."""
        self.plans.append(
            PlanPoint(
                version=plan.identity.version,
                source_step=plan.source_step,
                source_micro_batch=plan.source_micro_batch,
                imbalance_before=plan.stats.imbalance_before,
                imbalance_after=plan.stats.imbalance_after,
                weighted_cost=plan.stats.weighted_cost,
                guests=sum(int((guests_RK != EMPTY_SLOT).sum()) for guests_RK in plan.guests_L),
            )
        )
