"""Sessions and reports for tests of the link to the planner."""

from __future__ import annotations

import itertools
import threading
import time
from datetime import timedelta

import numpy as np

from taot_api import LayerSpec, RoutingReport, SessionSpec
from taot_planning import two_level_topology

INCARNATIONS = itertools.count(1)
WAIT = timedelta(seconds=20)


def spec(group: str = "ep0", **changes) -> SessionSpec:
    fields = {
        "training_job": "link-test",
        "group": group,
        "incarnation": next(INCARNATIONS),
        "topology": two_level_topology(num_ranks=4, ranks_per_node=2, slots=2, inter_cost=3),
        "layers": (LayerSpec(name="a", top_k=1, expert_size_bytes=100, home_E=np.arange(8) // 2),),
    }
    return SessionSpec(**{**fields, **changes})


def report(step: int = 0) -> RoutingReport:
    counts = np.zeros((4, 8), dtype=np.int64)
    counts[:, 0] = 50
    counts[:, 1:] = 2
    return RoutingReport(step=step, micro_batch=0, valid_tokens_R=counts.sum(axis=1), counts_L=(counts,))


def eventually(condition, *, seconds: float = 20) -> bool:
    """Polls a condition of another thread or process; the bound is far above any normal case."""
    pause = threading.Event()
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        pause.wait(0.01)
    return False
