"""Every way in which a report can be wrong, and the unusual loads that are right."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from routing_samples import make_report, make_spec

from taot_api import ContractError, RankTelemetry, Reason
from taot_api.codec import decode_report, encode_report, encode_tensor
from taot_api.routing_report import check_report

SPEC = make_spec(experts_L=(8, 12))


def _check(message, spec=SPEC):
    check_report(decode_report(message, spec), spec)


def _change_count(message, layer, rank, expert, change):
    counts_RE = np.frombuffer(message.token_counts[layer].data, dtype="<i4").reshape(4, -1).astype(np.int64)
    counts_RE[rank, expert] += change
    message.token_counts[layer].CopyFrom(encode_tensor(counts_RE))


def _add_telemetry(message, num_ranks=4, **fields):
    telemetry = RankTelemetry(**({"computed_tokens_L": np.array([1, 2])} | fields))
    report = make_report(SPEC, step=0, telemetry_R=(telemetry,) * num_ranks)
    message.telemetry.extend(encode_report("s", report).telemetry)


def _add_rates(message, token_picoseconds, bandwidths):
    message.measured_rates.token_picoseconds.extend(token_picoseconds)
    message.measured_rates.bandwidths_bytes_per_second.extend(bandwidths)


CASES = {
    "rates of another number of layers": (
        lambda message: _add_rates(message, [5], [1, 1]),
        Reason.INVALID_COUNTS,
        "measured_rates.token_picoseconds",
        "needs 2 entries, got 1",
    ),
    "bandwidths of another number of levels": (
        lambda message: _add_rates(message, [5, 5], []),
        Reason.INVALID_COUNTS,
        "measured_rates.bandwidths_bytes_per_second",
        "needs 2 entries, got 0",
    ),
    "a token that takes longer than a second": (
        lambda message: _add_rates(message, [5, 10**12 + 1], [1, 1]),
        Reason.INVALID_COUNTS,
        "measured_rates.token_picoseconds",
        "must be between 1 and 1000000000000, or 0 when unknown, got 5 to 1000000000001",
    ),
    "a negative bandwidth": (
        lambda message: _add_rates(message, [5, 5], [-1, 1]),
        Reason.INVALID_COUNTS,
        "measured_rates.bandwidths_bytes_per_second",
        "or 0 when unknown, got -1 to 1",
    ),
    "negative counts": (
        lambda message: _change_count(message, 1, 2, 3, -(10**6)),
        Reason.INVALID_COUNTS,
        "token_counts[1]",
        "layer 'layers.1': counts must be between 0 and 2^31-1, got -",
    ),
    "one count too many": (
        lambda message: _change_count(message, 1, 2, 3, 1),
        Reason.INVALID_COUNTS,
        "token_counts[1]",
        "the counts of source rank 2 add up to 129, expected 64 valid tokens x top_k 2 = 128",
    ),
    "one count too few": (
        lambda message: _change_count(message, 0, 3, int(np.argmax(make_report(SPEC, step=0).counts_L[0][3])), -1),
        Reason.INVALID_COUNTS,
        "token_counts[0]",
        "the counts of source rank 3 add up to 127, expected 64 valid tokens",
    ),
    "more tokens for an expert than there are": (
        lambda message: _change_count(message, 0, 1, 4, 65),
        Reason.INVALID_COUNTS,
        "token_counts[0]",
        "but has only 64 valid tokens",
    ),
    "a layer missing": (
        lambda message: message.token_counts.pop(),
        Reason.INVALID_COUNTS,
        "token_counts",
        "one tensor per layer (2), got 1",
    ),
    "layers in another order": (
        lambda message: message.token_counts.reverse() or message.token_counts.sort(key=lambda t: -t.shape[1]),
        Reason.INVALID_TENSOR,
        "token_counts[0]",
        "shape must be [4, 8], got [4, 12]",
    ),
    "bytes missing": (
        lambda message: setattr(message.token_counts[0], "data", message.token_counts[0].data[:-4]),
        Reason.INVALID_TENSOR,
        "token_counts[0]",
        "must be 128 bytes, got 124",
    ),
    "a rank without valid tokens stated": (
        lambda message: message.valid_token_counts.pop(),
        Reason.INVALID_COUNTS,
        "valid_token_counts",
        "one entry per rank (4), got 3",
    ),
    "negative valid tokens": (
        lambda message: message.valid_token_counts.__setitem__(2, -1),
        Reason.INVALID_COUNTS,
        "valid_token_counts[2]",
        "got -1",
    ),
    "valid tokens whose product with top_k overflows into the right sum": (
        lambda message: message.valid_token_counts.__setitem__(2, 2**62 + 64),
        Reason.INVALID_COUNTS,
        "valid_token_counts[2]",
        "between 0 and 2^31-1",
    ),
    "a negative step": (
        lambda message: setattr(message, "step", -1),
        Reason.INVALID_STEP,
        "step",
        "got -1 and 0",
    ),
    "a negative micro-batch": (
        lambda message: setattr(message, "micro_batch", -3),
        Reason.INVALID_STEP,
        "step",
        "got 0 and -3",
    ),
    "telemetry of some ranks": (
        lambda message: _add_telemetry(message, num_ranks=3),
        Reason.INVALID_COUNTS,
        "telemetry",
        "one entry per rank (4) or none, got 3",
    ),
    "telemetry of another number of layers": (
        lambda message: _add_telemetry(message, computed_tokens_L=np.array([1])),
        Reason.INVALID_TENSOR,
        "telemetry[0].computed_token_counts",
        "must be [2], got [1]",
    ),
    "a counter that runs backwards": (
        lambda message: _add_telemetry(message, inter_node_sent_bytes=-1),
        Reason.INVALID_COUNTS,
        "telemetry[0].inter_node_sent_bytes",
        "must be >= 0, got -1",
    ),
    "negative time": (
        lambda message: _add_telemetry(message, transfer_seconds=-0.5),
        Reason.INVALID_COUNTS,
        "telemetry[0].transfer_duration",
        "must be >= 0, got -0.5",
    ),
    "negative fallbacks": (
        lambda message: _add_telemetry(message, fallbacks={"planner_away": -2}),
        Reason.INVALID_COUNTS,
        "telemetry[0].fallback_counts",
        "must be >= 0, got -2",
    ),
    "negative errors": (
        lambda message: _add_telemetry(message, errors={"call_failed": -2}),
        Reason.INVALID_COUNTS,
        "telemetry[0].error_counts",
        "must be >= 0, got -2",
    ),
    "negative applied layers": (
        lambda message: _add_telemetry(message, applied_layers=-1),
        Reason.INVALID_COUNTS,
        "telemetry[0].applied_layer_count",
        "must be >= 0, got -1",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_wrong_report_is_refused_with_the_field_and_what_was_got(name):
    change, reason, field, complaint = CASES[name]
    message = encode_report("s", make_report(SPEC, step=0))
    _check(message)
    change(message)
    with pytest.raises(ContractError) as caught:
        _check(message)
    assert caught.value.reason is reason
    assert caught.value.field == field
    assert complaint in str(caught.value)


def test_a_router_that_drops_tokens_may_count_less_but_not_more():
    spec = make_spec(drops_tokens=True)
    report = make_report(spec, step=0)
    fewer = tuple(np.maximum(counts_RE - 3, 0) for counts_RE in report.counts_L)
    check_report(dataclasses.replace(report, counts_L=fewer), spec)
    more = tuple(np.minimum(counts_RE + 3, 64) for counts_RE in report.counts_L)
    with pytest.raises(ContractError, match="expected at most 64 valid tokens x top_k 2 = 128"):
        check_report(dataclasses.replace(report, counts_L=more), spec)


def test_all_tokens_on_one_set_of_experts_are_a_load_like_any_other():
    counts_RE = np.zeros((4, 8), dtype=np.int64)
    counts_RE[:, :2] = 64
    check_report(make_report(make_spec(), step=0, counts_L=(counts_RE, counts_RE)), make_spec())


def test_a_rank_without_tokens_is_a_load_like_any_other():
    spec = make_spec()
    report = make_report(spec, step=0)
    counts_L = tuple(counts_RE * np.array([[1], [1], [0], [1]]) for counts_RE in report.counts_L)
    check_report(
        dataclasses.replace(report, counts_L=counts_L, valid_tokens_R=np.array([64, 64, 0, 64])),
        spec,
    )
