// What is said instead of results.

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

// What HTTP calls an error is for programs; a problem that has no status has been put into words here.
const TITLES = { 0: "", 404: "Not found", 503: "The server is busy" };
const NO_LIBRARY = /:(missing-library|bad-library|bad-index|bad-store)$/; // types of problems that are also 503

function titleOf(problem) {
  if (NO_LIBRARY.test(problem.type)) return "The library cannot be used";
  return (TITLES[problem.status] ?? "That did not work") || problem.title;
}

export function failure(problem, again) {
  return notice({
    kind: "error",
    title: titleOf(problem),
    text: sentence(problem.detail || problem.message),
    actions: again ? [{ label: "Try again", act: again }] : [],
  });
}

export function examples(texts, choose) {
  return h(
    "ul",
    { class: "examples", "aria-label": "Examples" },
    ...texts.map((text) => h("li", {}, h("button", { type: "button", class: "example", onclick: () => choose(text) }, text))),
  );
}
