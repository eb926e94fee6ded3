"""How long the agent's own code keeps the training thread of one rank, per layer, forward and backward together.

Collectives and transfers are taken out: the peers are made up (`ready_peers.py`) and answer at once. Rank 0 is
measured, which as the leader does most. Experts are tiny, so that copying their weights takes no time worth mentioning,
whereas tokens are many: what is done for every token counts. What plain expert parallelism does too (counting choices,
the gather, the token layout) is part of the figures, and named. A part is its calls times the median of a call, so that
calls that were interrupted do not count. Backward nodes are timed from their first line on: what
the autograd engine needs to get there is not seen. `ahead` is the step of a rank that has its plan; the planner's link
works in threads of its own.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from part_timer import PartTimer, Place
from ready_peers import LabellingMover, ReadyGroup
from rich.console import Console
from rich.table import Table
from synthetic_counts import counts_at
from torch import nn

from taot_api import PlanIdentity
from taot_client import Agent, AgentOptions, ExpertParallelMoE, coordinator, layer_agent
from taot_client.active_agent import ActiveAgent
from taot_client.agent_state import AgentState
from taot_client.layer_agent import LayerAgent
from taot_client.planner.step_record import ModeReason, StepMode, StepRecord
from taot_client.transfers import guest_gradients, guest_supply
from taot_client.transfers.gloo_mover import GlooMover
from taot_client.transfers.guest_gradients import GradientExchange
from taot_client.transfers.guest_supply import GuestSupply
from taot_client.transfers.layer_route import LayerRoute
from taot_client.transfers.shipment import Shipment
from taot_client.transfers.slot_table import SlotTable
from taot_planning import LayerProblem, contiguous_homes, plan_layer
from taot_planning.arrays import IntArray

SIZES = [(2, 16), (8, 64), (32, 128), (64, 256)]
"""Ranks and experts."""

HEADLINE = (8, 64)

TOP_K, SLOTS, RANKS_PER_NODE, NUM_LAYERS, DIM = 4, 2, 8, 12, 8

START_IMBALANCE = 0.5

WARM_STEPS = 5
"""Steps that compile and fill caches."""

TOKENS = (1024, 4096)
"""Tokens of a rank; each chooses `TOP_K` experts."""

OUTSIDE = "collectives and transfers"
"""Not the agent's own time."""

SHARED = ("count choices", "gather, without the collective")
"""What plain expert parallelism does as well."""

PARTS: dict[str, list[Place]] = {
    OUTSIDE: [
        *((ReadyGroup, name) for name in ("_allgather_base", "broadcast", "alltoall_base", "send", "recv")),
        (LabellingMover, "label"),
        (Shipment, "wait"),
        (SlotTable, "be_patient"),
    ],
    "count choices": [(layer_agent, "count_choices"), (coordinator, "count_choices")],
    "gather, without the collective": [(layer_agent, "gather_counts"), (coordinator, "gather_counts")],
    "lay out tokens, without agent": [(coordinator, "lay_out_tokens")],
    "what the rank has measured": [(AgentState, "measured")],
    "state the problem": [(layer_agent, "LayerProblem")],
    "plan": [(layer_agent, "plan_layer")],
    "assign and lay out tokens": [(layer_agent, "split_pass")],
    "schedule moves": [(layer_agent, "schedule_moves"), (guest_supply, "schedule_moves")],
    "bring guests": [(GuestSupply, "bring")],
    "pack experts": [(LayerRoute, "pack")],
    "post transfers": [(GlooMover, "post")],
    "note the pass": [(AgentState, "note_pass")],
    "gates": [(LayerAgent, "gate")],
    "admit, the rest": [(LayerAgent, "admit")],
    "hand out guests": [(LayerAgent, "guests")],
    "end of a pass, the rest": [(LayerAgent, "_deliver")],
    "send gradients": [(GradientExchange, "launch")],
    "collect gradients": [(LayerAgent, "_collect")],
    "add gradients": [(guest_gradients, "add_guest_gradients")],
    "step boundaries": [(ActiveAgent, "begin_step"), (ActiveAgent, "end_step")],
}


