"""How long an operator's pause is kept by the planner."""

from __future__ import annotations

import pytest
from routing_samples import make_spec
from session_book_samples import make_book, open_session


@pytest.mark.parametrize(
    ("end", "next_incarnation", "stays"), [("expire", 1, True), ("expire", 2, False), ("close", 1, False)]
)
def test_a_pause_is_kept_for_a_run_whose_lease_ran_out_until_it_is_resumed(end, next_incarnation, stays):
    book = make_book()
    session = open_session(book, make_spec(training_job="j")).session
    session.is_paused = True
    assert not open_session(book, make_spec(training_job="other")).session.is_paused
    if end == "expire":
        book.expire(now_seconds=61.0)
    else:
        book.close(session.session_id)
    again = open_session(book, make_spec(training_job="j", incarnation=next_incarnation), now=61.0).session
    assert again.is_paused == stays
    again.is_paused = False
    book.expire(now_seconds=200.0)
    assert not open_session(book, make_spec(training_job="j", incarnation=next_incarnation)).session.is_paused
