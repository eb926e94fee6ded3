"""One layer as JSON shows it: the loads of its ranks, its guests, and why the plan is what it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from taot_api.published_plan import PublishedPlan, PublishedStats
from taot_planning import EMPTY_SLOT, Gate
from taot_planning.guest_moves import guest_sources
from taot_planning.load import moved_loads
from taot_service.layer_account import ConsideredPlan, LayerAccount
from taot_service.session import Session
from taot_service.session_view import LayerView, PlanView, view_layer, view_plan

GATE_TEXTS = {
    Gate.BALANCED: "The ranks were balanced enough to be left alone.",
    Gate.WITHIN_TOLERANCE: "No rank was above the tolerance, so no guests are needed.",
    Gate.MIN_TOKENS: "Guests that would have taken too few tokens were left out.",
    Gate.OUT_OF_REACH: "The guest slots do not suffice for the tolerance: this is the most balanced plan found.",
    Gate.DOMINATED: "No guests are as balanced as the plan that was found, so there are none.",
    Gate.NO_GAIN: "Moving the guests was predicted to take longer than they save, so there are none.",
}
"""What each gate means, for people who look at a plan."""


@dataclass(frozen=True, kw_only=True)
class GuestView:
    """One guest: an expert, where it comes from and where it is."""

    expert: int
    home: int
    source: int
    """The rank that sends it: its home or a relay."""
    rank: int
    slot: int
    tokens: int
    """Tokens that it takes over, on the counts that the plan was made from."""
    level: int
    """Of the link between source and rank; 0 is the innermost, a node."""
    level_name: str
    cost: float
    """Of the move, relative to one within a node."""


@dataclass(frozen=True, kw_only=True)
class LoadsView:
    """Tokens of each rank; one entry per rank."""

    static: list[int]
    """Without guests."""
    planned: list[int]
    """With the plan, on the same counts."""


@dataclass(frozen=True, kw_only=True)
class GateView:
    """A rule that changed the plan."""

    name: str
    text: str


@dataclass(frozen=True, kw_only=True)
class LayerDetail:
    """The answer of /v1/sessions/{session_id}/layers/{index}."""

    layer: LayerView
    plan: PlanView | None
    loads: LoadsView | None
    realised: list[int] | None
    """Tokens that each rank computed, as told last."""
    guests: list[GuestView]
    """By rank and slot."""
    gates: list[GateView]
    considered: list[ConsideredPlan]


def view_layer_detail(session: Session, index: int, *, wall_seconds: float) -> LayerDetail:
    """One layer of a session; `wall_seconds` is the time since 1970."""
    plan, solved, realised_LR = session.newest_plan, session.last_solved, session.history.realised_LR
    account = solved.account_L[index] if solved is not None and solved.account_L else None
    layer = view_layer(session, index)
    return LayerDetail(
        layer=layer,
        plan=view_plan(plan, wall_seconds=wall_seconds),
        loads=_view_loads(session, index, plan, account) if plan is not None and account is not None else None,
        realised=realised_LR[index].tolist() if realised_LR is not None else None,
        guests=_view_guests(session, index, plan, account) if plan is not None and account is not None else [],
        gates=[GateView(name=gate, text=GATE_TEXTS[Gate(gate)]) for gate in layer.gates],
        considered=list(account.considered) if account is not None else [],
    )


def plan_document(session: Session, plan: PublishedPlan) -> dict[str, Any]:
    """A whole plan as the file that people download."""
    return {
        "training_job": session.spec.training_job,
        "group": session.spec.group,
        "planner_epoch": plan.identity.planner_epoch,
        "version": plan.identity.version,
        "source_step": plan.source_step,
        "source_micro_batch": plan.source_micro_batch,
        "create_time_seconds": plan.create_time_seconds,
        "digest": plan.digest().hex(),
        "stats": _stats_row(plan.stats),
        "layers": [
            {
                "name": layer.name,
                "home_ranks": layer.home_E.tolist(),
                "guest_experts": guests_RK.tolist(),
                "stats": _stats_row(plan.layer_stats_L[index]) if plan.layer_stats_L else None,
                "gates": list(plan.gates_L[index]) if plan.gates_L else [],
            }
            for index, (layer, guests_RK) in enumerate(zip(session.spec.layers, plan.guests_L, strict=True))
        ],
    }


def _view_loads(session: Session, index: int, plan: PublishedPlan, account: LayerAccount) -> LoadsView:
    home_E, guests_RK = session.spec.layers[index].home_E, plan.guests_L[index]
    planned_R = moved_loads(account.home_loads_R, home_E, guests_RK, account.tokens_RK)
    return LoadsView(static=account.home_loads_R.tolist(), planned=planned_R.tolist())


def _view_guests(session: Session, index: int, plan: PublishedPlan, account: LayerAccount) -> list[GuestView]:
    topology, home_E, guests_RK = session.spec.topology, session.spec.layers[index].home_E, plan.guests_L[index]
    source_RK, rows = guest_sources(guests_RK, home_E=home_E, topology=topology), []
    for rank, slot in np.argwhere(guests_RK != EMPTY_SLOT).tolist():
        expert, source = int(guests_RK[rank, slot]), int(source_RK[rank, slot])
        level = int(topology.level_RR[source, rank])
        rows.append(
            GuestView(
                expert=expert,
                home=int(home_E[expert]),
                source=source,
                rank=rank,
                slot=slot,
                tokens=int(account.tokens_RK[rank, slot]),
                level=level,
                level_name=topology.levels[level].name,
                cost=int(topology.cost_milli_RR[source, rank]) / 1000,
            )
        )
    return rows


def _stats_row(stats: PublishedStats) -> dict[str, Any]:
    return {
        "imbalance_before": stats.imbalance_before,
        "imbalance_after": stats.imbalance_after,
        "weighted_cost": stats.weighted_cost,
        "transfer_size_bytes": stats.transfer_size_bytes,
        "predicted_gain_seconds": stats.predicted_gain_seconds,
    }
