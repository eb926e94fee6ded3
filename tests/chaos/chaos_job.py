"""A training job that goes on until it is told to end, and the run without any planner it is compared with."""

from __future__ import annotations

import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from datetime import timedelta

import torch
from link_samples import eventually
from rank_threads import Rank, run_ranks
from tiny_moe import DenseMoE, TinyConfig, TinyMoE, batch, loss_of, sum_shared_gradients, tiny_options

from taot_client import Agent, AgentOptions

CONFIG = TinyConfig(num_layers=2, tokens_by_rank=(20, 11, 0, 26), dim=6, hidden_dim=8)
RANKS = 4
HANG_SECONDS = 60
"""No step may take longer; far above one call deadline, one plan deadline and one transfer timeout together."""
EXPECTED_DIFFERENCE = 1e-5
"""Relative difference of losses: ranks add gradients up in another order than one process does, and nothing more."""


@dataclass
class JobOutcome:
    """What a job leaves behind."""

    losses: list[float] = field(default_factory=list)
    weights: dict[str, torch.Tensor] = field(default_factory=dict)
    """Of the leader's rank, after the last step."""
    modes: Counter[str] = field(default_factory=Counter)
    moved_guests: int = 0
    longest_step_seconds: float = 0.0


class ChaosJob:
    """Ranks as threads over real gloo groups, in a thread of its own until `finish`, or the end of a with statement.

    A job that outlived a test that failed would end the interpreter by a signal, at its exit.
    """

    def __init__(
        self,
        options: AgentOptions,
        *,
        num_ranks: int = RANKS,
        pace_seconds: float = 0.01,
        num_steps: int | None = None,
    ) -> None:
        """Starts to train, for `num_steps` or until `finish`."""
        self.num_ranks = num_ranks
        self._options = options
        self._pace_seconds = pace_seconds
        self._pause = threading.Event()
        self._stop_at = num_steps
        self._outcome = JobOutcome()
        self._error: BaseException | None = None
        self._leader: Agent | None = None
        self.step = 0
        """The step the leader is in."""
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def __enter__(self) -> ChaosJob:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    @property
    def planner_epoch(self) -> str | None:
        """The life of the planner whose plan the leader has accepted last."""
        plan = self.stats().get("plan")
        return plan.identity.planner_epoch if plan else None

    @property
    def modes(self) -> Counter[str]:
        """The steps made so far by their mode."""
        return self._outcome.modes

    @property
    def refusal(self) -> str | None:
        """Why the planner refuses this run for good, which then looks for no planner any more."""
        return self._leader._agent.state.leader.link._refusal if self._leader is not None else None

    def stats(self) -> dict:
        """What the leader's agent says of the planner."""
        return self._leader.planner_stats if self._leader is not None else {}

    def await_steps(self, number: int) -> None:
        """Waits until the job has made that many steps more."""
        target = self.step + number
        assert eventually(lambda: self.step >= target or self._error is not None, seconds=2 * HANG_SECONDS), "it hangs"
        self.check()

    def check(self) -> None:
        """Raises what has ended the job too early."""
        if self._error is not None:
            raise self._error

    def finish(self) -> JobOutcome:
        """Lets the job end, after a few more steps unless their number was given, and returns what it leaves behind."""
        self._end()
        assert not self._thread.is_alive(), "the job hangs"
        self.check()
        return self._outcome

    def _end(self) -> None:
        if self._stop_at is None:
            # Ranks are at most one step apart, so all of them see this before they get there.
            self._stop_at = self.step + 4
        self._thread.join(timeout=2 * HANG_SECONDS)

    def _run(self) -> None:
        try:
            run_ranks(self.num_ranks, self._train, timeout_seconds=3600)
        except BaseException as error:  # noqa: BLE001 - the top of a thread
            self._error = error

    def _train(self, rank: Rank) -> None:
        model = TinyMoE(CONFIG, rank.group)
        agent = Agent(model, self._options, groups=rank.agent_groups)
        optimizer = torch.optim.SGD(model.parameters(), lr=CONFIG.learning_rate)
        is_leader, step = rank.group.rank == 0, 0
        if is_leader:
            self._leader = agent
        while self._stop_at is None or step < self._stop_at:
            if is_leader:
                self.step = step
                self._pause.wait(self._pace_seconds)
            began = time.monotonic()
            self._step(model, agent, optimizer, rank, step)
            if is_leader:
                seconds = time.monotonic() - began
                self._outcome.longest_step_seconds = max(self._outcome.longest_step_seconds, seconds)
            step += 1
        if is_leader:
            self._outcome.weights = {name: value.detach().clone() for name, value in model.named_parameters()}
        agent.close()

    def _step(self, model: TinyMoE, agent: Agent, optimizer: torch.optim.Optimizer, rank: Rank, step: int) -> None:
        agent.begin_step()
        loss = loss_of(model(batch(CONFIG, step=step, rank=rank.group.rank)))
        optimizer.zero_grad()
        loss.backward()
        summary = agent.end_step()
        sum_shared_gradients(model, rank)
        total = loss.detach().clone()
        rank.group.counts.allreduce([total]).wait()
        optimizer.step()
        if rank.group.rank == 0:
            self._outcome.losses.append(total.item())
            self._outcome.modes[summary.mode.name] += 1
            self._outcome.moved_guests += summary.guests_intra + summary.guests_inter


def chaos_options(address: str, **changes) -> AgentOptions:
    """Options of a job whose planner will not be well; its waits are short."""
    fields = {
        "ranks_per_node": 2,
        "planner_address": address,
        "training_job": "chaos",
        "group": "ep0",
        "plan_deadline": timedelta(milliseconds=300),
        "connect_timeout": timedelta(milliseconds=500),
    }
    return tiny_options(**{**fields, **changes})


def undisturbed_losses(num_steps: int, *, num_ranks: int = RANKS) -> list[float]:
    """The losses of one process that holds all experts and asks nobody."""
    model, losses = DenseMoE(CONFIG), []
    optimizer = torch.optim.SGD(model.parameters(), lr=CONFIG.learning_rate)
    for step in range(num_steps):
        loss = sum(loss_of(model(batch(CONFIG, step=step, rank=rank))) for rank in range(num_ranks))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def assert_undisturbed(outcome: JobOutcome, *, num_ranks: int = RANKS) -> None:
    """Compares every loss with the undisturbed run, and the longest step with the bound of a hang."""
    wanted = undisturbed_losses(len(outcome.losses), num_ranks=num_ranks)
    worst = max(abs(got - want) / abs(want) for got, want in zip(outcome.losses, wanted, strict=True))
    print(
        f"{len(outcome.losses)} steps of {num_ranks} ranks, modes {dict(outcome.modes)}, {outcome.moved_guests} guests"
        f" moved, longest step {outcome.longest_step_seconds:.2f} s, losses differ by {worst:.1e} at most"
    )
    assert worst <= EXPECTED_DIFFERENCE
    assert outcome.longest_step_seconds < HANG_SECONDS
