// What stands above the drawings: whose session it is, its figures, the switch of the operator.

import { byId, el, setText } from "/pages/dom.js";
import { count, decimal, percent, plural, seconds } from "/pages/format.js";

export function drawHead(detail) {
  const { session, topology } = detail;
  setText(byId("session-title"), `${session.training_job} / ${session.group}`);
  const nodes = new Set(topology.domains.map((domains) => domains[0])).size;
  const facts = [
    `${plural(session.ranks, "rank")} on ${plural(nodes, topology.levels[0].name)}`,
    plural(session.layers, "layer"),
    `algorithm ${session.algorithm}`,
    detail.objective === "tolerance" ? `tolerance ${percent(detail.tolerance)}` : `objective ${detail.objective}`,
    `open for ${seconds(session.age_seconds)}`,
  ];
  setText(byId("session-facts"), facts.join(" \u00b7 "));
  drawPause(session.is_paused);
  drawFigures(detail);
}

export function drawPause(isPaused) {
  const button = byId("pause");
  setText(button, isPaused ? "Resume" : "Pause");
  button.title = isPaused ? "Let the ranks move guests again" : "Ask the ranks to move no guests: plain expert parallelism";
  byId("notice").hidden = !isPaused;
  if (isPaused) setText(byId("notice"), "Paused by an operator: the ranks move no guests from the step after their next report on. Plans are still made, to look at.");
}

function drawFigures({ session, plans, reports }) {
  const plan = session.last_plan;
  const newest = reports.at(-1);
  const lag = plan && newest ? newest.step - plan.source_step : null;
  const figures = [
    ["Static imbalance", percent(plan?.imbalance_before), ""],
    ["Planned", percent(plan?.imbalance_after), ""],
    ["Realised", percent(newest?.imbalance_realised), ""],
    ["Guests", count(plans.at(-1)?.guests), "all layers"],
    ["Weighted cost", decimal(plan?.weighted_cost), ""],
    ["Planning took", seconds(plan?.planning_seconds), ""],
    ["Plan", plan ? count(plan.version) : "\u2013", lag === null ? "" : lag ? `${plural(lag, "step")} old` : "current"],
    ["Reports", count(session.reports), newest ? `step ${newest.step}` : ""],
  ];
  const list = byId("figures");
  if (!list.children.length) {
    list.append(...figures.map(([name]) => el("div", {}, el("dt", {}, name), el("dd", {}, el("span"), el("small")))));
  }
  figures.forEach(([, value, note], index) => {
    const [shown, small] = list.children[index].lastChild.children;
    setText(shown, value);
    setText(small, note);
  });
}
