// The curve: the score over the whole video, with its moments shaded.

import { h, svg } from "./dom.js";
import { clock, ending, span } from "./format.js";

const WIDTH = 1000;
const HEIGHT = 100;

function area(curve, duration, [low, high]) {
  const reach = high - low || 1;
  const points = curve.times.map((time, k) => {
    const level = Math.min(1, Math.max(0, (curve.values[k] - low) / reach));
    return [(time / duration) * WIDTH, HEIGHT - 4 - level * (HEIGHT - 12)];
  });
  if (!points.length) return "";
  const first = [0, points[0][1]];
  const last = [WIDTH, points.at(-1)[1]];
  return [first, ...points, last].map(([x, y]) => `${x.toFixed(1)},${y.toFixed(1)}`).join(" ");
}

// All hits share one scale, so that a weak match has a flat curve.
export function scaleOf(hits) {
  const values = hits.flatMap((hit) => hit.curve.values);
  return values.length ? [Math.max(0, Math.min(...values)), Math.max(...values)] : [0, 1];
}

export function momentsOf(hit) {
  const { start, end, start_range, end_range, score, part } = hit;
  return [{ start, end, start_range, end_range, score, part }, ...hit.alternatives];
}

// A gradient that fades in over the range of the start, and out over the range of the end.
function soft(id, { start_range, end_range }, [from, to]) {
  const at = (time) => (to > from ? (time - from) / (to - from) : 0.5);
  let [full, fading] = [at(start_range[1]), at(end_range[0])];
  if (full > fading) full = fading = (full + fading) / 2; // the ranges of a short moment may overlap
  const stops = [[0, 0], [full, 1], [fading, 1], [1, 0]];
  return svg(
    "linearGradient",
    { id },
    ...stops.map(([offset, opacity]) => svg("stop", { offset: offset.toFixed(3), "stop-opacity": opacity })),
  );
}

let drawn = 0;

function drawing(hit, scale) {
  const { duration } = hit.video;
  const x = (time) => (time / duration) * WIDTH;
  const line = area(hit.curve, duration, scale);
  const below = `0,${HEIGHT} ${line} ${WIDTH},${HEIGHT}`;
  const id = `moments-${(drawn += 1)}`;
  const box = (start, end, properties = {}) =>
    svg("rect", { x: x(start).toFixed(1), y: 0, width: Math.max(3, x(end) - x(start)).toFixed(1), height: HEIGHT, ...properties });
  const shade = (moment, k) => {
    const place = k ? "shade other" : "shade";
    if (!moment.start_range || !moment.end_range) return box(moment.start, moment.end, { class: place });
    const name = `${id}-${k}`;
    const outer = [moment.start_range[0], moment.end_range[1]];
    return svg("g", {}, soft(name, moment, outer), box(...outer, { class: `${place} soft`, fill: `url(#${name})` }));
  };
  return svg(
    "svg",
    { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true" },
    svg("clipPath", { id }, ...momentsOf(hit).map(({ start, end }) => box(start, end))),
    ...momentsOf(hit).map(shade),
    svg("polygon", { class: "area", points: below }),
    svg("g", { "clip-path": `url(#${id})` }, svg("polygon", { class: "moment", points: below })),
    svg("polyline", { class: "line", points: line }),
  );
}

const timeAt = (event, element, duration) => {
  const box = element.getBoundingClientRect();
  return Math.min(duration, Math.max(0, ((event.clientX - box.left) / box.width) * duration));
};

// The curve in a card, for the mouse. Keyboard users have the large one.
export function small(hit, scale, seek) {
  const element = h(
    "div",
    {
      class: "timeline small",
      "aria-hidden": "true",
      title: "Play from here",
      onclick: (event) => seek(timeAt(event, element, hit.video.duration)),
    },
    drawing(hit, scale),
  );
  return element;
}

// The curve below the player: a slider that shows and sets the position.
export class Large {
  #duration = 1;
  #seek;

  constructor(seek) {
    this.#seek = seek;
    this.head = h("div", { class: "head", "aria-hidden": "true" });
    this.pointer = h("output", { class: "pointer", "aria-hidden": "true" });
    this.picture = h("div", { class: "picture" });
    this.element = h(
      "div",
      {
        class: "timeline large",
        role: "slider",
        tabindex: "0",
        "aria-label": "Position in the video",
        "aria-valuemin": "0",
        onclick: (event) => seek(timeAt(event, this.element, this.#duration)),
        onpointermove: (event) => this.#point(timeAt(event, this.element, this.#duration)),
        onpointerleave: () => (this.pointer.textContent = ""),
        onkeydown: (event) => this.#key(event),
      },
      this.picture,
      this.head,
      this.pointer,
    );
  }

  show(hit, scale) {
    this.#duration = hit.video.duration || 1;
    this.picture.replaceChildren(drawing(hit, scale));
    this.element.setAttribute("aria-valuemax", this.#duration.toFixed(1));
    this.element.setAttribute("aria-description", `Moments: ${momentsOf(hit).map(span).join(", ")}`);
    this.at(hit.start);
  }

  at(time) {
    this.time = time;
    this.head.style.setProperty("--at", `${(time / this.#duration) * 100}%`);
    this.element.setAttribute("aria-valuenow", time.toFixed(1));
    this.element.setAttribute("aria-valuetext", `${clock(time)} of ${ending(this.#duration)}`);
  }

  #point(time) {
    this.pointer.textContent = clock(time);
    this.pointer.style.setProperty("--at", `${(time / this.#duration) * 100}%`);
  }

  #key(event) {
    const to = {
      ArrowLeft: this.time - 1,
      ArrowDown: this.time - 1,
      ArrowRight: this.time + 1,
      ArrowUp: this.time + 1,
      PageDown: this.time - 10,
      PageUp: this.time + 10,
      Home: 0,
      End: this.#duration,
    }[event.key];
    if (to === undefined || event.ctrlKey || event.metaKey || event.altKey || event.shiftKey) return;
    event.preventDefault();
    this.#seek(Math.min(this.#duration, Math.max(0, to)));
  }
}
