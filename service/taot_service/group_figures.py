"""What is known of one group's session in numbers: pure, time is an argument."""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import dataclass, field

from taot_api.routing_report import AGENT_ERROR_REASONS, FALLBACK_REASONS, RankTelemetry, RoutingReport
from taot_api.session_spec import SessionSpec
from taot_service.planning_work import SolvedPlan
from taot_service.realised_imbalance import computed_tokens, mean_of_known, realised_imbalances

REACHES = ("intra_node", "inter_node")
"""Whether a guest or its bytes stay in their node."""

KEPT_SOURCES = 256
"""Plans whose source step is remembered, to tell how old the one in force at the ranks is."""


@dataclass(kw_only=True)
class GroupFigures:
    """The newest plan and report of a session, and what its ranks have measured since it was opened.

    None where nothing is known yet.
    """

    imbalance_static: float | None = None
    """Newest plan: without guests, mean over layers."""

    imbalance_planned: float | None = None
    """Newest plan: expected, mean over layers."""

    weighted_cost: float | None = None
    """Newest plan."""

    predicted_gain_seconds: float | None = None
    """Newest plan."""

    plan_guests: tuple[int, int] | None = None
    """Newest plan: guests by reach."""

    plan_timestamp_seconds: float | None = None
    """When the newest plan was put in force."""

    step: int | None = None
    """Newest reported step."""

    report_timestamp_seconds: float | None = None
    """When the last report came."""

    plan_age_steps: int | None = None
    """Newest report: its step minus the step whose counts its plan was made from."""

    planned_L: tuple[float, ...] = ()
    """Newest plan: expected imbalance of each layer."""

    realised_L: tuple[float | None, ...] = ()
    """Last report: imbalance of the tokens computed in each layer, None where none were."""

    sent_bytes: tuple[int, int] = (0, 0)
    """Guest weights and gradients by reach."""

    exposed_seconds: float = 0.0
    """Time that ranks stood still for guests, summed over ranks."""

    hidden_seconds: float = 0.0
    """Time that guests were in flight without anybody standing still for them, summed over ranks."""

    applied_layers: int = 0
    """Passes through layers in which guests computed tokens."""

    fallbacks: Counter[str] = field(default_factory=Counter)
    """Passes through layers without guests that were wanted, by shown reason."""

    errors: Counter[str] = field(default_factory=Counter)
    """Errors of the agent, by shown reason."""

    _source_steps: OrderedDict[int, int] = field(default_factory=OrderedDict)

    @property
    def imbalance_realised(self) -> float | None:
        """Last report: mean over the layers in which tokens were computed."""
        return mean_of_known(self.realised_L)

    @property
    def imbalance_L(self) -> tuple[float | None, ...]:
        """The imbalance of each layer: realised, or planned where nothing was measured."""
        if not self.realised_L:
            return self.planned_L
        planned_L = self.planned_L or (None,) * len(self.realised_L)
        return tuple(
            planned if realised is None else realised
            for realised, planned in zip(self.realised_L, planned_L, strict=True)
        )

    @property
    def worst_layer(self) -> int | None:
        """Index of the layer with the highest imbalance, the first of several."""
        known = [(each, -layer) for layer, each in enumerate(self.imbalance_L) if each is not None]
        return -max(known)[1] if known else None

    def note_plan(self, solved: SolvedPlan, *, version: int, source_step: int, now_seconds: float) -> None:
        """Takes the figures of the newest plan.

        Args:
            solved: the plan.
            version: its version.
            source_step: the step whose counts it was made from.
            now_seconds: seconds since 1970.
        """
        self.imbalance_static = solved.stats.imbalance_before
        self.imbalance_planned = solved.stats.imbalance_after
        self.weighted_cost = solved.stats.weighted_cost
        self.predicted_gain_seconds = solved.stats.predicted_gain_seconds
        self.plan_guests = (solved.intra_guests, solved.inter_guests)
        self.plan_timestamp_seconds = now_seconds
        self.planned_L = tuple(stats.imbalance_after for stats in solved.layer_stats_L)
        self._source_steps[version] = source_step
        if len(self._source_steps) > KEPT_SOURCES:
            self._source_steps.popitem(last=False)

    def note_report(self, spec: SessionSpec, report: RoutingReport, *, planner_epoch: str, now_seconds: float) -> None:
        """Takes what a training report says, once.

        Args:
            spec: the session.
            report: the report.
            planner_epoch: this life of the planner, whose plans are known.
            now_seconds: seconds since 1970.
        """
        self.report_timestamp_seconds = now_seconds
        if self.step is None or report.step >= self.step:
            self.step = report.step
            self._note_plan_in_force(report, planner_epoch)
            if report.telemetry_R:
                self.realised_L = realised_imbalances(computed_tokens(report), spec.topology.speed_milli_R)
        for rank in report.telemetry_R:
            self._add(rank)

    def _note_plan_in_force(self, report: RoutingReport, planner_epoch: str) -> None:
        """Tells the age of the plan that the ranks applied, else of the newest; an unknown plan leaves it as it is."""
        if not self._source_steps:
            return
        applied = report.applied_plan
        if applied is None:
            source_step = next(reversed(self._source_steps.values()))
        elif applied.planner_epoch != planner_epoch:
            return
        else:
            oldest = next(iter(self._source_steps.values()))
            source_step = self._source_steps.get(applied.version, oldest)
        self.plan_age_steps = report.step - source_step

    def _add(self, rank: RankTelemetry) -> None:
        intra, inter = self.sent_bytes
        self.sent_bytes = (intra + rank.intra_node_sent_bytes, inter + rank.inter_node_sent_bytes)
        self.exposed_seconds += rank.exposed_transfer_seconds
        # A rank may stand still for guests that are not in flight yet.
        self.hidden_seconds += max(0.0, rank.transfer_seconds - rank.exposed_transfer_seconds)
        self.applied_layers += rank.applied_layers
        for reason, count in rank.fallbacks.items():
            self.fallbacks[reason if reason in FALLBACK_REASONS else "other"] += count
        for reason, count in rank.errors.items():
            self.errors[reason if reason in AGENT_ERROR_REASONS else "other"] += count
