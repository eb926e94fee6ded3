"""What is planned, and what comes out of it: the data between the sessions and the solver."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from taot_api.published_plan import PublishedStats
from taot_api.routing_report import RoutingReport
from taot_api.session_spec import LayerSpec, SessionSpec
from taot_planning.arrays import IntArray
from taot_planning.explanation import Gate
from taot_planning.options import Effort
from taot_service.effort_choice import EffortSeconds
from taot_service.layer_account import LayerAccount
from taot_service.layer_solution import LayerSolution
from taot_service.progress import Progress


class Purpose(Enum):
    """What a plan is made for; the value is its name among the shares of a session."""

    REPORT = "report"
    """To be put in force for a session."""

    CALLER = "caller"
    """To be handed to a caller that waits."""

    IMPROVEMENT = "improvement"
    """To be put in force in place of one that was made in a hurry, if it is better."""


@dataclass(kw_only=True, eq=False)
class PlanningWork:
    """One report to be planned. While it waits a newer one may take its place; after that nothing is changed."""

    session_id: str
    """The session it belongs to."""

    spec: SessionSpec
    """That session's homes, topology and options."""

    layers: tuple[LayerSpec, ...]
    """The layers that the report speaks of, in its order."""

    report: RoutingReport
    """The counts."""

    recent_L: Sequence[IntArray] = ()
    """Tokens of each expert in the reports before, newest first, which the placement should hold for as well:
    one [micro-batches, experts] array per layer, or none."""

    begin_L: Sequence[IntArray] = ()
    """Guests that the search begins with where a placement should hold for earlier reports as well, those of the plan
    in force when the work was taken: one [ranks, slots] array per layer, or none."""

    arrival_seconds: float
    """When the report came, on the clock of the sessions."""

    purpose: Purpose = Purpose.REPORT
    """What the plan is for."""

    publish_seconds: float | None = None
    """When the plan should be published, with less effort where it must be; None: with the effort asked for."""

    deadline_seconds: float | None = None
    """When the caller gives up, on the same clock."""

    layer_seconds: EffortSeconds = EffortSeconds()
    """What the layers of the session took to plan before."""

    improves: SolvedPlan | None = None
    """The plan in force that an improvement begins with."""

    progress: Progress = field(init=False)
    """How far it has come."""

    def __post_init__(self) -> None:
        self.progress = Progress([layer.num_experts for layer in self.layers])

    @property
    def path(self) -> tuple[str, str, str]:
        """Whose solver time it uses: training job, session, purpose."""
        return (self.spec.training_job, self.session_id, self.purpose.value)

    def renew(
        self,
        report: RoutingReport,
        recent_L: Sequence[IntArray],
        *,
        arrival_seconds: float,
        publish_seconds: float | None,
        layer_seconds: EffortSeconds,
    ) -> None:
        """Puts a newer report of the session in the place of this one, which waits: most of a flood are never taken."""
        self.report, self.recent_L = report, recent_L
        self.arrival_seconds, self.publish_seconds = arrival_seconds, publish_seconds
        self.layer_seconds = layer_seconds


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

    solution_L: tuple[LayerSolution, ...] = ()
    """The layers one by one."""

    layer_seconds: EffortSeconds = EffortSeconds()
    """What a layer took."""

    num_improved: int = 0
    """Layers of an improvement that are better than in the plan it began with."""

    def is_hurried(self, asked: Effort) -> bool:
        """Whether a layer was searched for with less effort than the session asks for."""
        return any(layer.effort != asked for layer in self.solution_L)


@dataclass(frozen=True, kw_only=True)
class SolverFailure:
    """Why a piece of work has no plan."""

    message: str
    """For people."""

    is_abandoned: bool = False
    """Whether nobody waited for the plan any more, which is no fault."""

    error: Exception | None = None
    """What an algorithm or a check has raised, for the log."""


@dataclass(frozen=True, kw_only=True, eq=False)
class FinishedWork:
    """What a solver thread hands back."""

    work: PlanningWork
    """What was to be planned."""

    result: SolvedPlan | SolverFailure
    """What came of it."""

    started_seconds: float
    """When a thread first began with it, on the clock of the sessions."""

    solved_seconds: float
    """When a thread was done with it, on the clock of the sessions."""
