"""The token file, logins and the bound of refusals: all without a network."""

from __future__ import annotations

import hashlib
import hmac

import pytest
from access_samples import JOB_A, READ, UNKNOWN
from typer.testing import CliRunner

from taot_cli.__main__ import app
from taot_service import tokens
from taot_service.failure_bound import BURST, MAX_PEERS, FailureBound
from taot_service.logins import LIFETIME_SECONDS, MAX_LOGINS, Logins
from taot_service.tokens import MAX_LINES, Grant, Role, digest_of, format_line, make_token, parse_tokens


def test_several_lines_for_one_token_grant_all_that_they_say():
    lines = [format_line(what, JOB_A) for what in ("job=a", "job=b.2", "admin", "read")]
    book = parse_tokens("\n".join([*lines, "# a remark", "", format_line("read", READ) + "# mine"]))
    grant = book.find(JOB_A)
    assert (grant.jobs, grant.role) == (frozenset({"a", "b.2"}), Role.ADMIN)
    assert book.find(READ) == Grant(digest=hashlib.sha256(READ.encode()).digest(), role=Role.READ)
    for token in (UNKNOWN, "", JOB_A + " ", JOB_A[:-1], "x" * 10_000, digest_of(JOB_A).hex(), "\ud800"):
        assert book.find(token) is None


@pytest.mark.parametrize("text", ["", "\n", "# tokens of our jobs\n"])
def test_a_file_that_grants_nothing_is_none(text):
    with pytest.raises(ValueError, match="grants nothing"):
        parse_tokens(text)


def test_a_star_is_every_job_and_no_name_is_a_pattern():
    book = parse_tokens(f"{format_line('job=*', JOB_A)}\n{format_line('job=a.b', READ)}")
    assert book.find(JOB_A).has_job("any")
    assert book.find(READ).has_job("a.b")
    assert not book.find(READ).has_job("axb")
    assert not book.find(READ).has_job("*")


@pytest.mark.parametrize(
    "line",
    ["read", "write " + 64 * "0", "job= " + 64 * "0", "job=a/b " + 64 * "0", "read " + 64 * "g", "job=a s3cret x"],
)
def test_a_wrong_line_is_told_by_its_number_and_never_quoted(line):
    with pytest.raises(ValueError, match="^line 3 must") as caught:
        parse_tokens(f"# tokens\n\n{line}\n")
    for word in line.split():
        assert len(word) < 6 or word not in str(caught.value)


def test_grants_are_bounded_since_all_are_compared():
    lines = [format_line("read", str(number)) for number in range(MAX_LINES)]
    parse_tokens("\n".join(lines))
    with pytest.raises(ValueError, match="more than 1000 grants"):
        parse_tokens("\n".join([*lines, lines[0]]))


def test_all_digests_are_compared_in_constant_time_whichever_is_right(monkeypatch):
    compared = []

    def compare_digest(first, second):
        compared.append((first, second))
        return hmac.compare_digest(first, second)

    names = [make_token() for _ in range(5)]
    book = parse_tokens("\n".join(format_line("read", name) for name in names))
    monkeypatch.setattr(tokens, "hmac", type("_", (), {"compare_digest": staticmethod(compare_digest)}))
    for name in (*names, UNKNOWN):
        compared.clear()
        assert (book.find(name) is not None) == (name in names)
        assert [first for first, _ in compared] == [digest_of(each) for each in names]


def test_the_command_makes_a_token_that_its_lines_grant_what_was_asked(tmp_path):
    def run(*words: str) -> str:
        result = CliRunner().invoke(app, ["token", "new", *words])
        assert result.exit_code == 0, result.output
        return result.stdout

    token, *lines = run("--job", "a", "--job", "b", "--read").splitlines()
    grant = parse_tokens("\n".join(lines)).find(token)
    assert (grant.jobs, grant.role) == (frozenset("ab"), Role.READ)
    file = tmp_path / "tokens"
    file.write_text(format_line("read", READ))  # without an end of line
    added = [run("--admin", "--file", str(file)).strip(), run("--job", "*", "--file", str(file)).strip()]
    book = parse_tokens(file.read_text())
    assert [book.find(each).role for each in (READ, *added)] == [Role.READ, Role.ADMIN, Role.NONE]
    assert not any(each in file.read_text() for each in added)
    for wrong in ((), ("--job", "a b")):
        assert CliRunner().invoke(app, ["token", "new", *wrong]).exit_code == 2


def test_a_login_ends_by_itself_on_leaving_and_for_newer_ones_of_its_token():
    logins = Logins()
    first, second = (logins.open(digest, now_seconds=0.0) for digest in (b"1", b"2"))
    assert logins.find(first, now_seconds=LIFETIME_SECONDS - 1) == b"1"
    assert logins.find(first, now_seconds=LIFETIME_SECONDS) is None
    assert logins.find("made up", now_seconds=0.0) is None
    logins.close(second)
    assert logins.find(second, now_seconds=0.0) is None
    crowd = [logins.open(b"3", now_seconds=1.0) for _ in range(2 * MAX_LOGINS)]
    assert logins.find(first, now_seconds=1.0) == b"1", "those of another token log nobody out"
    found = [logins.find(key, now_seconds=1.0) is not None for key in crowd]
    assert found == (MAX_LOGINS + 1) * [False] + (MAX_LOGINS - 1) * [True]
    later = LIFETIME_SECONDS + 1.0
    kept = [logins.open(b"3", now_seconds=later) for _ in range(MAX_LOGINS)]
    assert logins.find(kept[0], now_seconds=later) == b"3", "those that have ended take no room"


def test_refusals_of_one_peer_are_bounded_and_hold_up_nobody_else():
    bound = FailureBound()
    answers = [bound.note("a", now_seconds=0.0) for _ in range(BURST + 5)]
    assert [answer.is_within_bound for answer in answers] == BURST * [True] + 5 * [False]
    assert [answer.is_first for answer in answers] == [True] + (BURST + 4) * [False]
    assert bound.note("b", now_seconds=0.0) == (True, True)
    assert bound.note("a", now_seconds=1.0) == (True, False)  # one a second is forgotten
    assert bound.note("a", now_seconds=1.0) == (False, False)
    assert bound.note("a", now_seconds=1000.0) == (True, True)
    for number in range(MAX_PEERS):
        bound.note(str(number), now_seconds=1000.0)
    assert bound.note("a", now_seconds=1000.0).is_first  # forgotten: memory is bounded
