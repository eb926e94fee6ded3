"""`taot observe --once` as a user runs it: planner, Prometheus and training, and nothing left behind."""

from __future__ import annotations

import os
import re
import sys

import pytest
from link_samples import eventually
from prometheus_tools import find_tool

from taot_cli.child_process import ChildFailedError, ChildProcess
from taot_cli.loopback_http import get_text
from taot_cli.overview import overview_numbers


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_overview_comes_back_through_prometheus_and_everything_ends(tmp_path):
    find_tool("prometheus")
    command = [sys.executable, "-m", "taot_cli", "observe", "--once", "--steps", "40"]
    with ChildProcess("observe", command, folder=tmp_path, environment={"COLUMNS": "200"}) as observe:
        assert eventually(lambda: not observe.is_running(), seconds=800)
    printed = (tmp_path / "observe.log").read_text()
    shown = dict(re.findall(r"│ ([\w ]+?) +│ +(\S+)(?: s)? │", printed))
    assert set(shown) == {number.title for number in overview_numbers("")}
    assert "-" not in shown.values(), "a number without data"
    assert float(shown["Imbalance without guests"].rstrip("%")) > 5
    assert float(shown["Imbalance measured"].rstrip("%")) < float(shown["Imbalance without guests"].rstrip("%"))
    urls = re.findall(r"http://127\.0\.0\.1:\d+(?:/metrics)?", printed)
    assert len(set(urls)) == 2
    assert [get_text(url) for url in urls] == [None] * len(urls)


def test_without_prometheus_it_says_what_to_do_and_starts_nothing(tmp_path):
    # An interpreter's own folder of programs is searched too: `make tools` puts the program there.
    if os.path.exists(os.path.join(os.path.dirname(sys.executable), "prometheus")):
        pytest.skip("prometheus lies beside the interpreter")
    command = [sys.executable, "-m", "taot_cli", "observe", "--once"]
    observe = ChildProcess("observe", command, folder=tmp_path, environment={"PATH": str(tmp_path)})
    with observe, pytest.raises(ChildFailedError, match="make tools"):
        eventually(lambda: not observe.is_running(), seconds=60)
