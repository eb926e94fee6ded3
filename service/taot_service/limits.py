"""What a session may ask of this planner: its sizes, and what is installed."""

from __future__ import annotations

from importlib.util import find_spec

from taot_api.contract_error import ContractError, Reason
from taot_api.session_spec import SessionSpec
from taot_planning.algorithms import NEEDS_SCIPY
from taot_service.config import ServiceConfig


def check_limits(spec: SessionSpec, config: ServiceConfig) -> None:
    """Checks the sizes of a session before anything is allocated for it.

    Raises:
        ContractError: LIMIT_EXCEEDED, naming the field, both numbers and the flag that raises the limit.
    """
    topology = spec.topology
    _check(topology.num_ranks, config.max_ranks, flag="--max-ranks", field="topology.ranks")
    for rank, slots in enumerate(topology.slots_R.tolist()):
        _check(slots, config.max_slots, flag="--max-slots", field=f"topology.ranks[{rank}].slot_count")
    _check(len(spec.layers), config.max_layers, flag="--max-layers", field="layers")
    for index, layer in enumerate(spec.layers):
        field = f"layers[{index}].expert_count"
        _check(layer.num_experts, config.max_experts, flag="--max-experts", field=field)
    entries = len(spec.layers) * topology.num_ranks**2 * topology.max_slots
    _check(entries, config.max_plan_entries, flag="--max-plan-entries", field="layers")


def check_algorithm(spec: SessionSpec) -> None:
    """Checks that this planner can run the algorithm of a session.

    Raises:
        ContractError: ALGORITHM_UNAVAILABLE, naming the package that is missing.
    """
    if spec.algorithm in NEEDS_SCIPY and find_spec("scipy") is None:
        raise ContractError(
            Reason.ALGORITHM_UNAVAILABLE,
            f"{spec.algorithm!r} needs scipy, which this planner lacks: install it there with"
            " pip install 'taot-planner[exact]', or choose another algorithm",
            field="options.algorithm",
            metadata={"package": "scipy"},
        )


def _check(got: int, limit: int, *, flag: str, field: str) -> None:
    if got > limit:
        raise ContractError(
            Reason.LIMIT_EXCEEDED,
            f"this planner allows at most {limit}, got {got}: start it with a larger {flag}",
            field=field,
            metadata={"limit": str(limit), "got": str(got), "flag": flag},
        )
