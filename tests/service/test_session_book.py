"""The state machine alone: time is an argument, no server anywhere."""

from __future__ import annotations

import pytest
from routing_samples import make_report, make_spec
from session_book_samples import make_book, open_session, report_step, solved

from taot_api import ContractError, Reason
from taot_service.ended_sessions import MAX_ENDED_SESSIONS, EndReason
from taot_service.session import KEPT_PLANS, MAX_REPORT_KEYS, ReportOutcome
from taot_service.session_book import OpenOutcome


def install_next(book):
    work = book.take_work(now_seconds=0.0)
    return book.install(work, solved(work), create_time_seconds=1.75e9)


def test_a_newer_incarnation_replaces_the_older_at_once():
    book = make_book()
    old = open_session(book, make_spec(training_job="j", incarnation=1)).session
    decision = open_session(book, make_spec(training_job="j", incarnation=2))
    assert decision.outcome is OpenOutcome.REPLACED_OLDER
    assert decision.replaced.session is old
    assert book.sessions == (decision.session,)
    with pytest.raises(ContractError, match="replaced by a newer incarnation") as caught:
        book.find(old.session_id, now_seconds=0.0)
    assert caught.value.reason is Reason.STALE_INCARNATION


def test_a_report_is_planned_from_the_plan_that_is_in_force_when_its_turn_comes():
    book = make_book()
    session = open_session(book).session
    report_step(book, session, 1)
    first = book.take_work(now_seconds=0.0)
    assert first.begin_L == (), "there is no plan yet"
    report_step(book, session, 2)
    plan = book.install(first, solved(first), create_time_seconds=1.75e9)
    assert book.take_work(now_seconds=0.0).begin_L is plan.guests_L


def test_a_run_with_other_layers_begins_with_no_guests():
    book = make_book()
    for incarnation, experts_L in ((1, (8, 8)), (2, (8, 12))):
        spec = make_spec(training_job="j", incarnation=incarnation, experts_L=experts_L)
        report_step(book, open_session(book, spec).session, 1)
        work = book.take_work(now_seconds=0.0)
        assert work.begin_L == ()
        book.install(work, solved(work), create_time_seconds=1.75e9)


def test_an_older_incarnation_is_refused_and_changes_nothing():
    book = make_book()
    session = open_session(book, make_spec(training_job="j", incarnation=2)).session
    with pytest.raises(ContractError, match="newer incarnation 2, got 1") as caught:
        open_session(book, make_spec(training_job="j", incarnation=1))
    assert caught.value.reason is Reason.STALE_INCARNATION
    assert book.sessions == (session,)


def test_the_same_incarnation_gets_its_session_again():
    book = make_book()
    first = open_session(book, make_spec(training_job="j"))
    again = open_session(book, make_spec(training_job="j"))
    assert again.outcome is OpenOutcome.SAME
    assert again.session is first.session


@pytest.mark.parametrize(
    ("changed", "field"),
    [({"experts_L": (8, 9)}, "layers"), ({"slots": 1}, "topology"), ({"plan_interval": 2}, "options")],
)
def test_the_same_incarnation_with_other_content_is_refused_with_the_field(changed, field):
    book = make_book()
    open_session(book, make_spec(training_job="j"))
    with pytest.raises(ContractError, match=f"another {field}") as caught:
        open_session(book, make_spec(training_job="j", **changed))
    assert caught.value.reason is Reason.INVALID_INCARNATION
    assert caught.value.field == field


def test_groups_of_one_job_are_sessions_of_their_own():
    book = make_book()
    open_session(book, make_spec(training_job="j", group="ep0", incarnation=9))
    open_session(book, make_spec(training_job="j", group="ep1", incarnation=1))
    assert len(book.sessions) == 2


def test_there_is_a_limit_on_sessions_but_not_on_replacing_them():
    book = make_book(max_sessions=1)
    open_session(book, make_spec(training_job="j", incarnation=1))
    with pytest.raises(ContractError, match="at most 1 sessions") as caught:
        open_session(book)
    assert caught.value.reason is Reason.LIMIT_EXCEEDED
    assert open_session(book, make_spec(training_job="j", incarnation=2)).outcome is OpenOutcome.REPLACED_OLDER


def test_a_repeated_report_changes_nothing_and_plans_nothing():
    book = make_book()
    session = open_session(book).session
    assert report_step(book, session, 1).outcome is ReportOutcome.PLANNED
    install_next(book)
    assert report_step(book, session, 1).outcome is ReportOutcome.REPEATED
    assert book.take_work(now_seconds=0.0) is None
    assert (session.num_reports, session.num_plans) == (1, 1)


