"""Counts of all layers are judged at once; what is refused, and what is said, is what one layer after another gives."""

from __future__ import annotations

import dataclasses

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st
from routing_samples import make_report, make_spec

from taot_api import ContractError, RoutingReport, SessionSpec
from taot_api.codec import decode_report, encode_report
from taot_api.layer_counts import layers_alike
from taot_api.routing_report import check_report
from taot_planning.arrays import frozen_ints

MAX_COUNT = 2**31 - 1


def plain_complaint(report: RoutingReport, spec: SessionSpec) -> tuple[str, str] | None:
    """The rule as it is told: layer by layer, rank by rank, number by number. Field and message of the refusal."""
    for index, (counts_RE, layer) in enumerate(zip(report.counts_L, spec.layers, strict=True)):
        field, name = f"token_counts[{index}]", f"layer {layer.name!r}: "
        rows = [(rank, row.tolist(), int(report.valid_tokens_R[rank])) for rank, row in enumerate(counts_RE)]
        for rank, row, _ in rows:
            for count in row:
                if not 0 <= count <= MAX_COUNT:
                    return field, f"{name}counts must be between 0 and 2^31-1, got {count} from source rank {rank}"
        for rank, row, valid in rows:
            for expert, count in enumerate(row):
                if count > valid:
                    return (
                        field,
                        f"{name}source rank {rank} sends {count} tokens to expert {expert} but has only {valid}",
                    )
        for rank, row, valid in rows:
            expected = valid * layer.top_k
            if sum(row) > expected or (sum(row) < expected and not layer.drops_tokens):
                return field, f"{name}the counts of source rank {rank} add up to {sum(row)}, expected"
    return None


@st.composite
def changed_reports(draw):
    """A right report of layers of one or several sizes, with up to three numbers changed."""
    experts_L = tuple(draw(st.lists(st.sampled_from([4, 6]), min_size=1, max_size=5)))
    spec = make_spec(num_ranks=3, experts_L=experts_L, slots=1, training_job="j")
    drops_L = draw(st.lists(st.booleans(), min_size=len(experts_L), max_size=len(experts_L)))
    layers = tuple(
        dataclasses.replace(layer, drops_tokens=drops) for layer, drops in zip(spec.layers, drops_L, strict=True)
    )
    spec = dataclasses.replace(spec, layers=layers)
    report = make_report(spec, step=draw(st.integers(0, 5)), num_tokens=draw(st.sampled_from([0, 3, 40])))
    counts_L = [counts_RE.copy() for counts_RE in report.counts_L]
    change = st.sampled_from([-1, 1, -(2**31), -3, 5, 9])
    for _ in range(draw(st.integers(0, 3))):
        layer = draw(st.integers(0, len(experts_L) - 1))
        rank, expert = draw(st.integers(0, 2)), draw(st.integers(0, experts_L[layer] - 1))
        other = draw(st.integers(0, experts_L[layer] - 1))
        amount = draw(change)
        counts_L[layer][rank, expert] += amount
        way = draw(st.sampled_from(["one", "two", "all"]))
        if way == "two":  # sums that stay right hide a wrong number from a check of sums alone
            counts_L[layer][rank, other] -= amount
        elif way == "all":
            counts_L[layer][rank] = np.where(np.arange(experts_L[layer]) == expert, counts_L[layer][rank].sum(), 0)
    bounds = np.iinfo(np.int32)
    counts_L = [np.clip(counts_RE, bounds.min, bounds.max) for counts_RE in counts_L]
    return spec, dataclasses.replace(report, counts_L=tuple(counts_L))


@settings(max_examples=300)
@given(changed=changed_reports())
def test_all_layers_at_once_are_judged_as_one_after_the_other(changed):
    spec, report = changed
    report = decode_report(encode_report("s", report), spec)
    expected = plain_complaint(report, spec)
    try:
        check_report(report, spec)
        got = None
    except ContractError as error:
        got = error
    if expected is None:
        assert got is None
    else:
        assert got is not None
        assert got.field == expected[0]
        assert expected[1] in str(got)


@given(changed=changed_reports())
@example(changed=(make_spec(experts_L=(8, 12, 8)), make_report(make_spec(experts_L=(8, 12, 8)), step=0)))
def test_decoded_counts_are_those_that_were_sent_and_nobody_can_change_them(changed):
    spec, report = changed
    decoded = decode_report(encode_report("s", report), spec)
    for sent_RE, got_RE in zip(report.counts_L, decoded.counts_L, strict=True):
        assert got_RE.dtype == np.int64
        assert got_RE.tolist() == sent_RE.tolist()
        assert not got_RE.flags.writeable
        assert frozen_ints(got_RE, name="counts", num_axes=2) is got_RE  # which would copy what somebody can change


def test_layers_of_one_size_are_together_in_their_order():
    assert layers_alike([8, 4, 8, 8, 4]) == {8: [0, 2, 3], 4: [1, 4]}
    assert layers_alike([]) == {}


def test_a_view_of_an_array_that_can_be_changed_is_copied():
    counts_LRE = np.zeros((2, 3, 4), dtype=np.int64)
    view_RE = counts_LRE[0]
    view_RE.setflags(write=False)
    assert frozen_ints(view_RE, name="counts", num_axes=2) is not view_RE
