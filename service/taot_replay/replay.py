"""Plans recorded micro-batches again, as an agent would have, and adds up what that achieves.

The model: guests move at most once a step for each rank (a guest that is resident from an earlier micro-batch of
the step is free), the planner's answer is there in time for the next step, and every guest arrives before its tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from taot_api.trace import TraceHeader, TraceRecord
from taot_planning import LayerProblem, PlanningOptions, plan_from_guests, plan_layer
from taot_planning.arrays import IntArray
from taot_replay.recording import Recording
from taot_replay.replay_case import ReplayCase
from taot_replay.replay_figures import FiguresBuilder, ReplayFigures


def replay(
    recording: Recording,
    cases: Sequence[ReplayCase],
    *,
    header: TraceHeader | None = None,
    options: PlanningOptions | None = None,
    on_record: Callable[[], None] = lambda: None,
) -> list[ReplayFigures]:
    """Replays a recording for every case.

    Args:
        recording: the counts, read once.
        cases: what to compare.
        header: replaces the recording's own header, see `with_nodes`.
        options: tolerance and gates of the planning.
        on_record: called after every micro-batch, for a progress bar.

    Returns:
        The figures, in the order of the cases.

    Raises:
        ValueError: if there are fewer than two steps, more slots than experts, or a record is damaged.
    """
    header, options = header or recording.header, options or PlanningOptions()
    fewest = min(layer.num_experts for layer in header.layers)
    for case in cases:
        if case.num_slots > fewest:
            raise ValueError(f"{case.num_slots} slots per rank are more than the {fewest} experts of a layer")
    # An algorithm with some slots plans every micro-batch once, whatever its plans are used for.
    groups: dict[tuple[str, int], _PlannedGroup] = {}
    for case in cases:
        key = (case.algorithm, case.num_slots)
        if key not in groups:
            groups[key] = _PlannedGroup(header, options, algorithm=case.algorithm, num_slots=case.num_slots)
        groups[key].add_case(case)
    for record in recording:
        for group in groups.values():
            group.add(record)
        on_record()
    return [groups[case.algorithm, case.num_slots].figures(case) for case in cases]


class _PlannedGroup:
    """The cases of one algorithm and number of slots."""

    def __init__(self, header: TraceHeader, options: PlanningOptions, *, algorithm: str, num_slots: int) -> None:
        slots_R = np.full(header.topology.num_ranks, num_slots, dtype=np.int64)
        self._topology = replace(header.topology, slots_R=slots_R)
        self._layers = header.layers
        self._options = options
        self._algorithm = algorithm
        self._builders: dict[ReplayCase, FiguresBuilder] = {}
        self._step: int | None = None
        self._latest_L: list[IntArray] | None = None
        """Planned from the last micro-batch."""
        self._held_L: list[IntArray] | None = None
        """Planned from the last micro-batch of the step before, None in the first step."""

    def add_case(self, case: ReplayCase) -> None:
        self._builders[case] = FiguresBuilder(case, num_layers=len(self._layers))

    def figures(self, case: ReplayCase) -> ReplayFigures:
        return self._builders[case].figures()

    def add(self, record: TraceRecord) -> None:
        is_new_step = record.step != self._step
        if is_new_step:
            self._step, self._held_L = record.step, self._latest_L
            if self._held_L is not None:
                for builder in self._builders.values():
                    builder.begin_step()
        self._latest_L = [
            self._add_layer(
                layer, LayerProblem(counts_RE=counts_RE.astype(np.int64), home_E=spec.home_E, topology=self._topology)
            )
            for layer, (spec, counts_RE) in enumerate(zip(self._layers, record.counts_L, strict=True))
        ]

    def _add_layer(self, layer: int, problem: LayerProblem) -> IntArray:
        """Adds one layer to all cases; returns the placement planned from its counts. Shape: [ranks, slots]."""
        planned = plan_layer(problem, algorithm=self._algorithm, options=self._options)
        if self._held_L is not None:
            for case, builder in self._builders.items():
                if case.source == "ahead":
                    held_RK = self._held_L[layer]
                    builder.add(layer, problem, guests_RK=held_RK, plan=plan_from_guests(problem, held_RK))
                else:
                    builder.add(layer, problem, guests_RK=planned.guests_RK, plan=planned)
        return planned.guests_RK
