// Makes elements without any markup in strings, so that names from jobs stay text.

const SVG = "http://www.w3.org/2000/svg";

export const byId = (id) => document.getElementById(id);

export function el(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

export function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

// Sets text only where it differs: screen readers and selections are left in peace.
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

export function legendItem(keyClass, text) {
  return el("span", {}, el("i", { class: `key ${keyClass}`, "aria-hidden": "true" }), text);
}

export function fillTable(table, headings, rows, empty) {
  const head = el("thead", {}, el("tr", {}, ...headings.map((text) => el("th", { scope: "col" }, text))));
  const body = el("tbody", {});
  for (const row of rows) {
    const cells = row.cells.map((cell) => (cell instanceof Node ? el("td", {}, cell) : el("td", {}, String(cell))));
    body.append(el("tr", { class: row.class }, ...cells));
  }
  table.replaceChildren(...(rows.length ? [] : [el("caption", {}, empty)]), head, body);
}
