from __future__ import annotations

import hashlib
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taot_api import PlanIdentity
from taot_client.measuring.step_gates import StepGates
from taot_client.planner.step_record import ModeReason, StepMode, StepRecord, check_identity, record_digest

SHAPE = (3, 4, 2)
"""Layers, ranks, slots."""


def make_record(*, identity: PlanIdentity | None = None, seed: int = 0, **fields: object) -> StepRecord:
    source = np.random.default_rng(seed)
    guests_LRK = source.integers(-1, 300, SHAPE)
    gates = StepGates(
        token_picoseconds_L=tuple(source.integers(0, 10**12, SHAPE[0]).tolist()),
        bandwidth_V=tuple(source.integers(0, 2**50, 2).tolist()),
        is_off_L=tuple(source.integers(0, 2, SHAPE[0]).astype(bool).tolist()),
    )
    defaults: dict[str, object] = {"step": 7, "mode": StepMode.PLAN, "reason": ModeReason.AS_CONFIGURED}
    return StepRecord(**(defaults | fields), guests_LRK=guests_LRK, identity=identity, gates=gates)  # type: ignore[arg-type]


def assert_same(got: StepRecord, want: StepRecord) -> None:
    assert (got.step, got.mode, got.reason, got.identity) == (want.step, want.mode, want.reason, want.identity)
    np.testing.assert_array_equal(got.guests_LRK, want.guests_LRK)
    if want.gates.is_off_L:
        assert got.gates == want.gates
    assert got.guests_LRK.dtype == np.int64


IDENTITIES = st.none() | st.builds(
    PlanIdentity,
    planner_epoch=st.text(alphabet="0123456789abcdef-", min_size=1, max_size=64),
    version=st.integers(1, 2**63 - 1),
)


@settings(max_examples=200, deadline=None)
@given(
    step=st.integers(0, 2**62),
    mode=st.sampled_from(StepMode),
    reason=st.sampled_from(ModeReason),
    identity=IDENTITIES,
    seed=st.integers(0, 2**32 - 1),
)
def test_a_record_reads_as_it_was_written(
    step: int, mode: StepMode, reason: ModeReason, identity: PlanIdentity | None, seed: int
) -> None:
    record = make_record(step=step, mode=mode, reason=reason, identity=identity, seed=seed)
    data = record.encode()
    assert len(data) == StepRecord.num_bytes(SHAPE), "a record of any content has the group's length"
    assert_same(StepRecord.decode(data, shape=SHAPE), record)


def test_every_mode_with_every_reason() -> None:
    for mode, reason in product(StepMode, ModeReason):
        record = make_record(mode=mode, reason=reason)
        assert_same(StepRecord.decode(record.encode(), shape=SHAPE), record)


@pytest.mark.parametrize("shape", [(1, 1, 0), (0, 4, 2), (1, 1, 1)], ids=str)
def test_groups_without_slots_or_layers_have_records_too(shape: tuple[int, int, int]) -> None:
    record = StepRecord(
        step=1, mode=StepMode.INLINE, reason=ModeReason.NO_PLAN_YET, guests_LRK=np.full(shape, -1, dtype=np.int64)
    )
    assert len(record.encode()) == StepRecord.num_bytes(shape)
    assert_same(StepRecord.decode(record.encode(), shape=shape), record)


def test_the_layout_of_a_view_makes_no_difference() -> None:
    record = make_record()
    reversed_twice = StepRecord(
        step=record.step,
        mode=record.mode,
        reason=record.reason,
        guests_LRK=record.guests_LRK[::-1].copy()[::-1],
        gates=record.gates,
    )
    assert not reversed_twice.guests_LRK.flags.c_contiguous
    assert reversed_twice.encode() == record.encode()


def test_the_digest_is_the_first_word_of_sha256_and_notices_every_bit() -> None:
    data = make_record(identity=PlanIdentity(planner_epoch="abc", version=3)).encode()
    assert record_digest(data) == int.from_bytes(hashlib.sha256(data).digest()[:8], "little", signed=True)
    for position, bit in product(range(len(data)), range(8)):
        flipped = bytearray(data)
        flipped[position] ^= 1 << bit
        assert record_digest(bytes(flipped)) != record_digest(data)


@pytest.mark.parametrize("epoch", ["0", "f" * 64, "\u00e9" * 32], ids=["short", "long", "not ASCII"])
@pytest.mark.parametrize("version", [1, 2**63 - 1])
def test_identities_that_pass_the_check_survive_the_record(epoch: str, version: int) -> None:
    identity = PlanIdentity(planner_epoch=epoch, version=version)
    check_identity(identity)
    assert StepRecord.decode(make_record(identity=identity).encode(), shape=SHAPE).identity == identity


@pytest.mark.parametrize(
    ("epoch", "version", "told"),
    [
        ("", 1, "planner epoch must be 1 to 64 bytes"),
        ("f" * 65, 1, "planner epoch must be 1 to 64 bytes"),
        ("x" + "\u00e9" * 32, 1, "planner epoch must be 1 to 64 bytes"),
        ("abc\0", 1, "planner epoch must be 1 to 64 bytes"),
        ("abc", 0, "between 1 and 2\\^63-1, got 0"),
        ("abc", -1, "between 1 and 2\\^63-1, got -1"),
        ("abc", 2**63, "between 1 and 2\\^63-1, got 9223372036854775808"),
    ],
)
def test_identities_that_a_record_cannot_carry_are_refused(epoch: str, version: int, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        check_identity(PlanIdentity(planner_epoch=epoch, version=version))