def test_micro_batches_of_one_step_are_reports_of_their_own():
    book = make_book()
    session = open_session(book).session
    assert report_step(book, session, 1, micro_batch=0).outcome is ReportOutcome.PLANNED
    assert report_step(book, session, 1, micro_batch=1).outcome is ReportOutcome.PLANNED


def test_rehearsals_are_counted_and_never_planned_from():
    book = make_book()
    session = open_session(book).session
    assert report_step(book, session, 1, is_rehearsal=True).outcome is ReportOutcome.REHEARSAL
    assert book.take_work(now_seconds=0.0) is None
    assert (session.num_rehearsals, session.num_reports) == (1, 0)


def test_a_rehearsal_does_not_make_the_training_report_of_its_step_a_repeat():
    book = make_book()
    session = open_session(book).session
    report_step(book, session, 1, is_rehearsal=True)
    assert report_step(book, session, 1).outcome is ReportOutcome.PLANNED


def test_plans_are_made_once_per_interval_starting_with_the_first_report():
    book = make_book()
    session = open_session(book, make_spec(plan_interval=3)).session
    outcomes = []
    for step in range(7):
        outcomes.append(report_step(book, session, step).outcome)
        report_step(book, session, 100 + step, is_rehearsal=True)
    due = [step for step, outcome in enumerate(outcomes) if outcome is ReportOutcome.PLANNED]
    assert due == [0, 3, 6]
    assert outcomes[1] is ReportOutcome.NOT_DUE


def test_the_latest_report_wins_and_one_is_in_work_at_a_time():
    book = make_book()
    session = open_session(book).session
    report_step(book, session, 1)
    work = book.take_work(now_seconds=0.0)
    assert not report_step(book, session, 2).has_superseded
    assert report_step(book, session, 3).has_superseded
    assert book.take_work(now_seconds=0.0) is None, "the session has a plan in work"
    plan = book.install(work, solved(work), create_time_seconds=0.0)
    assert plan.source_step == 1
    assert book.take_work(now_seconds=0.0).report.step == 3


def test_a_report_that_takes_the_place_of_a_waiting_one_waits_as_if_it_had_just_come():
    book = make_book()
    often, once = (open_session(book, make_spec(group=group)).session for group in ("often", "once"))
    report_step(book, often, 1)
    report_step(book, once, 1)
    assert book.accept_report(
        often.session_id, make_report(often.spec, step=2, num_tokens=4), now_seconds=7.0
    ).has_superseded
    first, second = book.take_work(now_seconds=7.0), book.take_work(now_seconds=7.0)
    assert (first.session_id, first.report.step) == (once.session_id, 1)
    assert (second.session_id, second.report.step, second.arrival_seconds) == (often.session_id, 2, 7.0)


def test_a_report_older_than_the_newest_taken_for_planning_is_not_planned():
    book = make_book()
    session = open_session(book).session
    report_step(book, session, 5)
    assert report_step(book, session, 4).outcome is ReportOutcome.OUT_OF_DATE
    assert install_next(book).source_step == 5
    assert report_step(book, session, 3).outcome is ReportOutcome.OUT_OF_DATE
    assert book.take_work(now_seconds=0.0) is None


def test_sessions_take_turns():
    book = make_book()
    busy, quiet = open_session(book).session, open_session(book).session
    report_step(book, busy, 1)
    report_step(book, quiet, 1)
    work = book.take_work(now_seconds=0.0)
    report_step(book, busy, 2)
    assert work.session_id == busy.session_id
    book.install(work, solved(work), create_time_seconds=0.0)
    assert book.take_work(now_seconds=0.0).session_id == quiet.session_id
    assert book.take_work(now_seconds=0.0).session_id == busy.session_id


def test_versions_count_over_all_sessions_from_one():
    book = make_book()
    sessions = [open_session(book).session for _ in range(2)]
    versions = []
    for step in range(3):
        for session in sessions:
            report_step(book, session, step)
            versions.append(install_next(book).identity.version)
    assert versions == [1, 2, 3, 4, 5, 6]


def test_a_failed_plan_leaves_the_one_in_force_and_the_next_report_is_planned():
    book = make_book()
    session = open_session(book).session
    report_step(book, session, 1)
    plan = install_next(book)
    report_step(book, session, 2)
    book.give_up(book.take_work(now_seconds=0.0))
    assert session.newest_plan is plan
    report_step(book, session, 3)
    assert install_next(book).source_step == 3


