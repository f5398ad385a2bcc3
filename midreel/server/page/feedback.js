// Feedback: "this is it" and "not this" for the moments that a search found. The server keeps it in the library.

import * as api from "./api.js";
import { h, icon, say } from "./dom.js";
import { span } from "./format.js";

const VERDICTS = [
  { match: true, text: "This is it", name: "yes", given: "Marked as right" },
  { match: false, text: "Not this", name: "no", given: "Marked as wrong" },
];
const UNDO = "Press again to undo.";

// The feedback on one query. All buttons of the page show it, and change it one after the other.
export class FeedbackBook {
  #query = "";
  #pieces = [];
  #shown = new Set(); // functions that update the buttons on the page
  #last = Promise.resolve();

  // Forgets the old query and its buttons. Without an answer of the server, nothing is marked and the buttons still work.
  async open(query) {
    this.#query = query;
    this.#pieces = [];
    this.#shown.clear();
    const page = await api.feedback(query).catch(() => null);
    if (page === null || query !== this.#query) return;
    this.#pieces = page.feedback;
    this.#update();
  }

  find(hit, moment) {
    return this.#pieces.find((piece) => piece.video === hit.video.id && piece.start < moment.end && piece.end > moment.start) ?? null;
  }

  // Returns two buttons for a moment of a hit, and calls `onChange` with the feedback, now and whenever it changes.
  buttons(hit, momentOf, onChange = () => {}) {
    const buttons = VERDICTS.map(({ match, text, name }) =>
      h("button", { type: "button", class: `verdict ${name}`, onclick: () => this.#toggle(hit, momentOf(), match) }, icon(name), h("span", {}, text)),
    );
    const update = () => {
      const piece = this.find(hit, momentOf());
      VERDICTS.forEach(({ match, text }, k) => {
        const isGiven = piece?.match === match;
        buttons[k].setAttribute("aria-pressed", String(isGiven));
        buttons[k].setAttribute("aria-label", `${text}: ${hit.video.title}, ${span(momentOf())}`);
        buttons[k].title = isGiven ? UNDO : text;
      });
      onChange(piece);
    };
    this.#shown.add(update);
    update();
    return { element: h("div", { class: "verdicts", role: "group", "aria-label": `Is it ${hit.video.title}?` }, ...buttons), update, drop: () => this.#shown.delete(update) };
  }

  // Changes are sent in the order of the clicks, so a second click finds the id that the first one got.
  #toggle(hit, moment, match) {
    this.#last = this.#last.then(() => this.#change(hit, moment, match));
  }

  async #change(hit, moment, match) {
    const [query, before] = [this.#query, this.#pieces];
    const old = this.find(hit, moment);
    const isUndo = old?.match === match;
    const kept = before.filter((piece) => piece !== old);
    const { start, end } = moment;
    this.#show(isUndo ? kept : [...kept, { video: hit.video.id, match, start, end }]); // before the server answers
    try {
      if (isUndo) await api.removeFeedback(old.id).catch((problem) => problem.status === 404 || Promise.reject(problem));
      const added = isUndo ? null : await api.giveFeedback({ query, video: hit.video.id, match, start, end });
      if (query !== this.#query) return;
      if (added) this.#show([...kept, added]);
      say(isUndo ? "Feedback removed" : `${VERDICTS.find((each) => each.match === match).given}. ${UNDO}`);
    } catch (problem) {
      if (query !== this.#query) return;
      this.#show(before);
      this.onFailure?.(problem);
    }
  }

  #show(pieces) {
    this.#pieces = pieces;
    this.#update();
  }

  #update() {
    for (const update of this.#shown) update();
  }
}
