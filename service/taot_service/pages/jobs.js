// The list of jobs: one button per session, kept in place while its figures change.

import { byId, el, setText } from "/pages/dom.js";
import { percent, plural } from "/pages/format.js";

export function drawJobs(rows, selectedId, onSelect) {
  const list = byId("jobs");
  const items = new Map([...list.children].map((item) => [item.dataset.id, item]));
  for (const row of rows) {
    const item = items.get(row.session_id) ?? newItem(row, onSelect);
    items.delete(row.session_id);
    update(item, row, row.session_id === selectedId);
    if (!item.isConnected) list.append(item);
  }
  for (const item of items.values()) item.remove();
  byId("no-jobs").hidden = rows.length > 0;
}

function newItem(row, onSelect) {
  const button = el(
    "button",
    { type: "button", class: "job" },
    el("span", { class: "name" }),
    el("span", { class: "badge", hidden: true }, "paused"),
    el("span", { class: "facts" }),
  );
  button.addEventListener("click", () => onSelect(row.session_id));
  return el("li", { "data-id": row.session_id }, button);
}

function update(item, row, isSelected) {
  const button = item.firstChild;
  const [name, badge, facts] = button.children;
  button.setAttribute("aria-current", String(isSelected));
  setText(name, `${row.training_job} / ${row.group}`);
  badge.hidden = !row.is_paused;
  const plan = row.last_plan;
  const balance = plan
    ? `${percent(plan.imbalance_before)} \u2192 ${percent(plan.imbalance_after)}`
    : "no plan yet";
  setText(facts, `${plural(row.ranks, "rank")} \u00d7 ${plural(row.layers, "layer")}, ${balance}`);
}
