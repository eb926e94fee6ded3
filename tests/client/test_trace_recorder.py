from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from rank_threads import Rank, run_ranks
from tiny_moe import TinyConfig, TinyMoE, batch, loss_of, tiny_options

from taot_api.trace_folder import TraceReader
from taot_client import Agent, TraceRecorder
from taot_client.trace_recorder import TraceFile

CONFIG = TinyConfig(num_layers=2, num_experts_by_layer=(8, 6))

Choices = dict[tuple[int, int, int], np.ndarray]
"""Chosen experts by step, micro-batch and layer."""


def record_run(rank: Rank, folder: Path, *, num_steps: int = 3, micro_batches: int = 2) -> Choices:
    """Trains a little while recording; returns what the routers of this rank chose in training."""
    model = TinyMoE(CONFIG, rank.group)
    agent = Agent(model, tiny_options(num_slots=1, ranks_per_node=2), groups=rank.agent_groups)
    chosen: Choices = {}
    place = [0, 0]
    for index, layer in enumerate(model.layers):

        def note(_module: object, _x: object, out: tuple[torch.Tensor, torch.Tensor], index: int = index) -> None:
            if model.training:
                chosen[place[0], place[1], index] = out[1].numpy().copy()

        layer.router.register_forward_hook(note)
    agent.record(folder)
    for step in range(num_steps):
        agent.begin_step()
        for micro_batch in range(micro_batches):
            place[:] = [step, micro_batch]
            x = batch(CONFIG, step=step, rank=rank.group.rank, micro_batch=micro_batch)
            loss_of(model(x)).backward()
        model.eval()
        model(x)  # not training: not in the trace
        model.train()
        agent.end_step()
    agent.close()
    return chosen


@pytest.mark.parametrize("disable", ["0", "1"])
def test_an_agent_records_the_counts_that_its_layers_saw(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, disable: str
) -> None:
    monkeypatch.setenv("TAOT_DISABLE", disable)
    chosen_R = run_ranks(4, lambda rank: record_run(rank, tmp_path / "trace"))
    reader = TraceReader(tmp_path / "trace")
    assert reader.header.topology.nodes_R.tolist() == [0, 0, 1, 1]
    assert [layer.num_experts for layer in reader.header.layers] == [8, 6]
    assert [layer.top_k for layer in reader.header.layers] == [2, 2]
    records = list(reader)
    assert [(each.step, each.micro_batch) for each in records] == [(s, m) for s in range(3) for m in range(2)]
    for record in records:
        for layer, counts_RE in enumerate(record.counts_L):
            for rank, chosen in enumerate(chosen_R):
                counted = Counter(chosen[record.step, record.micro_batch, layer].flatten().tolist())
                assert counts_RE[rank].tolist() == [counted[expert] for expert in range(counts_RE.shape[1])]


def test_every_rank_hears_that_the_folder_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "meta.json").write_text("{}")

    def body(rank: Rank) -> str:
        agent = Agent(TinyMoE(CONFIG, rank.group), tiny_options(ranks_per_node=2), groups=rank.agent_groups)
        with pytest.raises(ValueError, match="holds a trace already") as error:
            agent.record(tmp_path)
        agent.record(tmp_path / "new")
        with pytest.raises(RuntimeError, match="records already"):
            agent.record(tmp_path / "newer")
        agent.close()
        return str(error.value)

    assert len(run_ranks(2, body)) == 2


def test_any_loop_can_record(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    choices = generator.integers(-1, 5, (4, 3, 2, 20, 2))  # rank, step, layer; ids -1 and 4 do not count

    def body(rank: Rank) -> None:
        tokens = rank.group.tokens
        recorder = TraceRecorder(tmp_path / "t", num_layers=2, num_experts=4, top_k=2, ranks_per_node=2, group=tokens)
        for step in range(3):
            for _ in range(2):
                for layer in range(2):
                    recorder.add(step, layer, torch.from_numpy(choices[rank.group.rank, step, layer]))
        recorder.close()

    run_ranks(4, body)
    records = list(TraceReader(tmp_path / "t"))
    assert [(each.step, each.micro_batch) for each in records] == [(s, m) for s in range(3) for m in range(2)]
    for record in records:
        for layer, counts_RE in enumerate(record.counts_L):
            for rank in range(4):
                ids = choices[rank, record.step, layer].flatten().tolist()
                assert counts_RE[rank].tolist() == [ids.count(expert) for expert in range(4)]


def test_counts_that_do_not_fit_are_refused_and_a_gap_is_left_out(tmp_path: Path) -> None:
    def body(rank: Rank) -> None:
        tokens = rank.group.tokens
        recorder = TraceRecorder(tmp_path / "t", num_layers=2, num_experts=4, top_k=2, group=tokens)
        with pytest.raises(ValueError, match="layers 0 to 1"):
            recorder.add_counts(0, 2, np.zeros((1, 4), dtype=np.int64))
        with pytest.raises(ValueError, match=r"got \[2, 4\]"):
            recorder.add_counts(0, 1, np.zeros((2, 4), dtype=np.int64))
        for step, layer in ((0, 0), (1, 0), (1, 1), (1, 0), (2, 0), (2, 1)):
            recorder.add_counts(step, layer, np.full((1, 4), step))
        recorder.close()
        recorder.add_counts(3, 0, np.zeros((1, 4), dtype=np.int64))

    run_ranks(1, body)
    assert [(each.step, each.micro_batch) for each in TraceReader(tmp_path / "t")] == [(1, 0), (2, 0)]


def test_recording_ends_at_its_limit_and_the_loop_goes_on(tmp_path: Path) -> None:
    header = TraceReader(Path(__file__).parents[2] / "examples" / "traces" / "train_moe").header
    trace = TraceFile(tmp_path / "t", header, limit_bytes=1)
    zeros = [np.zeros(shape, dtype=np.int64) for shape in header.shapes_L]
    for step in range(500):
        for layer, counts_RE in enumerate(zeros):
            trace.add(step=step, micro_batch=0, layer=layer, counts_RE=counts_RE)
    trace.close()
    assert TraceReader(tmp_path / "t").num_records == 64
