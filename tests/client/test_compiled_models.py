"""torch.compile around the layer and of the dense parts between: the same numbers, balanced all the same."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from rank_threads import Rank, run_ranks
from tiny_moe import TinyConfig, batch, loss_of, tiny_options
from torch import nn

from taot_client import Agent, ExpertParallelMoE

RANKS = 2
STEPS = 3
CONFIG = TinyConfig(num_layers=2, tokens_by_rank=(24, 40))


class Attention(nn.Module):
    """One head over all tokens of a rank, then a feed-forward network."""

    def __init__(self, dim: int, layer: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(layer)
        make = lambda *shape: nn.Parameter(torch.randn(*shape, generator=generator) * dim**-0.5)  # noqa: E731
        self.qkv, self.up, self.down = make(dim, 3 * dim), make(dim, 2 * dim), make(2 * dim, dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (x @ self.qkv).chunk(3, dim=-1)
        x = x + nn.functional.scaled_dot_product_attention(q[None, None], k[None, None], v[None, None])[0, 0]
        return x + nn.functional.gelu(x @ self.up) @ self.down


class Blocks(nn.Module):
    """Dense and expert-parallel layers in turn."""

    def __init__(self, rank: Rank) -> None:
        super().__init__()
        self.dense = nn.ModuleList(Attention(CONFIG.dim, layer) for layer in range(CONFIG.num_layers))
        self.layers = nn.ModuleList(
            ExpertParallelMoE(
                dim=CONFIG.dim,
                hidden_dim=CONFIG.hidden_dim,
                num_experts=CONFIG.num_experts,
                top_k=CONFIG.top_k,
                group=rank.group,
                seed=layer,
            )
            for layer in range(CONFIG.num_layers)
        )
        for layer, moe in enumerate(self.layers):
            generator = torch.Generator().manual_seed(layer)
            moe.router.score.weight.data = torch.randn(moe.router.score.weight.shape, generator=generator)
            moe.router.score.weight.data[: CONFIG.num_experts // 4] += 0.8  # hot experts on the first rank
        self.to(CONFIG.dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for dense, moe in zip(self.dense, self.layers, strict=True):
            x = dense(x)
            x = x + moe(x)
        return x


def leave_alone(model: Blocks, backend: str) -> nn.Module:
    del backend
    return model


def compile_dense(model: Blocks, backend: str) -> nn.Module:
    for index, dense in enumerate(model.dense):
        model.dense[index] = torch.compile(dense, backend=backend, dynamic=False)
    return model


def compile_whole(model: Blocks, backend: str) -> nn.Module:
    return torch.compile(model, backend=backend, dynamic=False)


def train(
    rank: Rank, prepare: Callable[[Blocks, str], nn.Module], backend: str, *, is_balanced: bool
) -> tuple[list[float], dict[str, torch.Tensor], int]:
    """Losses, parameters at the end, and guests moved."""
    model = prepare(Blocks(rank), backend)
    agent = Agent(model, tiny_options(ranks_per_node=1, debug=True), groups=rank.agent_groups) if is_balanced else None
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    losses, num_moved = [], 0
    for step in range(STEPS):
        if agent is not None:
            agent.begin_step()
        loss = loss_of(model(batch(CONFIG, step=step, rank=rank.group.rank)))
        optimizer.zero_grad()
        loss.backward()
        if agent is not None:
            summary = agent.end_step()
            num_moved += summary.guests_intra + summary.guests_inter
        losses.append(loss.item())
        optimizer.step()
    if agent is not None:
        agent.close()
    # A compiled module has its original under a name of its own.
    parameters = {name.replace("_orig_mod.", ""): value.detach() for name, value in model.named_parameters()}
    return losses, parameters, num_moved


def check_equal_to_eager(prepare: Callable[[Blocks, str], nn.Module], backend: str) -> None:
    torch._dynamo.reset()
    want = run_ranks(RANKS, lambda rank: train(rank, leave_alone, "", is_balanced=False))
    frames = torch._dynamo.utils.counters["frames"]
    before = frames["ok"]
    got = run_ranks(RANKS, lambda rank: train(rank, prepare, backend, is_balanced=True), timeout_seconds=100)
    assert frames["ok"] > before, "nothing has been compiled"
    for (losses, parameters, num_moved), (want_losses, want_parameters, _) in zip(got, want, strict=True):
        assert num_moved > 0
        assert losses == pytest.approx(want_losses, rel=1e-10)
        assert parameters.keys() == want_parameters.keys()
        for name, expected in want_parameters.items():
            assert (parameters[name] - expected).norm() <= 1e-10 * expected.norm(), name


@pytest.mark.slow
@pytest.mark.parametrize(
    ("prepare", "backend"),
    [(compile_dense, "aot_eager"), (compile_whole, "eager")],
    ids=["dense parts, aot_eager", "whole model, eager"],
)
def test_compiled_models_train_as_eager_ones_without_guests(prepare, backend):
    check_equal_to_eager(prepare, backend)
