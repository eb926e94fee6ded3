"""Plans recorded micro-batches again, as an agent would have, and adds up what that achieves.

The model: a guest moves at most once a step (one that is resident from an earlier micro-batch of the step is free),
the planner's answer is there in time for the next step, and every guest arrives before its tokens.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from taot_api.session_spec import MAX_RECENT_REPORTS
from taot_api.trace import TraceHeader, TraceRecord
from taot_planning import LayerPlan, LayerProblem, PlanningOptions, plan_layer
from taot_replay.case_run import CaseRun, Placement, placement_of
from taot_replay.recording import Recording
from taot_replay.replay_case import INLINE, ReplayCase
from taot_replay.replay_figures import ReplayFigures


def replay(
    recording: Recording,
    cases: Sequence[ReplayCase],
    *,
    header: TraceHeader | None = None,
    options: PlanningOptions | None = None,
    num_recent: int = 0,
    on_record: Callable[[], None] = lambda: None,
) -> list[ReplayFigures]:
    """Replays a recording for every case.

    Args:
        recording: the counts, read once.
        cases: what to compare.
        header: replaces the recording's own header, see `with_nodes`.
        options: tolerance, effort and gates of the planning.
        num_recent: micro-batches before the one that `ahead` places from, for which the placement is to hold as
            well; 0 to 64.
        on_record: called after every micro-batch, for a progress bar.

    Returns:
        The figures, in the order of the cases.

    Raises:
        ValueError: if there are fewer than two steps, more slots than experts, too many recent micro-batches, or a
            record is damaged.
    """
    header, options = header or recording.header, options or PlanningOptions()
    _check(header, cases, num_recent)
    # Cases of one algorithm and number of slots share their plans.
    groups: dict[tuple[str, int], _PlannedGroup] = {}
    for case in cases:
        key = (case.algorithm, case.num_slots)
        if key not in groups:
            groups[key] = _PlannedGroup(header, options, case, num_recent=num_recent)
        groups[key].add_case(case)
    for record in recording:
        for group in groups.values():
            group.add(record)
        on_record()
    return [groups[case.algorithm, case.num_slots].figures(case) for case in cases]


def _check(header: TraceHeader, cases: Sequence[ReplayCase], num_recent: int) -> None:
    fewest = min(layer.num_experts for layer in header.layers)
    for case in cases:
        if case.num_slots > fewest:
            raise ValueError(f"{case.num_slots} slots per rank are more than the {fewest} experts of a layer")
    if not 0 <= num_recent <= MAX_RECENT_REPORTS:
        raise ValueError(f"recent must be between 0 and {MAX_RECENT_REPORTS}, got {num_recent}")


class _PlannedGroup:
    """The cases of one algorithm and number of slots."""

    def __init__(self, header: TraceHeader, options: PlanningOptions, case: ReplayCase, *, num_recent: int) -> None:
        slots_R = np.full(header.topology.num_ranks, case.num_slots, dtype=np.int64)
        self._topology = replace(header.topology, slots_R=slots_R)
        self._layers = header.layers
        self._options = options
        self._algorithm = case.algorithm
        self._runs: dict[ReplayCase, CaseRun] = {}
        self._step: int | None = None
        self._is_counted = False
        """Whether there was a step before the present one."""
        self._recent: deque[list[LayerProblem]] = deque(maxlen=1 + num_recent)
        """The layers of the last micro-batches, newest first."""
        self._ahead_L: list[Placement] = []
        """What was planned ahead for the present step: the search for the next begins with it, as a session's does."""
        self._plans: dict[LayerProblem, LayerPlan] = {}
        """Plans made since the last micro-batch came: several cases need the same."""

    def add_case(self, case: ReplayCase) -> None:
        self._runs[case] = CaseRun(case, num_layers=len(self._layers), planner=self._plan)

    def figures(self, case: ReplayCase) -> ReplayFigures:
        return self._runs[case].figures()

    def add(self, record: TraceRecord) -> None:
        if record.step != self._step:
            self._is_counted, self._step = self._step is not None, record.step
            if self._is_counted:
                self._begin_step()
        self._plans.clear()
        problem_L = [
            LayerProblem(counts_RE=counts_RE.astype(np.int64), home_E=spec.home_E, topology=self._topology)
            for spec, counts_RE in zip(self._layers, record.counts_L, strict=True)
        ]
        self._recent.appendleft(problem_L)
        if self._is_counted:
            for run in self._runs.values():
                for layer, problem in enumerate(problem_L):
                    run.add(layer, problem)

    def _begin_step(self) -> None:
        ahead_L: list[Placement] = []
        if any(case.source != INLINE for case in self._runs):
            for layer, (newest, *older) in enumerate(zip(*self._recent, strict=True)):
                problem = newest
                if self._recent.maxlen != 1:
                    recent_NE = np.array([each.counts_RE.sum(axis=0) for each in older], dtype=np.int64)
                    problem = replace(
                        newest,
                        recent_tokens_NE=recent_NE.reshape(-1, newest.num_experts),
                        begin_guests_RK=self._ahead_L[layer].guests_RK if self._ahead_L else None,
                    )
                ahead_L.append(placement_of(self._plan(problem), newest))
        self._ahead_L = ahead_L
        for run in self._runs.values():
            run.begin_step(ahead_L)

    def _plan(self, problem: LayerProblem) -> LayerPlan:
        if problem not in self._plans:
            self._plans[problem] = plan_layer(problem, algorithm=self._algorithm, options=self._options)
        return self._plans[problem]
