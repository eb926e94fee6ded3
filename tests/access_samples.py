"""Tokens of tests, and the file that grants them something."""

from __future__ import annotations

from pathlib import Path

from taot_service.tokens import format_line, make_token

JOB_A, JOB_B, ANY_JOB, READ, ADMIN, UNKNOWN = (make_token() for _ in range(6))

GRANTS = (("job=job-a", JOB_A), ("job=job-b", JOB_B), ("job=*", ANY_JOB), ("read", READ), ("admin", ADMIN))


def write_tokens(path: Path, grants: tuple[tuple[str, str], ...] = GRANTS) -> Path:
    """Writes a token file in one go, as tools that rotate do."""
    partial = path.with_suffix(".partial")
    partial.write_text("# of tests\n\n" + "".join(format_line(*grant) + "  # a remark\n" for grant in grants))
    partial.replace(path)
    return path


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}
