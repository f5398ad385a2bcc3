// Keyboard shortcuts. Those that are also typed can be turned off, because speech input types them by accident (WCAG 2.1.4).

import { h, icon } from "./dom.js";

const STORED = "midreel-keys";
const KEYS = [
  ["/", "Focus the search box"],
  ["↓ ↑", "Next or previous video"],
  ["Enter", "Play the moment"],
  ["Space", "Play or pause"],
  ["L", "Loop the moment"],
  ["Esc", "Stop, or leave the search box"],
  ["← →", "On the curve: 1 second back or forward. Page Up and Page Down: 10 seconds. Home and End: to the start or end."],
];

let areOn = true;
try {
  areOn = localStorage.getItem(STORED) !== "off";
} catch {
  // Without storage, they are on by default.
}
document.documentElement.toggleAttribute("data-no-keys", !areOn);

// Returns whether an event is a single-key shortcut, and those are turned on.
export function isPressed(event, key) {
  return areOn && !event.repeat && event.key.toLowerCase() === key && (key === "/" || !event.shiftKey);
}

function setEnabled(on) {
  areOn = on;
  document.documentElement.toggleAttribute("data-no-keys", !on);
  try {
    localStorage.setItem(STORED, on ? "on" : "off");
  } catch {
    // Without storage, the choice lasts until the page is closed.
  }
}

export function keysDialog() {
  const dialog = h(
    "dialog",
    { class: "sheet narrow", "aria-labelledby": "keys-title" },
    h("div", { class: "row" }, h("h2", { id: "keys-title" }, "Keyboard shortcuts"), h("button", { type: "button", class: "icon-button", "aria-label": "Close", onclick: () => dialog.close() }, icon("close"))),
    h("dl", { class: "keys" }, ...KEYS.map(([key, does]) => h("div", {}, h("dt", {}, ...key.split(" ").map((each) => h("kbd", {}, each))), h("dd", {}, does)))),
    h("label", { class: "check" }, h("input", { type: "checkbox", checked: areOn, onchange: (event) => setEnabled(event.target.checked) }), h("span", {}, "Single-key shortcuts (/ and L)")),
  );
  return dialog;
}
