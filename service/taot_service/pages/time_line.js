// Imbalance over steps: static and planned of each plan, realised of each report.

import { byId, el, fillTable, legendItem, svg } from "/pages/dom.js";
import { decimal, percent } from "/pages/format.js";

const HEIGHT = 150;
const LEFT = 44;
const TOP = 8;
const BOTTOM = 20;
const MOST_DOTS = 40;

export function drawTimeLine(detail) {
  const box = byId("time");
  const { plans, reports } = detail;
  const steps = [...plans.map((plan) => plan.source_step), ...reports.map((report) => report.step)];
  drawLegend(detail);
  if (!steps.length) {
    box.replaceChildren(el("p", { class: "muted" }, "Waiting for the first report."));
    fillTable(byId("time-table"), [], [], "Nothing to show yet.");
    return;
  }
  const [first, last] = [Math.min(...steps), Math.max(...steps)];
  const width = Math.max(320, box.clientWidth - 2);
  const values = [...plans.flatMap((plan) => [plan.imbalance_before, plan.imbalance_after]), ...reports.map((report) => report.imbalance_realised ?? 0)];
  const most = niceTop(Math.max(...values, 0.01));
  const x = (step) => LEFT + ((step - first) / Math.max(1, last - first)) * (width - LEFT - 10);
  const y = (value) => TOP + (1 - value / most) * (HEIGHT - TOP - BOTTOM);
  const line = (kind, points) => [
    svg("path", { class: `line line-${kind}`, d: pathOf(points, x, y) }),
    ...(points.length > MOST_DOTS ? [] : dots(kind, points, x, y)),
  ];
  box.replaceChildren(
    svg(
      "svg",
      { width, height: HEIGHT, role: "img", "aria-label": summary(detail, first, last) },
      ...pauses(reports, x),
      ...axis(most, width, y),
      ...tolerance(detail, most, width, y),
      ...line("static", plans.map((plan) => [plan.source_step, plan.imbalance_before])),
      ...line("realised", reports.map((report) => [report.step, report.imbalance_realised])),
      ...line("planned", plans.map((plan) => [plan.source_step, plan.imbalance_after])),
      svg("text", { x: LEFT, y: HEIGHT - 4 }, `step ${first}`),
      svg("text", { x: width - 10, y: HEIGHT - 4, "text-anchor": "end" }, last > first ? `step ${last}` : ""),
    ),
  );
  const details = byId("time-table").closest("details");
  details.ontoggle = () => details.open && drawTable(detail);
  if (details.open) drawTable(detail);
}

function dots(kind, points, x, y) {
  const known = points.filter(([, value]) => value !== null);
  return known.map(([step, value]) => svg("circle", { class: `point point-${kind}`, cx: x(step), cy: y(value), r: 2.5 }));
}

function niceTop(value) {
  const size = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 2.5, 5, 10].map((factor) => factor * size).find((top) => top >= value * 0.999);
}

// Several micro-batches of a step stand above each other; a gap is left where nothing is known.
function pathOf(points, x, y) {
  let isDrawing = false;
  return points
    .map(([step, value]) => {
      if (value === null) {
        isDrawing = false;
        return "";
      }
      const command = isDrawing ? "L" : "M";
      isDrawing = true;
      return `${command}${x(step).toFixed(1)} ${y(value).toFixed(1)}`;
    })
    .join("");
}

function axis(most, width, y) {
  return [0, most / 2, most].flatMap((value) => [
    svg("line", { class: "grid", x1: LEFT, x2: width - 10, y1: y(value), y2: y(value) }),
    svg("text", { x: LEFT - 8, y: y(value) + 4, "text-anchor": "end" }, percent(value).replace(".0%", "%")),
  ]);
}

function tolerance(detail, most, width, y) {
  if (detail.objective !== "tolerance" || detail.tolerance > most) return [];
  return [svg("line", { class: "tolerance", x1: LEFT, x2: width - 10, y1: y(detail.tolerance), y2: y(detail.tolerance) })];
}

function pauses(reports, x) {
  return reports.flatMap((report, index) => {
    if (!report.is_paused) return [];
    const next = reports[index + 1]?.step ?? report.step;
    return [svg("rect", { class: "paused", x: x(report.step), y: TOP, width: Math.max(2, x(next) - x(report.step)), height: HEIGHT - TOP - BOTTOM })];
  });
}

function drawLegend(detail) {
  byId("time-legend").replaceChildren(
    legendItem("key-static", "static"),
    legendItem("key-planned", "planned"),
    legendItem("key-realised", "realised"),
    ...(detail.reports.some((report) => report.is_paused) ? [legendItem("key-paused", "paused")] : []),
    el("span", {}, "mean over layers"),
  );
}

function summary(detail, first, last) {
  const plan = detail.plans.at(-1);
  const planned = plan ? `${percent(plan.imbalance_before)} without guests, ${percent(plan.imbalance_after)} planned` : "no plan yet";
  return `Steps ${first} to ${last}; last ${planned}, ${percent(detail.reports.at(-1)?.imbalance_realised)} realised. The table below has the numbers.`;
}

function drawTable(detail) {
  const planOf = new Map(detail.plans.map((plan) => [`${plan.source_step} ${plan.source_micro_batch}`, plan]));
  const rows = [...detail.reports].reverse().map((report) => {
    const plan = planOf.get(`${report.step} ${report.micro_batch}`);
    return {
      cells: [
        report.step, report.micro_batch, report.applied_version ?? "\u2013",
        percent(plan?.imbalance_before), percent(plan?.imbalance_after), percent(report.imbalance_realised),
        decimal(plan?.weighted_cost), report.fallbacks, report.is_paused ? "yes" : "",
      ],
    };
  });
  const headings = ["step", "micro-batch", "plan in force", "static", "planned", "realised", "cost", "fallbacks", "paused"];
  fillTable(byId("time-table"), headings, rows, "No reports yet.");
}
