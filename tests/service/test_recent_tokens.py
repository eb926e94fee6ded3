from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st
from routing_samples import make_report, make_spec
from session_book_samples import make_book, open_session, report_step, solved

from taot_service.recent_tokens import RecentTokens
from taot_service.session import ReportOutcome

SPEC = make_spec(num_ranks=2, experts_L=(3, 5), top_k=1)
SOURCES = st.tuples(st.integers(0, 4), st.integers(0, 3))


def report_of(source):
    seed = 10 * source[0] + source[1]
    report = make_report(SPEC, step=seed, num_tokens=5)
    return dataclasses.replace(report, step=source[0], micro_batch=source[1])


@given(capacity=st.integers(0, 5), sources=st.lists(SOURCES, unique=True, max_size=12), asked=SOURCES)
def test_the_newest_reports_before_one_are_remembered_in_any_order_of_arrival(capacity, sources, asked):
    recent = RecentTokens(capacity=capacity)
    for source in sources:
        recent.add(report_of(source))
    kept = sorted(sources)[max(len(sources) - capacity, 0) :] if capacity else []
    wanted = [report_of(source) for source in reversed(kept) if source < asked]
    got_L = recent.before(report_of(asked))
    assert len(got_L) == (len(SPEC.layers) if capacity else 0)
    for index, got_NE in enumerate(got_L):
        assert got_NE.shape == (len(wanted), SPEC.layers[index].num_experts)
        assert got_NE.tolist() == [report.counts_L[index].sum(axis=0).tolist() for report in wanted]


def recent_of(book):
    """Steps whose counts go with the next work, newest first, read from the tokens of its first layer."""
    work = book.take_work(now_seconds=0.0)
    book.install(work, solved(work), create_time_seconds=0.0)
    tokens = {
        step: make_report(work.spec, step=step, num_tokens=4).counts_L[0].sum(axis=0).tolist() for step in range(20)
    }
    steps_N = [] if not work.recent_L else work.recent_L[0].tolist()
    return [next(step for step, tokens_E in tokens.items() if tokens_E == row) for row in steps_N]


@pytest.fixture
def session():
    book = make_book()
    spec = make_spec(training_job="j", recent_reports=3)
    return book, open_session(book, spec).session


def test_a_session_keeps_as_many_reports_as_were_asked_for(session):
    book, session = session
    seen = []
    for step in range(6):
        report_step(book, session, step)
        seen.append(recent_of(book))
    assert seen == [[], [0], [1, 0], [2, 1, 0], [3, 2, 1], [4, 3, 2]]


def test_rehearsals_and_repeats_are_not_remembered(session):
    book, session = session
    report_step(book, session, 1)
    report_step(book, session, 2, is_rehearsal=True)
    report_step(book, session, 1)
    report_step(book, session, 3)
    assert recent_of(book) == [1]


def test_a_report_that_comes_late_is_remembered_although_it_is_not_planned(session):
    book, session = session
    report_step(book, session, 1)
    report_step(book, session, 4)
    assert report_step(book, session, 3).outcome is ReportOutcome.OUT_OF_DATE
    report_step(book, session, 5)
    assert recent_of(book) == [4, 3, 1]


def test_reports_between_plans_are_remembered():
    book = make_book()
    session = open_session(book, make_spec(recent_reports=3, plan_interval=2)).session
    for step in range(2):
        report_step(book, session, step)
    assert recent_of(book) == []
    report_step(book, session, 2)
    assert recent_of(book) == [1, 0]


def test_another_life_of_the_group_starts_without_memories(session):
    book, session = session
    report_step(book, session, 1)
    newer = open_session(book, make_spec(training_job="j", recent_reports=3, incarnation=2)).session
    report_step(book, newer, 2)
    assert recent_of(book) == []


def test_without_the_option_nothing_is_kept():
    book = make_book()
    session = open_session(book, make_spec(recent_reports=0)).session
    for step in range(3):
        report_step(book, session, step)
    assert recent_of(book) == []
    assert session._recent._entries == []
