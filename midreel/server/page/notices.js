// Messages that are shown in place of results.

import { h } from "./dom.js";
import { sentence } from "./format.js";

export function notice({ title, text = "", kind = "", actions = [] }) {
  return h(
    "div",
    { class: `notice ${kind}`, role: kind === "error" ? "alert" : undefined },
    h("h2", {}, title),
    ...[text].flat().map((line) => h("p", {}, line)),
    actions.length
      ? h("div", { class: "actions" }, ...actions.map(({ label, act }) => h("button", { type: "button", class: "button", onclick: act }, label)))
      : null,
  );
}

// Titles for people, by status. A problem without a status comes from the page itself and has a good title.
const TITLES = { 0: "", 404: "Not found", 503: "The server is busy" };
const NO_LIBRARY = /:(missing-library|bad-library|bad-index|bad-store)$/; // problem types with status 503

function titleOf(problem) {
  if (NO_LIBRARY.test(problem.type)) return "Library unavailable";
  if (problem.type.endsWith(":bad-query")) return "Check the query";
  return (TITLES[problem.status] ?? "Request failed") || problem.title;
}

export function failure(problem, retry) {
  return notice({
    kind: "error",
    title: titleOf(problem),
    text: sentence(problem.detail || problem.message),
    actions: retry ? [{ label: "Try again", act: retry }] : [],
  });
}

export function examples(texts, choose) {
  return h(
    "ul",
    { class: "examples", "aria-label": "Examples" },
    ...texts.map((text) => h("li", {}, h("button", { type: "button", class: "example", onclick: () => choose(text) }, text))),
  );
}
