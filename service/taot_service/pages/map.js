// The cluster: loads upwards, before and after; below the line guests as arcs from where they come from.

import { byId, fillTable, legendItem, el, svg } from "/pages/dom.js";
import { count, percent, plural } from "/pages/format.js";
import { arcsOf, heightsOf, placesOf } from "/pages/places.js";

const TOP = 14;
const BARS = 150;
const LABELS = 20;
const MOST_ARCS_HEIGHT = 150;
const LEFT = 44;
const LEAST_PITCH = 4;
const MOST_PITCH = 96;
const DENSE_ARCS = 60;

export function drawMap(detail, layer) {
  const box = byId("map");
  const shown = placesOf(detail.topology);
  drawLegend(detail.topology, layer, shown);
  if (!layer.loads) {
    box.replaceChildren(el("p", { class: "muted" }, "Loads appear with the first plan."));
    fillTable(byId("map-table"), [], [], "Nothing to show yet.");
    return;
  }
  const view = measure(box, shown, layer, detail.topology.speeds_milli);
  const scrolled = box.scrollLeft;
  box.classList.remove("tracing");
  box.replaceChildren(
    svg(
      "svg",
      { class: view.drawn.length > DENSE_ARCS ? "dense" : null, width: view.width, height: view.height, role: "img", "aria-label": summary(layer, shown) },
      ...domains(view, shown),
      ...axis(view),
      ...bars(view, shown),
      ...arcs(view, shown),
      ...hits(view, shown, layer),
    ),
  );
  box.scrollLeft = scrolled;
  const details = byId("map-table").closest("details");
  details.ontoggle = () => details.open && drawTable(shown, layer);
  if (details.open) drawTable(shown, layer);
}

function measure(box, shown, layer, speeds) {
  const num = shown.places.length;
  const pitch = Math.max(LEAST_PITCH, Math.min(MOST_PITCH, (box.clientWidth - LEFT - 4) / num));
  const planned = heightsOf(layer.loads.planned, speeds, shown.places);
  const before = heightsOf(layer.loads.static, speeds, shown.places);
  const realised = layer.realised && layer.realised.some(Boolean) ? heightsOf(layer.realised, speeds, shown.places) : null;
  const total = layer.loads.planned.reduce((sum, load) => sum + load, 0);
  const mean = (total * 1000) / speeds.reduce((sum, speed) => sum + speed, 0);
  const most = Math.max(...before, ...planned, mean, 1) * 1.04;
  const drawn = arcsOf(layer.guests, shown.placeOf);
  const spread = Math.max(1, ...drawn.map((arc) => Math.abs(arc.from - arc.to)));
  const depth = drawn.length ? Math.min(MOST_ARCS_HEIGHT, 34 + spread * pitch * 0.32) : 0;
  return {
    pitch, before, planned, realised, mean, drawn, spread, depth,
    width: LEFT + pitch * num + 4,
    height: TOP + BARS + LABELS + depth + 4,
    x: (place) => LEFT + (place + 0.5) * pitch,
    y: (load) => TOP + BARS - (load / most) * BARS,
    most,
  };
}

function domains(view, shown) {
  const bands = [];
  shown.places.forEach((place, index) => {
    if (!bands.length || bands.at(-1).band !== place.band) bands.push({ band: place.band, first: index, last: index });
    bands.at(-1).last = index;
  });
  if (bands.length === 1) return [];
  return bands.flatMap((band) => {
    const [left, right] = [view.x(band.first) - view.pitch / 2, view.x(band.last) + view.pitch / 2];
    const text = right - left > 58 ? `${shown.bandName} ${band.band}` : right - left > 18 ? String(band.band) : "";
    return [
      svg("rect", { class: "domain", x: left + 1, y: TOP, width: right - left - 2, height: BARS + LABELS, rx: 4 }),
      svg("text", { x: (left + right) / 2, y: TOP + BARS + 14, "text-anchor": "middle" }, text),
    ];
  });
}

function axis(view) {
  const y = view.y(view.mean);
  return [
    svg("line", { class: "grid", x1: LEFT - 4, x2: view.width, y1: TOP + BARS, y2: TOP + BARS }),
    svg("line", { class: "mean", x1: LEFT - 4, x2: view.width, y1: y, y2: y }),
    svg("text", { x: LEFT - 8, y: y + 4, "text-anchor": "end" }, "mean"),
    svg("text", { x: LEFT - 8, y: TOP + BARS + 4, "text-anchor": "end" }, "0"),
  ];
}

function bars(view, shown) {
  const width = Math.max(1.5, Math.min(13, view.pitch * 0.36));
  return shown.places.flatMap((_, index) => {
    const x = view.x(index);
    const bar = (kind, load, left) =>
      svg("rect", { class: `bar ${kind}`, x: left, y: view.y(load), width, height: TOP + BARS - view.y(load), rx: Math.min(1.5, width / 3) });
    const nodes = [bar("bar-static", view.before[index], x - width - 0.5), bar("bar-planned", view.planned[index], x + 0.5)];
    if (view.realised) {
      const y = view.y(Math.min(view.realised[index], view.most));
      nodes.push(svg("line", { class: "tick-realised", x1: x - 0.5, x2: x + width + 1.5, y1: y, y2: y }));
    }
    return nodes;
  });
}

