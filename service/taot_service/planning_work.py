"""What is planned, and what comes out of it: the data between the sessions and the solver."""

from __future__ import annotations

from dataclasses import dataclass

from taot_api.published_plan import PublishedStats
from taot_api.routing_report import RoutingReport
from taot_api.session_spec import LayerSpec, SessionSpec
from taot_planning.arrays import IntArray
from taot_planning.explanation import Gate
from taot_service.layer_account import LayerAccount


@dataclass(frozen=True, kw_only=True, eq=False)
class PlanningWork:
    """One report to be planned."""

    session_id: str
    """The session it belongs to."""

    spec: SessionSpec
    """That session's homes, topology and options."""

    layers: tuple[LayerSpec, ...]
    """The layers that the report speaks of, in its order."""

    report: RoutingReport
    """The counts."""

    recent_L: tuple[IntArray, ...] = ()
    """Tokens of each expert in the reports before, newest first, which the placement should hold for as well:
    one [micro-batches, experts] array per layer, or none."""

    arrival_seconds: float
    """When the report came, on the clock of the sessions."""


@dataclass(frozen=True, kw_only=True, eq=False)
class SolvedPlan:
    """A checked plan without an identity yet."""

    guests_L: tuple[IntArray, ...]
    """Expert in each guest slot, -1 where empty, one [ranks, slots] array per layer."""

    quota_L: tuple[IntArray, ...]
    """Tokens of each source rank for each guest slot: [source ranks, ranks, slots] per layer, or none."""

    stats: PublishedStats
    """Over all layers."""

    layer_stats_L: tuple[PublishedStats, ...]
    """One entry per layer."""

    gates_L: tuple[tuple[Gate, ...], ...]
    """Rules that changed the plan of each layer."""

    intra_guests: int
    """Guests whose home is in the same node, over all layers."""

    inter_guests: int
    """Guests whose home is in another node, over all layers."""

    account_L: tuple[LayerAccount, ...] = ()
    """What people may ask about each layer, or none."""


@dataclass(frozen=True, kw_only=True)
class SolverFailure:
    """Why a piece of work has no plan."""

    message: str
    """For people."""

    is_abandoned: bool = False
    """Whether nobody waited for the plan any more, which is no fault."""


@dataclass(frozen=True, kw_only=True, eq=False)
class FinishedWork:
    """What a solver thread hands back."""

    work: PlanningWork
    """What was to be planned."""

    result: SolvedPlan | SolverFailure
    """What came of it."""

    started_seconds: float
    """When the thread began with it, on the clock of the sessions."""

    solved_seconds: float
    """When the thread was done, on the clock of the sessions."""
