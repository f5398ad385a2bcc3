// Create elements without parsing markup, because file names may contain markup.

const SVG = "http://www.w3.org/2000/svg";

export function h(tag, properties = {}, ...children) {
  return fill(document.createElement(tag), properties, children);
}

export function svg(tag, properties = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), properties, children);
}

function fill(element, properties, children) {
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

export const byId = (id) => document.getElementById(id);

// Announces a text to screen readers.
export function say(text) {
  // Clear the text first; otherwise screen readers would not repeat an unchanged text.
  const status = byId("status");
  status.textContent = "";
  requestAnimationFrame(() => (status.textContent = text));
}

const ICONS = {
  play: "M8 5.500v13l10.5-6.500z",
  loop: "M17 3.500l3 3-3 3M4 11.500v-1a4 4 0 0 1 4-4h12M7 20.500l-3-3 3-3M20 12.500v1a4 4 0 0 1-4 4H4",
  link: "M10 14a4 4 0 0 0 5.7 0l3-3a4 4 0 0 0-5.7-5.700l-1 1M14 10a4 4 0 0 0-5.7 0l-3 3a4 4 0 0 0 5.7 5.700l1-1",
  previous: "M15 5.5 8.5 12l6.5 6.5",
  next: "M9 5.500l6.5 6.500L9 18.5",
  close: "M6 6l12 12M18 6 6 18",
  yes: "M4.500 12.500l5 5 10-11",
  no: "M6.500 6.500l11 11M17.500 6.500l-11 11",
  file: "M12 4v11m0 0-4.5-4.500M12 15l4.5-4.500M5 19.500h14",
  keys: "M3.5 6.500h17v11h-17zM7 10.500h.01M10.300 10.500h.01M13.700 10.500h.01M17 10.500h.01M8.500 14h7",
  auto: "M12 3.500a8.5 8.5 0 1 0 0 17zM12 3.500a8.5 8.5 0 0 1 0 17",
  light: "M12 8a4 4 0 1 0 0 8 4 4 0 0 0 0-8M12 2.500v2M12 19.500v2M2.5 12h2M19.5 12h2M5.3 5.300l1.4 1.400M17.3 17.300l1.4 1.400M5.3 18.700l1.4-1.400M17.3 6.700l1.4-1.4",
  dark: "M20 14.500A8.5 8.5 0 1 1 9.5 4a7 7 0 0 0 10.5 10.500z",
};

export function icon(name) {
  return svg("svg", { viewBox: "0 0 24 24", class: `icon ${name}`, "aria-hidden": "true" }, svg("path", { d: ICONS[name] }));
}
