// The results of a query, and the stage beside them.

import * as api from "./api.js";
import { h, say } from "./dom.js";
import { count, ending, length, span } from "./format.js";
import { examples, failure, notice } from "./notices.js";
import { Stage } from "./player.js";
import { momentsOf, scaleOf, small } from "./timeline.js";

const TOP = 12; // hits at a time
const MOST = 96; // in all; whoever needs more asks for something else
const QUICK = 120; // milliseconds within which an answer needs no sign of waiting

export class SearchView {
  #hits = [];
  #scale = [0, 1];
  #chosen = -1;
  #waiting = null;
  #asked = null;
  #top = TOP;

  constructor({ navigate, remember }) {
    this.navigate = navigate; // to another question
    this.remember = remember; // what the address is to say about the chosen hit
    this.stage = new Stage({ step: (by) => this.step(by) });
    this.list = h("ol", { class: "hits", "aria-label": "Videos found" });
    this.more = h("button", { type: "button", class: "button more", hidden: true, onclick: () => this.#showMore() }, "Show more");
    this.trouble = h("div", {});
    this.summary = h("p", { class: "summary" });
    this.folder = h("select", { "aria-label": "Folder", hidden: true, onchange: () => this.#refine() });
    this.least = h("input", { id: "least", type: "range", min: 0, max: 1, step: 0.05, oninput: () => this.#tellLeast(), onchange: () => this.#refine() });
    this.leastText = h("output", { for: "least" });
    this.message = h("div", { class: "message" });
    this.results = h("div", { class: "results" }, h("section", { class: "found", "aria-label": "Results" }, this.list, this.more, this.trouble), this.stage.element);
    this.element = h(
      "div",
      { class: "search-view" },
      (this.heading = h("h1", { class: "unseen" })),
      h(
        "div",
        { class: "toolbar" },
        this.summary,
        h("div", { class: "filters" }, this.folder, h("label", { class: "field" }, h("span", {}, "Score at least"), this.least, this.leastText)),
      ),
      this.message,
      this.results,
    );
  }

  setLibrary(library) {
    this.library = library;
    const folders = library?.folders ?? [];
    this.folder.hidden = folders.length < 2;
    this.folder.replaceChildren(
      h("option", { value: "" }, "All folders"),
      ...folders.map(({ name, videos }) => h("option", { value: name }, `${name} (${videos})`)),
    );
  }

  async show({ query, folder, least, video }) {
    this.heading.textContent = `Results for ${query}`;
    this.folder.value = folder;
    this.least.value = least || 0;
    this.#tellLeast();
    const asked = JSON.stringify([query, folder, least]);
    if (asked === this.#asked) return this.#chooseVideo(video);
    this.#asked = asked;
    this.#waiting?.abort();
    const waiting = (this.#waiting = new AbortController());
    const slow = setTimeout(() => this.#showWaiting(), QUICK);
    this.stage.stop();
    this.more.hidden = true; // what is there belongs to another question
    this.trouble.replaceChildren();
    try {
      let [top, answer] = [TOP, await this.#answer(TOP, waiting.signal)];
      const isLater = video && answer.hits.length === top && !answer.hits.some((hit) => hit.video.id === video);
      if (isLater) [top, answer] = [MOST, await this.#answer(MOST, waiting.signal)]; // as a link says
      this.#top = top;
      this.#showAnswer(answer, least);
      this.#chooseVideo(video);
    } catch (problem) {
      if (problem.name === "AbortError") return undefined;
      this.#asked = null;
      if (problem.status === 401) throw problem;
      this.#showMessage(failure(problem, () => this.navigate({ query, folder, least })), problem.title);
    } finally {
      clearTimeout(slow);
      if (this.#waiting === waiting) {
        this.#waiting = null;
        this.element.removeAttribute("aria-busy");
      }
    }
    return undefined;
  }

  #answer(top, signal) {
    const [query, folder, least] = JSON.parse(this.#asked);
    const body = { query, top };
    if (folder) body.folder = folder;
    if (least) body.threshold = least;
    return api.search(body, signal);
  }

  // The next hits, below those that are there, while what is played goes on.
  async #showMore() {
    if (this.#waiting) return;
    const waiting = (this.#waiting = new AbortController());
    const top = this.#top + TOP;
    this.more.setAttribute("aria-disabled", "true"); // not disabled, or whoever pressed it would be nowhere
    this.trouble.replaceChildren();
    try {
      const answer = await this.#answer(top, waiting.signal);
      const known = new Set(this.#hits.map((hit) => hit.video.id));
      const first = this.#hits.length;
      this.#hits = [...this.#hits, ...answer.hits.filter((hit) => !known.has(hit.video.id))];
      this.list.append(...this.#hits.slice(first).map((hit, number) => this.#card(hit, first + number)));
      this.#top = top;
      this.#summarise(answer);
      this.#buttons()[Math.min(first, this.#hits.length - 1)].focus();
    } catch (problem) {
      if (problem.name === "AbortError") return;
      const [query, folder, least] = JSON.parse(this.#asked);
      if (problem.status === 401) {
        this.#asked = null; // to be asked again, and told what is missing
        this.navigate({ query, folder, least });
      } else {
        this.trouble.replaceChildren(failure(problem, () => this.#showMore()));
        say(problem.title);
      }
    } finally {
      this.more.removeAttribute("aria-disabled");
      if (this.#waiting === waiting) this.#waiting = null;
    }
  }

  leave() {
    this.stage.stop();
    if (!this.#waiting) return;
    this.#waiting.abort();
    this.#waiting = null;
    this.#asked = null; // to be asked again, for there was no answer
  }

  // ---------------------------------------------------------------- choosing

  get hasHits() {
    return this.#hits.length > 0;
  }

  step(by) {
    if (!this.hasHits) return;
    const wasPlaying = this.stage.isPlaying;
    const next = Math.min(this.#hits.length - 1, Math.max(0, this.#chosen + by));
    if (next === this.#chosen && this.#buttons()[next] === document.activeElement) return;
    this.choose(next, { focus: true });
    if (wasPlaying) this.stage.play();
  }

  choose(number, { focus = false } = {}) {
    const hit = this.#hits[number];
    this.#chosen = number;
    this.stage.show(hit, this.#scale);
    this.#buttons().forEach((button, k) => (k === number ? button.setAttribute("aria-current", "true") : button.removeAttribute("aria-current")));
    if (focus) this.#buttons()[number].focus({ preventScroll: false });
    this.remember(hit.video.id);
  }

  playChosen() {
    if (this.hasHits) this.stage.play();
  }

  focusChosen() {
    this.#buttons()[Math.max(0, this.#chosen)]?.focus();
  }

  #buttons() {
    return [...this.list.querySelectorAll(".hit-main")];
  }

  #chooseVideo(id) {
    if (!this.hasHits) return;
    const number = this.#hits.findIndex((hit) => hit.video.id === id);
    if (this.#chosen < 0 || (number >= 0 && number !== this.#chosen)) this.choose(Math.max(0, number));
  }

  #play(number, moment) {
    this.choose(number);
    this.stage.play(moment);
  }

  // ---------------------------------------------------------------- what is shown

  #showWaiting() {
    this.element.setAttribute("aria-busy", "true");
    this.message.replaceChildren();
    this.results.hidden = false;
    if (!this.hasHits) {
      this.results.classList.add("empty");
      this.summary.textContent = "Searching…";
      this.list.replaceChildren(
        ...Array.from({ length: 6 }, () =>
          h("li", { class: "ghost", "aria-hidden": "true" }, h("div", { class: "ghost-main" }, h("div", { class: "thumb" }), h("div", { class: "words" }, h("i"), h("i"))), h("div", { class: "timeline small" })),
        ),
      );
    }
    say("Searching");
  }

  #showMessage(element, spoken) {
    this.#hits = [];
    this.#chosen = -1;
    this.list.replaceChildren();
    this.more.hidden = true;
    this.results.hidden = true;
    this.summary.textContent = "";
    this.message.replaceChildren(element);
    say(spoken);
  }

  #showAnswer(answer, least) {
    if (!answer.hits.length) return this.#showNothing(answer, least);
    this.#hits = answer.hits;
    this.#scale = scaleOf(answer.hits);
    this.#chosen = -1;
    this.message.replaceChildren();
    this.results.hidden = false;
    this.results.classList.remove("empty");
    this.list.replaceChildren(...answer.hits.map((hit, number) => this.#card(hit, number)));
    this.#summarise(answer);
    return undefined;
  }

  #summarise(answer) {
    const weaker = answer.below_threshold ? `, ${answer.below_threshold} weaker hidden` : "";
    const number = this.#hits.length;
    const hasMore = answer.hits.length === this.#top && this.#top < MOST && number < this.#searched();
    this.more.hidden = !hasMore;
    const found = `${hasMore ? "best " : ""}${this.#found(number)}`;
    this.summary.replaceChildren(h("strong", {}, found), `${weaker} · ${Math.max(1, Math.round(answer.milliseconds))} ms`);
    say(`${found} found`);
  }

  #searched() {
    const within = this.folder.value;
    const searched = (this.library?.folders ?? []).filter(({ name }) => !within || name === within || name.startsWith(`${within}/`));
    return searched.reduce((sum, { videos }) => sum + videos, 0);
  }

  // Of how many that were searched; the library may have grown since it told.
  #found(number) {
    const total = this.#searched();
    return total < number ? count(number, "video") : `${number} of ${count(total, "video")}`;
  }

  #showNothing(answer, least) {
    if (answer.below_threshold) {
      const title = `No match above ${least.toFixed(2)}`;
      const text = `${count(answer.below_threshold, "video")} ${answer.below_threshold === 1 ? "scores" : "score"} less. They may still be what you remember.`;
      const act = () => this.navigate({ query: answer.query, folder: this.folder.value, least: 0 });
      return this.#showMessage(notice({ title, text, actions: [{ label: "Show weaker matches", act }] }), title);
    }
    const isEmpty = this.library?.videos === 0;
    const title = isEmpty ? "The library is empty" : "Nothing found";
    const text = isEmpty ? "Index some videos first; the library page does it." : "Say it in other words: what is to be seen, rather than what it is about.";
    const element = notice({ title, text });
    if (!isEmpty && this.library) element.append(examples(this.library.examples.slice(0, 3), (query) => this.navigate({ query })));
    return this.#showMessage(element, title);
  }

  #card(hit, number) {
    const { video } = hit;
    const others = momentsOf(hit).slice(1);
    return h(
      "li",
      { class: "hit" },
      h(
        "button",
        {
          type: "button",
          class: "hit-main",
          "aria-label": `${video.title}, ${span(hit)} of ${length(video.duration)}, score ${hit.score.toFixed(2)}. Play`,
          onclick: () => this.#play(number),
        },
        h(
          "span",
          { class: "thumb" },
          h("img", { src: api.picture(hit.thumbnail, 320), alt: "", width: 160, height: 90, loading: number < 6 ? "eager" : "lazy", decoding: "async", onerror: (event) => event.target.remove() }),
          h("span", { class: "when" }, span(hit)),
        ),
        h(
          "span",
          { class: "words" },
          h("span", { class: "title" }, video.title),
          h("span", { class: "about" }, [this.library?.folders?.length > 1 ? video.folder : "", ending(video.duration)].filter(Boolean).join(" · ")),
          h("span", { class: "score" }, hit.score.toFixed(2)),
        ),
      ),
      small(hit, this.#scale, (time) => {
        this.choose(number);
        this.stage.seek(time);
      }),
      others.length
        ? h(
            "div",
            { class: "also" },
            h("span", {}, "Also"),
            ...others.map((moment) =>
              h("button", { type: "button", class: "chip tiny", "aria-label": `Play ${video.title} at ${span(moment)}`, onclick: () => this.#play(number, moment) }, span(moment)),
            ),
          )
        : null,
    );
  }

  // ---------------------------------------------------------------- filters

  #tellLeast() {
    const least = Number(this.least.value);
    this.leastText.textContent = least ? least.toFixed(2) : "any";
  }

  #refine() {
    const [query] = JSON.parse(this.#asked ?? "[null]");
    const text = query ?? document.getElementById("query").value.trim();
    if (text) this.navigate({ query: text, folder: this.folder.value, least: Number(this.least.value) });
  }
}
