// The live page: keeps which session and layer are chosen, and draws again when the planner tells of a change.

import { byId, setText } from "/pages/dom.js";
import { drawJobs } from "/pages/jobs.js";
import { drawLayers, drawNoLayers } from "/pages/layers.js";
import { drawMap } from "/pages/map.js";
import { drawPlan } from "/pages/plan_panel.js";
import { askAccess, askLayer, askSession, follow, Gone, leaveForLogin, logOut, planPath, setPaused } from "/pages/planner_api.js";
import { drawHead, drawPause } from "/pages/session_head.js";
import { drawTimeLine } from "/pages/time_line.js";

const LEAST_MS_BETWEEN_DRAWINGS = 500;

const state = { rows: [], sessionId: null, layer: null, detail: null, shownLayer: null };
let isLoading = false;
let isStale = false;

const rowOf = (sessionId) => state.rows.find((row) => row.session_id === sessionId);

function say(text) {
  byId("said").textContent = text;
}

// The address names job, group and layer, so that it still holds when the job is started again.
function readAddress() {
  const wanted = new URLSearchParams(location.hash.slice(1));
  const row = state.rows.find((each) => each.training_job === wanted.get("job") && each.group === wanted.get("group"));
  const layer = /^\d+$/.test(wanted.get("layer") ?? "") ? Number(wanted.get("layer")) : null;
  return { row, layer };
}

function writeAddress() {
  const row = rowOf(state.sessionId);
  if (!row) return;
  const parts = new URLSearchParams({ job: row.training_job, group: row.group });
  if (state.layer !== null) parts.set("layer", state.layer);
  history.replaceState(null, "", `#${parts}`);
}

function chooseSession(sessionId, layer = null) {
  Object.assign(state, { sessionId, layer, detail: null, shownLayer: null });
  writeAddress();
  drawJobs(state.rows, sessionId, chooseSession);
  load();
}

function chooseLayer(index) {
  if (index === state.layer) return;
  state.layer = index;
  writeAddress();
  drawLayers(state.detail.layers, index, chooseLayer);
  load();
}

// One load at a time; what changes meanwhile is loaded once more afterwards.
async function load() {
  isStale = true;
  if (isLoading) return;
  isLoading = true;
  try {
    while (isStale && state.sessionId) {
      isStale = false;
      await loadOnce(state.sessionId);
      if (isStale && state.shownLayer?.layer.index === state.layer) {
        await new Promise((done) => setTimeout(done, LEAST_MS_BETWEEN_DRAWINGS));
      }
    }
  } finally {
    isLoading = false;
  }
}

async function loadOnce(sessionId) {
  try {
    const wanted = state.layer;
    const [detail, early] = await Promise.all([askSession(sessionId), wanted === null ? null : askLayer(sessionId, wanted)]);
    const layer = chosenLayer(detail);
    const shownLayer = layer === wanted ? early : await askLayer(sessionId, layer);
    if (sessionId !== state.sessionId) return;
    if (state.layer !== null && layer !== state.layer && detail.layers[state.layer]) return;
    Object.assign(state, { detail, layer, shownLayer });
    draw();
  } catch (error) {
    // A session that has ended leaves the list with the next event; a lost planner is told by the stream.
    if (!(error instanceof Gone)) console.warn(String(error));
  }
}

// At first the layer that is worst without guests: it is what an operator looks for.
function chosenLayer(detail) {
  if (!detail.layers.length) return null;
  if (state.layer !== null && state.layer < detail.layers.length) return state.layer;
  return detail.layers.reduce((worst, layer) => (layer.imbalance_static > worst.imbalance_static ? layer : worst)).index;
}

function draw() {
  const { detail, shownLayer, layer } = state;
  byId("empty").hidden = true;
  byId("content").hidden = false;
  drawHead(detail);
  drawNoLayers(detail.layers.length ? "" : "This group has no mixture-of-experts layers: there is nothing to plan.");
  byId("layers").parentElement.hidden = !detail.layers.length;
  byId("map").closest(".pair").hidden = !detail.layers.length;
  drawLayers(detail.layers, layer, chooseLayer);
  if (shownLayer) {
    setText(byId("map-title"), `Cluster, ${shownLayer.layer.name}`);
    setText(byId("plan-title"), `Plan of ${shownLayer.layer.name}`);
    drawMap(detail, shownLayer);
    drawPlan(detail, shownLayer, planPath(state.sessionId));
  }
  drawTimeLine(detail);
  document.title = `${detail.session.training_job} / ${detail.session.group} \u00b7 TAOT planner`;
  performance.mark("drawn");
  document.body.dataset.drawn = `${state.sessionId} ${layer} ${detail.session.reports}`;
}

function drawEmpty() {
  byId("empty").hidden = false;
  byId("content").hidden = true;
  byId("grpc-host").textContent = location.hostname;
  document.title = "TAOT planner";
  document.body.dataset.drawn = "empty";
}

function onSessions(told) {
  byId("connection").dataset.state = "live";
  setText(byId("planner-state"), `${told.state} \u00b7 release ${told.release} \u00b7 epoch ${told.planner_epoch.slice(0, 8)}`);
  const before = rowOf(state.sessionId);
  state.rows = told.sessions;
  let next = state.sessionId;
  let layer = state.layer;
  if (!rowOf(next)) {
    const heir = before && told.sessions.find((row) => row.training_job === before.training_job && row.group === before.group);
    const wanted = readAddress();
    next = (heir ?? wanted.row ?? told.sessions.at(-1))?.session_id ?? null;
    layer = heir || wanted.row ? (layer ?? wanted.layer) : null;
    if (before && !heir) say(`Session ${before.training_job} / ${before.group} has ended.`);
  }
  if (next === null) {
    Object.assign(state, { sessionId: null, layer: null, detail: null });
    drawJobs([], null, chooseSession);
    drawEmpty();
  } else if (next !== state.sessionId) {
    chooseSession(next, layer);
  } else {
    drawJobs(state.rows, next, chooseSession);
    load();
  }
}

function onSession(told) {
  state.rows = state.rows.map((row) => (row.session_id === told.session_id ? told : row));
  drawJobs(state.rows, state.sessionId, chooseSession);
  if (told.session_id === state.sessionId) load();
}

function onLost() {
  byId("connection").dataset.state = "lost";
  setText(byId("planner-state"), "the planner does not answer, trying again");
  say("The planner does not answer.");
}

async function switchPause() {
  const button = byId("pause");
  const row = rowOf(state.sessionId);
  button.disabled = true;
  try {
    const told = await setPaused(state.sessionId, !row.is_paused);
    drawPause(told.is_paused);
    say(told.is_paused ? "Paused." : "Resumed.");
    onSession(told);
  } catch (error) {
    say(`That did not work: ${error.message}`);
  } finally {
    button.disabled = false;
    button.focus();
  }
}

// Who may only look sees no button to pause, and who has not logged in none to log out.
async function showAccess() {
  const access = await askAccess();
  byId("log-out").hidden = !access.needs_token;
  byId("pause").hidden = access.role !== "admin";
}

async function leave() {
  await logOut();
  leaveForLogin();
}

let resizing = 0;
addEventListener("resize", () => {
  clearTimeout(resizing);
  resizing = setTimeout(() => state.detail && draw(), 100);
});
byId("log-out").addEventListener("click", leave);
byId("pause").addEventListener("click", switchPause);
addEventListener("hashchange", () => {
  const { row, layer } = readAddress();
  if (row) chooseSession(row.session_id, layer);
});
showAccess().catch((error) => console.warn(String(error)));
follow({ onSessions, onSession, onLost });
