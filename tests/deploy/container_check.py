"""Asks a planner for one plan, and compares its packages with constraints.txt; see deploy/test_container.sh.

python container_check.py HOST:PORT PACKAGES.txt
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from planner_client import planner_client, read_plan
from routing_samples import make_report, make_spec
from running_planner import wait_until_serving

CONSTRAINTS = Path(__file__).parents[2] / "constraints.txt"


def ask(address: str) -> None:
    wait_until_serving(address)
    spec = make_spec()
    with planner_client(address) as client:
        plan = read_plan(client.plan_now(client.open(spec), make_report(spec, step=1)).plan, spec)
    num_guests = sum(int((guests_RK >= 0).sum()) for guests_RK in plan.guests_L)
    before, after = plan.stats.imbalance_before, plan.stats.imbalance_after
    assert num_guests > 0, "a plan without guests"
    assert after < before, (before, after)
    print(f"a plan for {len(plan.guests_L)} layers: {num_guests} guests, imbalance {before:.1%} -> {after:.1%}")


def check_pins(frozen: str) -> None:
    pins = pinned(CONSTRAINTS.read_text())
    floating = [line for line in frozen.splitlines() if pinned(line).items() - pins.items()]
    assert not floating, "not pinned by constraints.txt:\n" + "\n".join(floating)


def pinned(text: str) -> dict[str, str]:
    """The versions by package of lines like `name==1.2`; the build of torch, as in 2.13.0+cpu, may differ."""
    found = re.findall(r"^([\w.-]+)==([\w.]+)", text, flags=re.MULTILINE)
    return {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in found}


if __name__ == "__main__":
    ask(sys.argv[1])
    check_pins(Path(sys.argv[2]).read_text())