def test_a_plan_of_a_session_that_was_replaced_meanwhile_is_dropped():
    book = make_book()
    session = open_session(book, make_spec(training_job="j", incarnation=1)).session
    report_step(book, session, 1)
    work = book.take_work(now_seconds=0.0)
    newer = open_session(book, make_spec(training_job="j", incarnation=2)).session
    assert book.install(work, solved(work), create_time_seconds=0.0) is EndReason.REPLACED
    assert newer.newest_plan is None


@pytest.mark.parametrize("end", ["close", "expire", "replace"])
def test_waiting_work_of_a_session_that_ended_is_not_planned(end):
    book = make_book()
    session = open_session(book, make_spec(training_job="j", incarnation=1)).session
    report_step(book, session, 1)
    if end == "close":
        book.close(session.session_id)
    elif end == "expire":
        assert [ended.session for ended in book.expire(now_seconds=61.0)] == [session]
    else:
        open_session(book, make_spec(training_job="j", incarnation=2))
    assert book.take_work(now_seconds=0.0) is None


def test_a_session_without_layers_is_a_session_that_never_plans():
    book = make_book()
    session = open_session(book, make_spec(experts_L=())).session
    assert report_step(book, session, 1).outcome is ReportOutcome.NO_LAYERS
    assert book.take_work(now_seconds=0.0) is None


def test_a_session_expires_only_when_its_lease_has_run_out_since_the_last_call():
    book = make_book(lease_seconds=60.0)
    session = open_session(book, now=100.0).session
    assert book.expire(now_seconds=160.0) == ()
    book.find(session.session_id, now_seconds=160.0)
    report_step(book, session, 1, now=200.0)
    assert book.expire(now_seconds=260.0) == ()
    assert [ended.session for ended in book.expire(now_seconds=260.1)] == [session]
    with pytest.raises(ContractError, match="lease ran out: open it again") as caught:
        book.find(session.session_id, now_seconds=261.0)
    assert caught.value.reason is Reason.SESSION_NOT_FOUND
    assert caught.value.metadata["planner_epoch"] == book.planner_epoch


def test_an_open_watch_keeps_a_session_alive():
    book = make_book(lease_seconds=60.0)
    session = open_session(book).session
    session.num_watches = 1
    assert book.expire(now_seconds=1e6) == ()
    session.num_watches = 0
    assert [ended.session for ended in book.expire(now_seconds=1e6)] == [session]


def test_an_expired_session_can_be_opened_again_by_the_same_incarnation():
    book = make_book()
    spec = make_spec()
    old = open_session(book, spec).session
    book.expire(now_seconds=61.0)
    decision = open_session(book, spec, now=62.0)
    assert decision.outcome is OpenOutcome.CREATED
    assert decision.session is not old


def test_closing_is_idempotent():
    book = make_book()
    session = open_session(book).session
    assert book.close(session.session_id).session is session
    assert book.close(session.session_id) is None
    assert book.close("never opened") is None
    assert book.sessions == ()


def test_memory_is_bounded_per_session_and_over_ended_sessions():
    book = make_book(max_sessions=MAX_ENDED_SESSIONS + 10)
    session = open_session(book, make_spec(num_ranks=2, experts_L=(2,), top_k=1)).session
    plans = []
    for step in range(MAX_REPORT_KEYS + 50):
        report_step(book, session, step)
        plans.append(install_next(book))
    kept = [plan for plan in plans if session.find_plan(plan.identity.version) is plan]
    assert kept == plans[-KEPT_PLANS:]
    assert len(session._keys) == len(session._key_heap) == MAX_REPORT_KEYS
    assert report_step(book, session, 0).outcome is ReportOutcome.REPEATED, "forgotten, hence not new"
    for _ in range(MAX_ENDED_SESSIONS + 5):
        book.close(open_session(book).session.session_id)
    assert len(book._ended) == MAX_ENDED_SESSIONS


@pytest.mark.parametrize(("gives_way", "num_uncounted"), [(True, 2), (False, 1)])
def test_a_session_that_ends_leaves_what_no_thread_will_bring_back_to_be_counted(gives_way, num_uncounted):
    book = make_book()
    session = open_session(book).session
    report_step(book, session, 1)
    work = book.take_work(now_seconds=0.0)
    report_step(book, session, 2)
    if gives_way:
        book.queue.add(work)
    ended = book.close(session.session_id)
    assert ended.session is session
    assert len(ended.uncounted) == num_uncounted
    assert (work in ended.uncounted) == gives_way
    assert all(each.progress.is_dropped for each in ended.uncounted)
    assert book.give_up(work) is EndReason.CLOSED
