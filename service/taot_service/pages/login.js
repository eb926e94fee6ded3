// Shows a token to the planner once; a cookie that scripts cannot read stands for it afterwards.

import { byId, setText } from "/pages/dom.js";

const TOLD = {
  401: "The planner does not know this token.",
  403: "This token is not for looking at the planner.",
  429: "Refused too often: try again in a few seconds.",
};

async function logIn(event) {
  event.preventDefault();
  const field = byId("token");
  const token = field.value.trim();
  try {
    // Headers hold ASCII only, as tokens do.
    const isToken = /^[\x21-\x7e]+$/.test(token);
    const status = isToken ? await show(token) : 401;
    if (status === 204) location.replace("/");
    else setText(byId("said"), TOLD[status] ?? `The planner answered ${status}.`);
  } catch {
    setText(byId("said"), "The planner does not answer.");
  }
  field.select();
}

async function show(token) {
  const headers = { Authorization: `Bearer ${token}`, "X-Taot-Request": "1" };
  return (await fetch("/login", { method: "POST", headers })).status;
}

byId("login").addEventListener("submit", logIn);
