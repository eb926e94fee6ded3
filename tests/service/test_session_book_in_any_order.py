"""The state machine under any order of calls."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from routing_samples import make_spec
from session_book_samples import make_book, open_session, report_step, solved

from taot_api import ContractError
from taot_service.ended_sessions import EndReason


class BookMachine(RuleBasedStateMachine):
    """Any order of calls over two groups, against a plain model of what a caller may rely on."""

    def __init__(self):
        super().__init__()
        self.book = make_book()
        self.open = {}
        self.now = 0.0
        self.in_work = []
        self.versions = []
        self.sources = {}

    @rule(group=st.sampled_from(["a", "b"]), incarnation=st.integers(1, 4))
    def open_group(self, group, incarnation):
        spec = make_spec(training_job="j", group=group, incarnation=incarnation, experts_L=(4,), top_k=1)
        current = self.open.get(group)
        if current is not None and incarnation < current.spec.incarnation:
            with pytest.raises(ContractError):
                open_session(self.book, spec, now=self.now)
            return
        session = open_session(self.book, spec, now=self.now).session
        assert (current is session) == (current is not None and incarnation == current.spec.incarnation)
        self.open[group] = session

    @rule(group=st.sampled_from(["a", "b"]), step=st.integers(0, 6), is_rehearsal=st.booleans())
    def report(self, group, step, is_rehearsal):
        if group in self.open:
            report_step(self.book, self.open[group], step, now=self.now, is_rehearsal=is_rehearsal)

    @rule()
    def take(self):
        work = self.book.take_work(now_seconds=0.0)
        if work is not None:
            assert work.session_id not in [other.session_id for other in self.in_work]
            assert not work.report.is_rehearsal
            self.in_work.append(work)

    @rule(is_failure=st.booleans())
    def finish(self, is_failure):
        if not self.in_work:
            return
        work = self.in_work.pop(0)
        is_open = work.session_id in [session.session_id for session in self.open.values()]
        if is_failure:
            self.book.give_up(work)
            return
        plan = self.book.install(work, solved(work), create_time_seconds=0.0)
        assert isinstance(plan, EndReason) != is_open
        if is_open:
            self.versions.append(plan.identity.version)
            assert plan.source_step > self.sources.get(work.session_id, -1)
            self.sources[work.session_id] = plan.source_step

    @rule(group=st.sampled_from(["a", "b"]))
    def close(self, group):
        session = self.open.pop(group, None)
        if session is not None:
            self.book.close(session.session_id)

    @rule(seconds=st.sampled_from([1.0, 61.0]))
    def wait(self, seconds):
        self.now += seconds
        expired = [ended.session for ended in self.book.expire(now_seconds=self.now)]
        self.open = {group: session for group, session in self.open.items() if session not in expired}

    @invariant()
    def the_book_holds_what_is_open(self):
        assert set(self.book.sessions) == set(self.open.values())
        assert self.versions == list(range(1, len(self.versions) + 1))


TestBookMachine = BookMachine.TestCase
TestBookMachine.settings = settings(max_examples=50, stateful_step_count=30, deadline=None)
