"""Plans that nobody should act on, and a few that look odd and are fine, made from real ones."""

from __future__ import annotations

import dataclasses
import math
import random
from collections import deque
from collections.abc import Sequence

import numpy as np

from taot_api import PlanIdentity, PublishedPlan, codec
from taot_api.v1 import planner_pb2 as pb

PLAN_FAULTS = (
    "garbage",
    "truncated",
    "wrong digest",
    "an old plan again",
    "a lower version",
    "for more ranks",
    "for other ranks",
    "more slots",
    "a layer less",
    "a guest twice on a rank",
    "a guest at its home",
    "an expert that is not there",
    "NaN statistics",
    "a step far ahead",
    "a step long gone",
    "an epoch without end",
    "no plan in it",
    "other guests than planned",
    "twice",
    "late",
    "never",
    "ends",
    "breaks off with a status",
)
REFUSALS = {
    "wrong digest": "the digest does not match",
    "for more ranks": "shape must be [4, 2], got [8, 2]",
    "more slots": "shape must be [4, 2], got [4, 4]",
    "a layer less": "the plan has 1 layers",
    "a guest twice on a rank": "holds one expert twice",
    "a guest at its home": "its own home",
    "an expert that is not there": "the experts are 0 to 7",
    "a lower version": "the plan is of version 1, older than",
    "a step far ahead": f"counts of step {2**62}",
    "an epoch without end": "planner epoch must be",
    "no plan in it": "planner epoch must be",
}
"""What an agent of 4 ranks, 2 slots, 8 experts and 2 layers says of the plans that it must not act on."""
_KEPT = 50


class HostilePlans:
    """Spoils the plans of a watch."""

    def __init__(self, source: random.Random) -> None:
        self._source = source
        self._seen: deque[bytes] = deque(maxlen=_KEPT)

    def keep(self, message: bytes) -> None:
        """Remembers what has passed, to hand it out again."""
        self._seen.append(message)

    def spoil(self, fault: str, message: bytes) -> Sequence[bytes]:
        """What arrives instead of `message`."""
        whole = {
            "garbage": lambda: [self._source.randbytes(300), message],
            "truncated": lambda: [message[: len(message) // 2]],
            "an old plan again": lambda: [message, self._source.choice(self._seen)],
            "no plan in it": lambda: [b"", message],
            "twice": lambda: [message, message],
            "late": lambda: [message],
            "never": list,
        }
        if fault in whole:
            return whole[fault]()
        response = pb.WatchPlansResponse.FromString(message)
        if fault == "wrong digest":
            response.plan.digest = bytes(reversed(response.plan.digest))
            return [response.SerializeToString()]
        plan = _read(response.plan)
        spoilt = codec.encode_plan(self._changed(fault, plan))
        # An honest plan follows some of them: it must find the agent as it was.
        return [pb.WatchPlansResponse(plan=spoilt).SerializeToString(), *[message] * self._source.randrange(2)]

    def _changed(self, fault: str, plan: PublishedPlan) -> PublishedPlan:
        """The plan with one thing about it changed, and the digest that belongs to it."""
        identity, guests_L = plan.identity, plan.guests_L
        num_ranks = guests_L[0].shape[0]
        shuffled = self._source.sample(range(num_ranks), num_ranks)
        fields = {
            "a lower version": {"identity": dataclasses.replace(identity, version=1)},
            "for more ranks": {"guests_L": tuple(np.vstack([each, each]) for each in guests_L)},
            "for other ranks": {"guests_L": tuple(each[shuffled] for each in guests_L)},
            "more slots": {"guests_L": tuple(np.hstack([each, each]) for each in guests_L)},
            "a layer less": {"guests_L": guests_L[1:]},
            "a guest twice on a rank": {"guests_L": tuple(np.full_like(each, 7) for each in guests_L)},
            "a guest at its home": {"guests_L": tuple(_with(each, 0, 0) for each in guests_L)},
            "an expert that is not there": {"guests_L": tuple(_with(each, 1, 99) for each in guests_L)},
            "NaN statistics": {"stats": _nan_stats(plan)},
            "a step far ahead": {"source_step": 2**62},
            "a step long gone": {"source_step": -(2**62)},
            "an epoch without end": {"identity": PlanIdentity(planner_epoch="e" * 5000, version=identity.version)},
            "other guests than planned": {"guests_L": tuple(self._other_guests(each) for each in guests_L)},
        }
        return dataclasses.replace(plan, **fields[fault])

    def _other_guests(self, guests_RK: np.ndarray) -> np.ndarray:
        """Guests that a group of 4 ranks and 8 experts can hold, and that nobody has planned."""
        other_RK = np.full_like(guests_RK, -1)
        for rank in range(len(guests_RK)):
            away = [expert for expert in range(8) if expert // 2 != rank]
            chosen = self._source.sample(away, self._source.randrange(guests_RK.shape[1] + 1))
            other_RK[rank, : len(chosen)] = chosen
        return other_RK


def _read(message: pb.Plan) -> PublishedPlan:
    num_ranks, num_slots = message.layers[0].guest_experts.shape
    return codec.decode_plan(message, num_ranks=num_ranks, num_slots=num_slots)


def _with(guests_RK: np.ndarray, rank: int, expert: int) -> np.ndarray:
    changed_RK = guests_RK.copy()
    changed_RK[rank, 0] = expert
    return changed_RK


def _nan_stats(plan: PublishedPlan) -> object:
    return dataclasses.replace(plan.stats, imbalance_before=math.nan, imbalance_after=math.inf, weighted_cost=-math.inf)
