from __future__ import annotations

import threading
from collections.abc import Mapping

import pytest
from rank_threads import Rank, run_ranks
from tiny_moe import TinyConfig, TinyMoE

from taot_client import Agent, AgentOptions
from taot_client import agent as agent_module
from taot_client.agreement import check_agreement, share_refusals
from taot_client.groups import all_gather_text


def refusals(facts_R: list[Mapping[str, object]]) -> list[str]:
    """What every rank is told; empty where nothing was wrong."""

    def body(rank: Rank) -> str:
        try:
            check_agreement(rank.group.counts, facts_R[rank.group.rank], size=rank.group.size)
        except ValueError as error:
            return str(error)
        return ""

    return run_ranks(len(facts_R), body)


def test_equal_facts_pass_in_any_order() -> None:
    facts = {"options.tolerance": "0.015", "layer moe homes": [0, 0, 1], "number of layers": 4, "none": None}
    assert refusals([facts, dict(reversed(facts.items())), facts]) == ["", "", ""]


def test_no_facts_pass() -> None:
    assert refusals([{}, {}]) == ["", ""]


def test_every_rank_is_told_the_field_and_what_each_rank_has() -> None:
    common = {"options.tolerance": "0.015", "release": "1"}
    told = refusals([common | {"layer moe experts": count} for count in (16, 16, 12)])
    assert len(set(told)) == 1
    assert "the ranks disagree about layer moe experts: rank 0: 16, rank 1: 16, rank 2: 12;" in told[0]
    assert "start every rank with the same model and options" in told[0]
    assert "tolerance" not in told[0]


@pytest.mark.parametrize("odd_one", [0, 2])
def test_a_field_that_one_rank_lacks_is_a_difference(odd_one: int) -> None:
    facts_R: list[Mapping[str, object]] = [{"a": 1, "layer 5 experts": 8} for _ in range(3)]
    facts_R[odd_one] = {"a": 1}
    told = refusals(facts_R)
    assert len(set(told)) == 1
    assert "disagree about layer 5 experts" in told[0]
    assert f"rank {odd_one}: '<absent>'" in told[0]


def test_values_inside_lists_are_compared() -> None:
    told = refusals([{"homes": [0, 0, 1]}, {"homes": [0, 1, 1]}])
    assert told[0] == told[1]
    assert "rank 0: [0, 0, 1], rank 1: [0, 1, 1]" in told[0]


def test_texts_of_any_length_and_script_are_gathered() -> None:
    texts = ["", "a\u00e9\u4e2d" * 1000, "\0\0", "x"]

    def body(rank: Rank) -> list[str]:
        return all_gather_text(rank.group.counts, texts[rank.group.rank], size=rank.group.size)

    assert run_ranks(4, body) == [texts] * 4


@pytest.mark.parametrize("package", ["taot_planning", "taot_client"])
def test_ranks_with_other_sources_of_the_same_release_do_not_start_together(package: str, monkeypatch) -> None:
    real, own = agent_module.package_digest, threading.local()

    def digest(name: str) -> str:
        return real(name) + ("changed" if own.rank == 1 and name == package else "")

    def body(rank: Rank) -> str:
        own.rank = rank.group.rank
        with pytest.raises(ValueError, match="the ranks disagree") as caught:
            Agent(TinyMoE(TinyConfig(), rank.group), AgentOptions(), groups=rank.agent_groups)
        return str(caught.value)

    monkeypatch.setattr(agent_module, "package_digest", digest)
    told = run_ranks(2, body)
    assert told[0] == told[1]
    assert f"the ranks disagree about sources of {package}: rank 0: '{real(package)}', rank 1" in told[0]


# Checks of one rank alone.


class OwnError(ValueError):
    """What a check of one rank raises."""


def shared_refusals(num_ranks: int, *, at_fault: set[int]) -> list[str]:
    """What every rank is told when the checks of some fail; empty where nothing was wrong."""

    def body(rank: Rank) -> str:
        own = OwnError(f"no good: {rank.group.rank}")
        caught: ValueError | None = None
        checked = False
        try:
            with share_refusals(rank.group.counts, size=rank.group.size):
                checked = True
                if rank.group.rank in at_fault:
                    raise own
        except ValueError as error:
            caught = error
        assert checked
        assert (caught is own) == (rank.group.rank in at_fault)
        # However it ended, the ranks are still in step with each other.
        next_words = all_gather_text(rank.group.counts, str(rank.group.rank), size=rank.group.size)
        assert next_words == [str(each) for each in range(rank.group.size)]
        return "" if caught is None else str(caught)

    return run_ranks(num_ranks, body)


def test_checks_that_pass_everywhere_refuse_nothing() -> None:
    assert shared_refusals(3, at_fault=set()) == ["", "", ""]


@pytest.mark.parametrize("odd_one", [0, 2])
def test_a_check_that_fails_on_one_rank_is_refused_by_all(odd_one: int) -> None:
    expected = [f"rank {odd_one} refuses to start: no good: {odd_one}"] * 3
    expected[odd_one] = f"no good: {odd_one}"
    assert shared_refusals(3, at_fault={odd_one}) == expected


def test_every_rank_at_fault_gets_its_own_error_and_the_others_the_first() -> None:
    first = "rank 1 refuses to start: no good: 1"
    assert shared_refusals(4, at_fault={1, 2}) == [first, "no good: 1", "no good: 2", first]
