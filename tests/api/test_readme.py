from __future__ import annotations

import re
from pathlib import Path

from taot_api import Reason

README = Path(__file__).parents[2] / "proto" / "README.md"


def test_the_table_of_reasons_lists_exactly_the_reasons_with_their_codes():
    rows = re.findall(r"^\| ([A-Z_]+) \| ([A-Z_]+) \|", README.read_text(), flags=re.MULTILINE)
    assert rows == [(reason.name, reason.status_code) for reason in Reason]


def test_the_table_of_files_lists_files_that_exist():
    table = README.read_text().split("## Evolution")[0]
    names = re.findall(r"`((?:taot_api/)?[\w/]+\.(?:py|proto))`", table)
    assert len(names) >= 7
    for name in names:
        assert (README.parent / name).exists() or (README.parent / "taot_api" / "v1" / name).exists(), name


def test_reasons_are_fit_for_error_info():
    for reason in Reason:
        assert re.fullmatch(r"[A-Z][A-Z0-9_]{1,62}", reason.name)
        assert reason.name == reason.value[0]
