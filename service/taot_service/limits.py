"""What a session may ask of this planner: its sizes, and what is installed."""

from __future__ import annotations

from importlib.util import find_spec

from taot_api.contract_error import ContractError, Reason
from taot_api.session_spec import SessionSpec
from taot_api.v1 import planner_pb2 as pb
from taot_planning.algorithms import NEEDS_SCIPY
from taot_service.config import ServiceConfig

MAX_NAME_CHARS = 256
"""Characters of the name of a layer or level, and of a client's release."""

MAX_LEVELS = 16
"""Levels of a topology."""


def check_limits(request: pb.OpenSessionRequest, config: ServiceConfig) -> None:
    """Checks the sizes that a request declares before arrays are made of it.

    Raises:
        ContractError: LIMIT_EXCEEDED, naming the field, both numbers and the flag that raises the limit; or
            INVALID_LAYER, INVALID_TOPOLOGY, INVALID_NAME for names and levels beyond any use.
    """
    topology = request.topology
    num_ranks = len(topology.ranks)
    _check(num_ranks, config.max_ranks, flag="--max-ranks", field="topology.ranks")
    _check(len(request.layers), config.max_layers, flag="--max-layers", field="layers")
    max_slots = 0
    for rank, entry in enumerate(topology.ranks):
        _check(entry.slot_count, config.max_slots, flag="--max-slots", field=f"topology.ranks[{rank}].slot_count")
        max_slots = max(max_slots, entry.slot_count)
    for index, layer in enumerate(request.layers):
        num_experts = max(layer.expert_count, len(layer.home_ranks))
        _check(num_experts, config.max_experts, flag="--max-experts", field=f"layers[{index}].expert_count")
        counts = num_ranks * num_experts
        _check(counts, config.max_layer_counts, flag="--max-layer-counts", field=f"layers[{index}].expert_count")
        _check_name(layer.name, Reason.INVALID_LAYER, field=f"layers[{index}].name")
    entries = len(request.layers) * num_ranks**2 * max_slots
    _check(entries, config.max_plan_entries, flag="--max-plan-entries", field="layers")
    if len(topology.levels) > MAX_LEVELS:
        message = f"needs at most {MAX_LEVELS} levels, got {len(topology.levels)}"
        raise ContractError(Reason.INVALID_TOPOLOGY, message, field="topology.levels")
    for index, level in enumerate(topology.levels):
        _check_name(level.name, Reason.INVALID_TOPOLOGY, field=f"topology.levels[{index}].name")
    _check_name(request.client_release, Reason.INVALID_NAME, field="client_release")


def check_algorithm(spec: SessionSpec, config: ServiceConfig) -> None:
    """Checks that this planner runs the algorithm of a session, for as many ranks.

    Raises:
        ContractError: ALGORITHM_UNAVAILABLE, naming those that are offered or the package that is missing; or
            LIMIT_EXCEEDED, as `check_limits`.
    """
    if spec.algorithm not in config.offered_algorithms:
        raise ContractError(
            Reason.ALGORITHM_UNAVAILABLE,
            f"this planner offers {', '.join(config.offered_algorithms)}, got {spec.algorithm!r}: choose one of these,"
            " or start it with --algorithms that name it",
            field="options.algorithm",
            metadata={"algorithm": spec.algorithm, "flag": "--algorithms"},
        )
    if spec.algorithm in NEEDS_SCIPY and find_spec("scipy") is None:
        raise ContractError(
            Reason.ALGORITHM_UNAVAILABLE,
            f"{spec.algorithm!r} needs scipy, which this planner lacks: install it there with"
            " pip install 'taot-planner[exact]', or choose another algorithm",
            field="options.algorithm",
            metadata={"package": "scipy"},
        )
    if _is_slow(spec):
        _check(spec.topology.num_ranks, config.max_slow_ranks, flag="--max-slow-ranks", field="topology.ranks")


def _is_slow(spec: SessionSpec) -> bool:
    """Whether many ranks take long: baselines were not written for them, other objectives weigh many plans."""
    return spec.algorithm != "static" and (spec.algorithm != "taot" or spec.options.objective != "tolerance")


def _check_name(name: str, reason: Reason, *, field: str) -> None:
    if len(name) > MAX_NAME_CHARS:
        message = f"must be at most {MAX_NAME_CHARS} characters, got {len(name)}"
        raise ContractError(reason, message, field=field)


def _check(got: int, limit: int, *, flag: str, field: str) -> None:
    if got > limit:
        raise ContractError(
            Reason.LIMIT_EXCEEDED,
            f"this planner allows at most {limit}, got {got}: start it with a larger {flag}",
            field=field,
            metadata={"limit": str(limit), "got": str(got), "flag": flag},
        )
