// What the planner is asked, and how it tells what has changed.

const PAUSE_BEFORE_RETRY_MS = 2000;

export class Gone extends Error {}

let isLeaving = false;

// Once: each further answer without a login would abort the way there and begin it anew.
export function leaveForLogin() {
  if (isLeaving) return;
  isLeaving = true;
  location.assign("/login");
}

async function ask(path, options = {}) {
  const response = await fetch(path, { cache: "no-store", ...options });
  if (response.status === 401) leaveForLogin();
  if (response.status === 404) throw new Gone(path);
  if (!response.ok) throw new Error(`${path} answered ${response.status}`);
  return response.status === 204 ? null : response.json();
}

const pathOf = (sessionId) => `/v1/sessions/${encodeURIComponent(sessionId)}`;

export const askSession = (sessionId) => ask(pathOf(sessionId));
export const askLayer = (sessionId, index) => ask(`${pathOf(sessionId)}/layers/${index}`);
export const planPath = (sessionId) => `${pathOf(sessionId)}/plan`;

const change = (path) => ask(path, { method: "POST", headers: { "X-Taot-Request": "1" } });

export const setPaused = (sessionId, isPaused) => change(`${pathOf(sessionId)}/${isPaused ? "pause" : "resume"}`);
export const askAccess = () => ask("/v1/access");
export const logOut = () => change("/logout");

// Follows the planner while the page is seen: a hidden page takes no connection.
export function follow({ onSessions, onSession, onLost }) {
  let source = null;
  let retry = 0;

  function close() {
    clearTimeout(retry);
    if (source) source.close();
    source = null;
  }

  function open() {
    close();
    source = new EventSource("/v1/events");
    source.addEventListener("sessions", (event) => onSessions(JSON.parse(event.data)));
    source.addEventListener("session", (event) => onSession(JSON.parse(event.data)));
    const lost = () => {
      close();
      onLost();
      askAccess().catch(() => {}); // whose login has ended goes to log in again
      retry = setTimeout(open, PAUSE_BEFORE_RETRY_MS);
    };
    source.addEventListener("end", lost);
    source.addEventListener("error", lost);
  }

  document.addEventListener("visibilitychange", () => (document.hidden ? close() : open()));
  if (!document.hidden) open();
}
