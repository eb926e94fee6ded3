// The strip of layers: a column each, static above planned above realised, coloured by imbalance.

import { byId, el, setText } from "/pages/dom.js";
import { percent } from "/pages/format.js";

const BOUNDS = [0.02, 0.05, 0.1, 0.25, 0.5, 1];

const WIDEST_CELL = 44;

const heatOf = (value) =>
  value === null ? "heat-unknown" : `heat-${BOUNDS.filter((bound) => value > bound).length}`;

let shownLayers = "";

export function drawLayers(layers, selected, onSelect) {
  const strip = byId("layers");
  const key = layers.map((layer) => layer.name).join("\n");
  if (key !== shownLayers || strip.children.length !== layers.length) {
    strip.replaceChildren(...layers.map((layer) => newCell(layer, layers.length, onSelect)));
    strip.style.maxWidth = `${layers.length * WIDEST_CELL}px`;
    shownLayers = key;
    drawLegend();
  }
  for (const layer of layers) updateCell(strip.children[layer.index], layer, layer.index === selected);
}

function newCell(layer, numLayers, onSelect) {
  const cell = el("div", { class: "cell", role: "option" }, el("i"), el("i"), el("i"), el("b", {}, String(layer.index)));
  const goTo = (index) => {
    const next = Math.max(0, Math.min(numLayers - 1, index));
    onSelect(next);
    byId("layers").children[next].focus();
  };
  const rowLength = () => getComputedStyle(byId("layers")).gridTemplateColumns.split(" ").length;
  cell.addEventListener("click", () => goTo(layer.index));
  cell.addEventListener("keydown", (event) => {
    const moves = {
      ArrowLeft: layer.index - 1,
      ArrowRight: layer.index + 1,
      ArrowUp: layer.index - rowLength(),
      ArrowDown: layer.index + rowLength(),
      Home: 0,
      End: numLayers - 1,
      Enter: layer.index,
      " ": layer.index,
    };
    if (!(event.key in moves) || event.ctrlKey || event.altKey || event.metaKey) return;
    event.preventDefault();
    goTo(moves[event.key]);
  });
  return cell;
}

function updateCell(cell, layer, isSelected) {
  const figures = [layer.imbalance_static, layer.imbalance_planned, layer.imbalance_realised];
  figures.forEach((value, row) => cell.children[row].setAttribute("class", heatOf(value)));
  const [before, planned, realised] = figures.map(percent);
  const label = `${layer.name}: static ${before}, planned ${planned}, realised ${realised}`;
  if (cell.getAttribute("aria-label") !== label) {
    cell.setAttribute("aria-label", label);
    cell.title = label;
  }
  cell.setAttribute("aria-selected", String(isSelected));
  cell.tabIndex = isSelected ? 0 : -1;
}

function drawLegend() {
  const steps = [...BOUNDS.keys(), BOUNDS.length].map((step) => el("i", { class: `heat-${step}` }));
  byId("layers-legend").replaceChildren(
    el("span", {}, "imbalance 0", el("span", { class: "scale", "aria-hidden": "true" }, ...steps), `above ${percent(BOUNDS.at(-1))}`),
  );
}

export function drawNoLayers(text) {
  setText(byId("layers-empty"), text);
  byId("layers-empty").hidden = !text;
}