class DrawnRouter(nn.Module):
    """Chooses experts so that each gets a given number of this rank's tokens; the weights are learnt."""

    def __init__(self, counts_E: IntArray, *, top_k: int) -> None:
        super().__init__()
        choices = np.repeat(np.arange(counts_E.size), counts_E)
        np.random.default_rng(0).shuffle(choices)
        self.experts_TK = torch.from_numpy(choices).view(-1, top_k)
        self.weight = nn.Parameter(torch.ones(counts_E.size))

    def forward(self, x_TD: torch.Tensor, experts_TK: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        """See `Router`."""
        experts_TK = self.experts_TK if experts_TK is None else experts_TK
        return self.weight[experts_TK], experts_TK


class Case(NamedTuple):
    """What is measured at one size."""

    num_ranks: int
    num_experts: int
    tokens: int
    """Tokens of a rank."""

    def counts(self) -> IntArray:
        """Counts of all layers, in whole tokens of top-k choices. Shape: [layers, ranks, experts]."""
        drawn = [
            counts_at(START_IMBALANCE, num_ranks=self.num_ranks, num_experts=self.num_experts, seed=seed)
            for seed in range(NUM_LAYERS)
        ]
        scaled_LRE = np.stack(drawn) * (self.tokens * TOP_K) // np.stack(drawn).sum(axis=2, keepdims=True)
        scaled_LRE[:, :, 0] += self.tokens * TOP_K - scaled_LRE.sum(axis=2)
        return scaled_LRE


def build(case: Case, *, plan_source: str) -> tuple[nn.Module, Agent]:
    """Rank 0 with its agent."""
    counts_LRE = case.counts()
    peers = ReadyGroup(counts_LRE, rank=0)
    layers = [
        ExpertParallelMoE(
            dim=DIM,
            hidden_dim=DIM,
            num_experts=case.num_experts,
            top_k=TOP_K,
            group=peers.expert_parallel(),
            router=DrawnRouter(counts_LRE[layer, 0], top_k=TOP_K),
        )
        for layer in range(NUM_LAYERS)
    ]
    model = nn.Sequential(*layers)
    options = AgentOptions(num_slots=SLOTS, ranks_per_node=RANKS_PER_NODE, measured_gates=False)
    agent = Agent(model, options, groups=peers.agent_groups())
    state = agent._agent.state
    for name in ("weight_mover", "gradient_mover"):
        setattr(state, name, LabellingMover(getattr(state, name), state))
    if plan_source == "ahead":
        guests_LRK = _plan(counts_LRE, state)
        peers.record = lambda: StepRecord(
            step=state.step + 1,
            mode=StepMode.PLAN,
            reason=ModeReason.AS_CONFIGURED,
            guests_LRK=guests_LRK,
            identity=PlanIdentity(planner_epoch="made-up", version=1),
        ).encode()
        state.control.take(step=0, weight_epoch=-1)  # the record of the start was offered before
        state.control.offer(None)
    return model, agent


def _plan(counts_LRE: IntArray, state: AgentState) -> IntArray:
    homes_E = contiguous_homes(num_experts=counts_LRE.shape[2], num_ranks=counts_LRE.shape[1])
    problems = [LayerProblem(counts_RE=counts, home_E=homes_E, topology=state.topology) for counts in counts_LRE]
    return np.stack([plan_layer(problem).guests_RK for problem in problems])


def measure(case: Case, *, plan_source: str, steps: int) -> dict[str, Any]:
    """Microseconds per layer and step, of all parts and of every one."""
    x = torch.randn(case.tokens, DIM, requires_grad=True)
    timer, guests = PartTimer(), 0
    with timer.timing(PARTS):
        model, agent = build(case, plan_source=plan_source)
        for step in range(WARM_STEPS + steps):
            if step == WARM_STEPS:
                timer.clear()
            agent.begin_step()
            model(x).sum().backward()
            summary = agent.end_step()
            guests = summary.guests_intra + summary.guests_inter
    agent.close()
    parts_us = {part: timer.typical_seconds(part) / steps / NUM_LAYERS * 1e6 for part in PARTS}
    return {
        **case._asdict(),
        "plan_source": plan_source,
        "guests_per_layer": guests / NUM_LAYERS,
        "own_us": sum(us for part, us in parts_us.items() if part != OUTSIDE),
        "of_it_in_plain_too_us": sum(parts_us[part] for part in SHARED),
        "parts_us": parts_us,
    }


def print_results(console: Console, rows: list[dict[str, Any]]) -> None:
    """The sums by size, then the parts of the headline size."""
    table = Table(title="Agent's own time per layer, forward and backward, in us", title_justify="left")
    for heading in ("R", "E", "tokens", "plans", "guests a layer", "agent", "of it in plain EP too"):
        table.add_column(heading, justify="left" if heading == "plans" else "right", no_wrap=True)
    for row in rows:
        table.add_row(
            *(str(row["num_ranks"]), str(row["num_experts"]), f"{row['tokens']:,}", row["plan_source"]),
            f"{row['guests_per_layer']:.1f}",
            *(f"{row[key]:.0f}" for key in ("own_us", "of_it_in_plain_too_us")),
        )
    console.print(table)
    shown = [row for row in rows if (row["num_ranks"], row["num_experts"]) == HEADLINE]
    table = Table(title=f"Parts at R = {HEADLINE[0]}, E = {HEADLINE[1]}, in us", title_justify="left")
    table.add_column("part", no_wrap=True)
    for row in shown:
        table.add_column(f"{row['plan_source']}, {row['tokens']:,}", justify="right", no_wrap=True)
    for part in shown[0]["parts_us"]:
        table.add_row(part, *(f"{row['parts_us'][part]:.1f}" for row in shown))
    console.print(table)


def main() -> None:
    """Measures, prints, and writes JSON where asked to."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=40, help="measured steps of every row")
    parser.add_argument("--headline", action="store_true", help="only the size the target is for")
    parser.add_argument("--json", type=Path, help="write the figures here as well")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    cases = [
        Case(*size, tokens=tokens)
        for size in (SIZES if not arguments.headline else [HEADLINE])
        for tokens in (TOKENS if size == HEADLINE else TOKENS[:1])
    ]
    rows = [
        measure(case, plan_source=plan_source, steps=arguments.steps)
        for case in cases
        for plan_source in ("inline", "ahead")
    ]
    print_results(Console(width=max(Console().width, 130)), rows)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps({"rows": rows}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