function arcs(view, shown) {
  const base = TOP + BARS + LABELS;
  const widest = Math.max(...view.drawn.map((arc) => arc.experts.length), 1);
  const nodes = [];
  for (const arc of view.drawn) {
    const names = { class: `arc link-${Math.min(arc.level, 3)}`, "data-ends": `${arc.from} ${arc.to}` };
    if (arc.from === arc.to) {
      const attributes = { class: `inside link-${Math.min(arc.level, 3)}`, x: view.x(arc.from), y: base + 10, "text-anchor": "middle" };
      if (view.pitch > 10) nodes.push(svg("text", attributes, String(arc.experts.length)));
      continue;
    }
    const [from, to] = [view.x(arc.from), view.x(arc.to)];
    const depth = 16 + (view.depth - 22) * Math.sqrt(Math.abs(arc.from - arc.to) / view.spread);
    const width = 1.25 + (shown.level < 0 ? 0 : (2 * (arc.experts.length - 1)) / widest);
    const path = `M${from} ${base}C${from} ${base + depth * 1.3} ${to} ${base + depth * 1.3} ${to} ${base + 4}`;
    nodes.push(svg("path", { ...names, d: path, "stroke-width": width }));
    nodes.push(svg("circle", { ...names, class: `arc-end link-${Math.min(arc.level, 3)}`, cx: to, cy: base + 3, r: Math.min(3, view.pitch / 3) }));
  }
  return nodes;
}

// A column over each place: says its figures, and shows its own arcs alone.
function hits(view, shown, layer) {
  return shown.places.map((place, index) => {
    const box = { class: "hit", x: view.x(index) - view.pitch / 2, y: 0, width: view.pitch, height: view.height };
    const hit = svg("rect", box, svg("title", {}, tell(place, index, view, layer)));
    hit.addEventListener("pointerenter", () => trace(index));
    hit.addEventListener("pointerleave", () => byId("map").classList.remove("tracing"));
    return hit;
  });
}

function trace(index) {
  const map = byId("map");
  map.classList.add("tracing");
  for (const node of map.querySelectorAll("[data-ends]")) {
    node.classList.toggle("traced", node.dataset.ends.split(" ").includes(String(index)));
  }
}

function tell(place, index, view, layer) {
  const ranks = new Set(place.ranks);
  const hosted = layer.guests.filter((guest) => ranks.has(guest.rank)).map((guest) => guest.expert);
  const given = layer.guests.filter((guest) => ranks.has(guest.source)).map((guest) => guest.expert);
  const lines = [
    place.ranks.length > 1 ? `${place.name}: ${plural(place.ranks.length, "rank")}, the fullest one` : place.name,
    `static ${count(view.before[index])}, planned ${count(view.planned[index])}`,
  ];
  if (view.realised) lines.push(`realised ${count(view.realised[index])}`);
  lines.push(`guests: ${hosted.join(", ") || "none"}`, `lent out: ${given.join(", ") || "none"}`);
  return lines.join("\n");
}

function summary(layer, shown) {
  const unit = shown.level < 0 ? "rank" : `${shown.unit}, of each its fullest rank`;
  return (
    `Tokens per ${unit}: imbalance ${percent(layer.layer.imbalance_static)} without guests, ` +
    `${percent(layer.layer.imbalance_planned)} with ${plural(layer.guests.length, "guest")}. The table below has the numbers.`
  );
}

function drawLegend(topology, layer, shown) {
  const counts = topology.levels.map((_, level) => layer.guests.filter((guest) => guest.level === level).length);
  byId("map-legend").replaceChildren(
    el("span", {}, shown.level < 0 ? "tokens per rank:" : `tokens of the fullest rank per ${shown.unit}:`),
    legendItem("key-static", "static"),
    legendItem("key-planned", "planned"),
    legendItem("key-realised", "realised"),
    ...topology.levels.map((level, index) =>
      legendItem(`link link-${Math.min(index, 3)}`, `${plural(counts[index], "guest")} ${index && index === topology.levels.length - 1 ? "across the" : "within a"} ${level.name}`),
    ),
  );
}

function drawTable(shown, layer) {
  const rows = shown.places.flatMap((place) => place.ranks).map((rank) => ({
    cells: [
      rank,
      shown.places[shown.placeOf[rank]].band,
      count(layer.loads.static[rank]),
      count(layer.loads.planned[rank]),
      layer.realised ? count(layer.realised[rank]) : "\u2013",
      layer.guests.filter((guest) => guest.rank === rank).map((guest) => guest.expert).join(", ") || "\u2013",
    ],
  }));
  fillTable(byId("map-table"), ["rank", shown.bandName, "static", "planned", "realised", "guest experts"], rows, "No ranks.");
}
