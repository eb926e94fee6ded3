"""Sessions and reports for tests: small, uneven and valid unless asked otherwise."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from taot_api import LayerSpec, RoutingReport, SessionSpec
from taot_planning import contiguous_homes, two_level_topology
from taot_planning.arrays import IntArray

_job_numbers = itertools.count(1)


def make_spec(
    *,
    num_ranks: int = 4,
    experts_L: Sequence[int] = (8, 8),
    top_k: int = 2,
    slots: int = 2,
    drops_tokens: bool = False,
    **fields: Any,
) -> SessionSpec:
    """A session in nodes of two ranks, of a job of its own unless `training_job` is given."""
    layers = tuple(
        LayerSpec(
            name=f"layers.{index}",
            top_k=top_k,
            expert_size_bytes=1000 + index,
            home_E=contiguous_homes(num_experts=num_experts, num_ranks=num_ranks),
            drops_tokens=drops_tokens,
        )
        for index, num_experts in enumerate(experts_L)
    )
    defaults: dict[str, Any] = {
        "training_job": f"job-{next(_job_numbers)}",
        "group": "ep0",
        "incarnation": 1,
        "topology": two_level_topology(num_ranks=num_ranks, ranks_per_node=2, slots=slots, inter_cost=3),
        "layers": layers,
    }
    return SessionSpec(**(defaults | fields))


def make_lone_spec(**fields: Any) -> SessionSpec:
    """As `make_spec`, with placements for the counts at hand: the layers are planned one by one, by `plan_layer`."""
    return make_spec(recent_reports=0, **fields)


def make_counts(*, num_ranks: int, num_experts: int, num_tokens: int, top_k: int, seed: int) -> IntArray:
    """Skewed counts of `num_tokens` tokens a rank that choose `top_k` different experts each."""
    rng = np.random.default_rng(seed)
    taste_E = rng.dirichlet(np.full(num_experts, 0.5)) + 1e-6
    # The largest of log-weights plus Gumbel noise is a draw without replacement.
    keys = np.log(taste_E) + rng.gumbel(size=(num_ranks, num_tokens, num_experts))
    chosen = np.argsort(-keys, axis=2)[:, :, :top_k].reshape(num_ranks, -1)
    return np.stack([np.bincount(row, minlength=num_experts) for row in chosen])


def make_report(spec: SessionSpec, *, step: int, num_tokens: int = 64, **fields: Any) -> RoutingReport:
    """A valid report of `num_tokens` tokens a rank."""
    num_ranks = spec.topology.num_ranks
    defaults: dict[str, Any] = {
        "micro_batch": 0,
        "valid_tokens_R": np.full(num_ranks, num_tokens, dtype=np.int64),
        "counts_L": tuple(
            make_counts(
                num_ranks=num_ranks,
                num_experts=layer.num_experts,
                num_tokens=num_tokens,
                top_k=layer.top_k,
                seed=1000 * step + index,
            )
            for index, layer in enumerate(spec.layers)
        ),
    }
    return RoutingReport(step=step, **(defaults | fields))
