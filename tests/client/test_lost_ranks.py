"""A rank that is lost ends the others with an error that says what happened; nobody hangs. Real processes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

VICTIM = 1
BOUND_SECONDS = 300
"""Far above what all jobs together take; a hang ends here."""

FRAMEWORKS_ERROR = r"RuntimeError: .*([Cc]onnection|peer|[Ss]ocket)"
"""What ranks see that wait in the model's own token exchange, once a peer has gone."""

# They spawn processes.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(BOUND_SECONDS + 40)]


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """How every job ended, by how its rank was lost."""
    folder = tmp_path_factory.mktemp("lost")
    process = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("lost_ranks.py")), str(folder)],
        stdin=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(each for each in sys.path if each)},
        start_new_session=True,
    )
    try:
        assert process.wait(timeout=BOUND_SECONDS) == 0
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(timeout=20)
    return json.loads((folder / "outcomes.json").read_text())


def survivors(outcome: dict[str, Any]) -> list[str]:
    """What each of them printed, once it is known that all have ended with an error of their own."""
    print(f"all others had ended after {outcome['seconds']:.1f} s")
    printed = [text for rank, text in enumerate(outcome["printed"]) if rank != VICTIM]
    assert [code for rank, code in enumerate(outcome["codes"]) if rank != VICTIM] == [1] * len(printed), printed
    assert all("step 2 done" in text and "step 3 done" not in text for text in printed)
    return printed


@pytest.mark.parametrize(
    ("how", "end"), [("killed in a transfer", "failed: "), ("stopped in a transfer", r"did not end within 2\.0 s")]
)
def test_a_rank_lost_inside_a_transfer_is_named_with_expert_layer_and_step(outcomes, how, end):
    printed = survivors(outcomes[how])
    message = rf"TransferError: weights of expert \d, layer 'layers\.0', step 3 from rank {VICTIM} {end}"
    named = [text for text in printed if re.search(message, text)]
    assert named, printed
    assert all(text in named or re.search(FRAMEWORKS_ERROR, text) for text in printed), printed


def test_a_rank_lost_between_steps_is_missed_at_the_begin_of_the_next(outcomes):
    for text in survivors(outcomes["killed between steps"]):
        assert "GroupError: during the begin of step 3 a rank of the group has left or does not answer" in text


def test_ranks_started_with_different_options_are_all_told_which(outcomes):
    for text in outcomes["killed between steps"]["printed"]:
        assert "refused: the ranks disagree about options.tolerance: rank 0: '0.01', rank 1: '0.02'" in text


def test_an_interface_that_gloo_does_not_know_is_named_with_its_variable_by_every_rank(outcomes):
    for text in outcomes["killed between steps"]["printed"]:
        assert re.search(r"refused: no gloo group over the global ranks \[0, 1, 2\] could be made: .*lo", text)
        assert "GLOO_SOCKET_IFNAME is '^lo'" in text
        assert "this machine says it is at" in text
