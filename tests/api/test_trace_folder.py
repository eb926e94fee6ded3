from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from taot_api import LayerSpec
from taot_api.trace import TraceHeader, TraceRecord
from taot_api.trace_folder import TraceReader, TraceWriter
from taot_planning import Level, Topology


def make_header() -> TraceHeader:
    """Two layers of different size over four ranks, three levels, a cost matrix, uneven slots and homes."""
    matrix = 1000 * (np.ones((4, 4), dtype=int) - np.eye(4, dtype=int)) + np.triu(np.full((4, 4), 5), 1)
    return TraceHeader(
        training_job="job",
        topology=Topology(
            levels=(Level(name="node", transfer_cost_milli=1000), Level(name="all", transfer_cost_milli=2500)),
            domains_RV=np.array([[0, 0], [0, 0], [1, 0], [1, 0]]),
            slots_R=np.array([0, 1, 2, 3]),
            cost_matrix_milli=matrix,
        ),
        layers=(
            LayerSpec(name="a", top_k=2, expert_size_bytes=10, home_E=np.array([3, 0, 1, 2, 2])),
            LayerSpec(name="b", top_k=1, expert_size_bytes=0, home_E=np.array([0, 1, 2])),
        ),
    )


def make_record(step: int, micro_batch: int = 0) -> TraceRecord:
    rng = np.random.default_rng(100 * step + micro_batch)
    sizes = (5, 3)
    return TraceRecord(
        step=step,
        micro_batch=micro_batch,
        counts_L=tuple(rng.integers(0, 2**31, (4, size)).astype(np.int32) for size in sizes),
    )


RECORDS = [make_record(0), make_record(0, 1), make_record(2), make_record(5, 1)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "trace"
    writer = TraceWriter(path, make_header())
    writer.write(RECORDS[:3])
    writer.write(RECORDS[3:])
    return path


def test_what_is_written_is_read_again(folder: Path) -> None:
    reader, header = TraceReader(folder), make_header()
    assert reader.header.training_job == header.training_job
    assert reader.header.topology.levels == header.topology.levels
    for name in ("domains_RV", "slots_R", "cost_milli_RR"):
        assert np.array_equal(getattr(reader.header.topology, name), getattr(header.topology, name))
    for got, want in zip(reader.header.layers, header.layers, strict=True):
        assert (got.name, got.top_k, got.expert_size_bytes) == (want.name, want.top_k, want.expert_size_bytes)
        assert np.array_equal(got.home_E, want.home_E)
    assert reader.num_records == 4
    for _ in range(2):
        for got, want in zip(reader, RECORDS, strict=True):
            assert (got.step, got.micro_batch) == (want.step, want.micro_batch)
            assert all(np.array_equal(a, b) for a, b in zip(got.counts_L, want.counts_L, strict=True))


def test_the_writer_refuses_what_a_reader_would(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(ValueError, match="holds a trace already"):
        TraceWriter(folder, make_header())
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="cannot write a trace"):
        TraceWriter(tmp_path / "file", make_header())
    writer = TraceWriter(tmp_path / "new", make_header())
    with pytest.raises(ValueError, match="step 0, micro-batch 1 comes after step 2, micro-batch 0"):
        writer.write([RECORDS[2], RECORDS[1]])
    with pytest.raises(ValueError, match="the trace has 2 layers, got counts of 1"):
        writer.write([TraceRecord(step=0, micro_batch=0, counts_L=RECORDS[0].counts_L[:1])])
    with pytest.raises(ValueError, match=r"layer 'b': counts must be \[4, 3\], got \[4, 5\]"):
        writer.write([TraceRecord(step=0, micro_batch=0, counts_L=RECORDS[0].counts_L[:1] * 2)])


def read_all(folder: Path) -> None:
    list(TraceReader(folder))


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (["format"], "x", "it must say format 'taot-trace'"),
        (["version"], 2, "version 2, this release reads version 1"),
        (["version"], "1", "version must be int"),
        (["training_job"], None, "training_job must be str"),
        (["layers"], [], "at least one layer"),
        (["layers"], 7, "layers must be list"),
        (["layers", 1, "homes"], [0, 1, 4], "expert 2 has no home: its home rank is 4"),
        (["layers", 1, "homes"], ["x"], "must hold whole numbers"),
        (["layers", 1, "top_k"], 4, "top_k: must be between 1 and the 3 experts"),
        (["layers", 1], [], r"layers\[1\].name must be str"),
        (["topology"], [], "topology must be dict"),
        (["topology", "levels", 0, "transfer_cost_milli"], 7, "must cost 1000 thousandths"),
        (["topology", "domains"], [[0, 0]], "slots must have one entry per rank"),
        (["topology", "slots"], [0, 1, -2, 0], "slots must be >= 0"),
        (["topology", "cost_matrix_milli"], [[0]], r"cost matrix must be \[4, 4\]"),
    ],
)
def test_a_header_that_is_wrong_is_refused_by_field(folder: Path, path: list[Any], value: Any, message: str) -> None:
    file = folder / "meta.json"
    document = json.loads(file.read_text())
    inner = document
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    file.write_text(json.dumps(document))
    with pytest.raises(ValueError, match=message):
        read_all(folder)


def chunk(folder: Path, **changes: Any) -> None:
    """Writes the first chunk again with other arrays; None leaves one out."""
    path = folder / "counts-000000.npz"
    with np.load(path) as archive:
        arrays = dict(archive) | changes
    np.savez(path, **{name: array for name, array in arrays.items() if array is not None})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"step": None}, "lacks the array 'step'"),
        ({"layer_0001": None}, "lacks the array 'layer_0001'"),
        ({"step": np.zeros((3, 1), dtype=int)}, r"must both be \[records\]"),
        ({"step": np.array([0, 0, 9])}, "step 5, micro-batch 1 comes after step 9"),
        ({"step": np.array([-1, 0, 2])}, "count from 0"),
        ({"step": np.array([0.0, 0.0, 2.0])}, "must hold whole numbers"),
        ({"layer_0001": np.zeros((3, 4, 2), dtype=int)}, r"must be \[3, 4, 3\], got \[3, 4, 2\]"),
        ({"layer_0001": np.zeros((3, 400, 3), dtype=int)}, "too many for 36 numbers"),
        ({"layer_0001": np.full((3, 4, 3), -1)}, "between 0 and 2"),
        ({"layer_0001": np.full((3, 4, 3), 2**31)}, "got 2147483648"),
        ({"layer_0001": np.full((3, 4, 3), None)}, "damaged"),
    ],
)
def test_a_chunk_that_is_wrong_is_refused(folder: Path, changes: dict[str, Any], message: str) -> None:
    chunk(folder, **changes)
    with pytest.raises(ValueError, match=message):
        read_all(folder)


def test_folders_that_are_no_traces_are_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="it has no meta.json"):
        read_all(tmp_path)
    TraceWriter(tmp_path / "empty", make_header())
    with pytest.raises(ValueError, match="holds no counts yet"):
        read_all(tmp_path / "empty")
    (folder / "counts-000000.npz").rename(folder / "counts-000002.npz")
    with pytest.raises(ValueError, match="lacks counts-000000.npz"):
        read_all(folder)
    (folder / "counts-000002.npz").rename(folder / "counts-000000.npz")
    (folder / "counts-000001.npz").write_bytes(b"PK")
    with pytest.raises(ValueError, match="cannot be read"):
        read_all(folder)
    (folder / "meta.json").write_text("{")
    with pytest.raises(ValueError, match="meta.json"):
        read_all(folder)
