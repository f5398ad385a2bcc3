// Which keys do what, and whether those that are letters or signs do anything: whoever dictates types many by chance.

import { h, icon } from "./dom.js";

const STORED = "midreel-keys";
const KEYS = [
  ["/", "Go to the search box"],
  ["↓ ↑", "Next and previous video"],
  ["Enter", "Play the moment"],
  ["Space", "Play and stop"],
  ["L", "Loop the moment"],
  ["Esc", "Stop, or leave the box"],
  ["← →", "On the curve: a second back and forth; Page keys ten, Home and End all the way"],
];

let areOn = true;
try {
  areOn = localStorage.getItem(STORED) !== "off";
} catch {
  // Then they are on until somebody says otherwise.
}
document.documentElement.toggleAttribute("data-no-keys", !areOn);

// Whether an event is this key alone, of those that are also typed.
export function isPressed(event, key) {
  return areOn && !event.repeat && event.key.toLowerCase() === key && (key === "/" || !event.shiftKey);
}

function turn(on) {
  areOn = on;
  document.documentElement.toggleAttribute("data-no-keys", !on);
  try {
    localStorage.setItem(STORED, on ? "on" : "off");
  } catch {
    // Then until the page is closed.
  }
}

export function keysDialog() {
  const dialog = h(
    "dialog",
    { class: "sheet narrow", "aria-labelledby": "keys-title" },
    h("div", { class: "row" }, h("h2", { id: "keys-title" }, "Keys"), h("button", { type: "button", class: "icon-button", "aria-label": "Close", onclick: () => dialog.close() }, icon("close"))),
    h("dl", { class: "keys" }, ...KEYS.map(([key, does]) => h("div", {}, h("dt", {}, ...key.split(" ").map((each) => h("kbd", {}, each))), h("dd", {}, does)))),
    h("label", { class: "check" }, h("input", { type: "checkbox", checked: areOn, onchange: (event) => turn(event.target.checked) }), h("span", {}, "Single-key shortcuts: / and L")),
  );
  return dialog;
}
