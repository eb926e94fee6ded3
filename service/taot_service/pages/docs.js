// Draws openapi.json as a page, without anything from elsewhere.

import { byId, el, fillTable } from "/pages/dom.js";

const typeId = (name) => `type-${name}`;

function typeOf(schema) {
  if (!schema) return "";
  if (schema.$ref) {
    const name = schema.$ref.split("/").at(-1);
    return el("a", { href: `#${typeId(name)}` }, name);
  }
  if (schema.anyOf) return joined(schema.anyOf.map(typeOf), " or ");
  if (schema.type === "array") return joined(["list of ", typeOf(schema.items)], "");
  return schema.type ?? "any";
}

function joined(parts, between) {
  const span = el("span");
  parts.forEach((part, index) => span.append(...(index ? [between] : []), part));
  return span;
}

function callCard(path, verb, call) {
  const card = el(
    "article",
    { class: "call" },
    el("h3", {}, el("code", {}, el("span", { class: `verb verb-${verb}` }, verb.toUpperCase()), " ", path)),
    el("p", {}, call.description ?? ""),
  );
  if (call.parameters) {
    const table = el("table");
    const rows = call.parameters.map((each) => ({ cells: [each.name, each.in, typeOf(each.schema), each.description ?? ""] }));
    fillTable(table, ["parameter", "in", "type", ""], rows, "");
    card.append(table);
  }
  const [status, answer] = Object.entries(call.responses).find(([code]) => code.startsWith("2")) ?? ["", {}];
  // A 200 without content is the stream of events; 204 has nothing to show.
  const content = Object.entries(answer.content ?? (status === "200" ? { "text/event-stream": {} } : {}));
  for (const [kind, { schema }] of content) card.append(el("p", { class: "muted" }, `Answers ${kind} `, typeOf(schema)));
  return card;
}

function typeCard(name, schema) {
  const table = el("table");
  const rows = Object.entries(schema.properties ?? {}).map(([field, each]) => ({ cells: [field, typeOf(each), each.description ?? ""] }));
  fillTable(table, ["field", "type", ""], rows, "no fields");
  return el("article", { class: "type", id: typeId(name) }, el("h3", {}, name), el("p", {}, schema.description ?? ""), table);
}

const api = await (await fetch("/openapi.json")).json();
for (const [path, calls] of Object.entries(api.paths)) {
  for (const [verb, call] of Object.entries(calls)) byId("calls").append(callCard(path, verb, call));
}
for (const [name, schema] of Object.entries(api.components.schemas)) byId("types").append(typeCard(name, schema));
