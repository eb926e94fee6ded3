// One layer in words and numbers: why the plan is what it is, and its guests.

import { byId, el, fillTable } from "/pages/dom.js";
import { bytes, count, decimal, percent, plural, seconds } from "/pages/format.js";

let shownPlan = "";

export function drawPlan(detail, layer, downloadPath) {
  const key = `${detail.session.session_id} ${layer.layer.index} ${layer.plan?.version}`;
  const download = byId("download");
  download.hidden = !layer.plan;
  download.href = downloadPath;
  if (key === shownPlan) return;
  shownPlan = key;
  byId("explanation").replaceChildren(...(layer.plan ? explain(detail, layer) : [el("p", { class: "muted" }, "No plan yet: one follows the first report.")]));
  const rows = layer.guests.map((guest) => ({
    cells: [guest.expert, via(guest), guest.rank, count(guest.tokens), link(guest), decimal(guest.cost)],
  }));
  const none = layer.plan ? "No guests: every expert is computed at home." : "";
  fillTable(byId("plan-table"), ["expert", "home", "guest rank", "tokens", "link", "cost"], rows, none);
}

const via = (guest) => (guest.source === guest.home ? String(guest.home) : `${guest.home} via ${guest.source}`);

function link(guest) {
  return el("span", {}, el("i", { class: `link link-${Math.min(guest.level, 3)}`, "aria-hidden": "true" }), guest.level_name);
}

function explain(detail, { layer, plan, guests, gates, considered }) {
  const tokens = guests.reduce((sum, guest) => sum + guest.tokens, 0);
  const goal = detail.objective === "tolerance" ? `at most ${percent(detail.tolerance)}` : `objective ${detail.objective}`;
  const moved = guests.length
    ? `with ${plural(guests.length, "guest")} at cost ${decimal(layer.weighted_cost)}. They take over ${count(tokens)} tokens; ` +
      `${bytes(guests.length * layer.expert_size_bytes)} move.`
    : "without guests.";
  const nodes = [
    el("p", {}, `${percent(layer.imbalance_static)} \u2192 ${percent(layer.imbalance_planned)} (${goal}) ${moved}`),
    el("p", { class: "muted" }, `Plan ${plan.version}, from step ${plan.source_step}, micro-batch ${plan.source_micro_batch}.` + gain(layer)),
  ];
  if (gates.length) {
    const items = gates.map((gate) => el("li", {}, el("code", {}, gate.name), gate.text));
    nodes.push(el("ul", { class: "gates", "aria-label": "Rules that changed the plan" }, ...items));
  }
  if (considered.length) {
    const table = el("table", { class: "considered" });
    const rows = considered.map((each) => ({
      class: each.is_chosen ? "chosen" : null,
      cells: [each.is_chosen ? `${each.name} (chosen)` : each.name, percent(each.imbalance), decimal(each.weighted_cost)],
    }));
    fillTable(table, ["considered", "imbalance", "cost"], rows, "");
    nodes.push(table);
  }
  return nodes;
}

function gain(layer) {
  const value = layer.predicted_gain_seconds;
  if (!value) return "";
  return value < 0 ? ` Predicted to lose ${seconds(-value)}.` : ` Predicted to save ${seconds(value)}.`;
}
