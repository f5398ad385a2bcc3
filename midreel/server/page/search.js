// The results of a search, and the stage beside them.

import * as api from "./api.js";
import { h, say } from "./dom.js";
import { FeedbackBook } from "./feedback.js";
import { count, ending, length, percent, rating, span } from "./format.js";
import { examples, failure, notice } from "./notices.js";
import { Stage } from "./player.js";
import { momentsOf, scaleOf, small } from "./timeline.js";

const PAGE_SIZE = 12; // hits
const MAX_HITS = 96; // below the server's limit of 100
const PLACEHOLDER_DELAY = 120; // milliseconds; faster answers show no placeholders

export class SearchView {
  #hits = [];
  #scale = [0, 1];
  #chosen = -1;
  #waiting = null;
  #searchKey = null;
  #top = PAGE_SIZE;

  constructor({ navigate, remember }) {
    this.navigate = navigate; // shows the results of another search
    this.remember = remember; // puts the chosen video into the URL
    this.book = new FeedbackBook();
    this.book.onFailure = (problem) => this.#showTrouble(problem);
    this.stage = new Stage({ step: (by) => this.step(by), book: this.book, takesFeedback: (hit) => this.#takesFeedback(hit) });
    this.list = h("ol", { class: "hits", "aria-label": "Videos found" });
    this.more = h("button", { type: "button", class: "button more", hidden: true, onclick: () => this.#showMore() }, "Show more");
    this.trouble = h("div", {});
    this.summary = h("p", { class: "summary" });
    this.folder = h("select", { "aria-label": "Folder", hidden: true, onchange: () => this.#refine() });
    this.threshold = h("input", { id: "threshold", type: "range", min: 0, max: 1, step: 0.05, oninput: () => this.#showThreshold(), onchange: () => this.#refine() });
    this.thresholdText = h("output", { for: "threshold" });
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
        h("div", { class: "filters" }, this.folder, h("label", { class: "field" }, h("span", {}, "Confident from"), this.threshold, this.thresholdText)),
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

  async show({ query, folder, threshold, video }) {
    this.heading.textContent = `Results for ${query}`;
    this.folder.value = folder;
    this.threshold.value = threshold;
    this.#showThreshold();
    const key = JSON.stringify([query, folder, threshold]);
    if (key === this.#searchKey) return this.#chooseVideo(video);
    this.#searchKey = key;
    this.#waiting?.abort();
    const waiting = (this.#waiting = new AbortController());
    const slow = setTimeout(() => this.#showWaiting(), PLACEHOLDER_DELAY);
    this.stage.stop();
    this.more.hidden = true; // the button belongs to the previous search
    this.trouble.replaceChildren();
    try {
      let [top, answer] = [PAGE_SIZE, await this.#answer(PAGE_SIZE, waiting.signal)];
      const isLater = video && answer.hits.length === top && !answer.hits.some((hit) => hit.video.id === video);
      if (isLater) [top, answer] = [MAX_HITS, await this.#answer(MAX_HITS, waiting.signal)]; // the URL names a video further down
      this.#top = top;
      this.book.open(query);
      this.#showAnswer(answer);
      this.#chooseVideo(video);
    } catch (problem) {
      if (problem.name === "AbortError") return undefined;
      this.#searchKey = null;
      if (problem.status === 401) throw problem;
      this.#showMessage(failure(problem, () => this.navigate({ query, folder, threshold })), problem.title);
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
    const [query, folder, threshold] = JSON.parse(this.#searchKey);
    const body = { query, top, threshold };
    if (folder) body.folder = folder;
    return api.search(body, signal);
  }

  // Appends more hits. Playback continues.
  async #showMore() {
    if (this.#waiting) return;
    const waiting = (this.#waiting = new AbortController());
    const top = this.#top + PAGE_SIZE;
    this.more.setAttribute("aria-disabled", "true"); // a disabled button would lose the focus
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
      const [query, folder, threshold] = JSON.parse(this.#searchKey);
      if (problem.status === 401) {
        this.#searchKey = null; // search again, which shows the sign-in form
        this.navigate({ query, folder, threshold });
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
    this.#searchKey = null; // the search has no answer yet: run it again next time
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

  // ---------------------------------------------------------------- views

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

  #showAnswer(answer) {
    if (!answer.hits.length) return this.#showNothing();
    this.#hits = answer.hits;
    this.#scale = scaleOf(answer.hits);
    this.#chosen = -1;
    this.message.replaceChildren(...(answer.confident === false ? [h("p", { class: "doubt" }, h("strong", {}, "No confident match."), " These are the best guesses.")] : []));
    this.results.hidden = false;
    this.results.classList.remove("empty");
    this.list.replaceChildren(...answer.hits.map((hit, number) => this.#card(hit, number)));
    this.#summarise(answer);
    return undefined;
  }

  #summarise(answer) {
    const number = this.#hits.length;
    const hasMore = answer.hits.length === this.#top && this.#top < MAX_HITS && number < this.#searched();
    this.more.hidden = !hasMore;
    const found = `${hasMore ? "best " : ""}${this.#found(number)}`;
    this.summary.replaceChildren(h("strong", {}, found), ` · ${Math.max(1, Math.round(answer.milliseconds))} ms`);
    say(answer.confident === false ? `No confident match. ${found} as best guesses` : `${found} found`);
  }

  #searched() {
    const within = this.folder.value;
    const searched = (this.library?.folders ?? []).filter(({ name }) => !within || name === within || name.startsWith(`${within}/`));
    return searched.reduce((sum, { videos }) => sum + videos, 0);
  }

  // The total may be outdated: the library may have grown since it was loaded.
  #found(number) {
    const total = this.#searched();
    return total < number ? count(number, "video") : `${number} of ${count(total, "video")}`;
  }

  #showNothing() {
    const isEmpty = this.library?.videos === 0;
    const title = isEmpty ? "The library is empty" : "Nothing found";
    const text = isEmpty ? "Index some videos on the library page first." : "Try other words. Describe what is visible in the video.";
    const element = notice({ title, text });
    if (!isEmpty && this.library) element.append(examples(this.library.examples.slice(0, 3), (query) => this.navigate({ query })));
    return this.#showMessage(element, title);
  }

  #card(hit, number) {
    const { video } = hit;
    const [best, ...others] = momentsOf(hit);
    const card = h("li", { class: "hit" });
    const isWrong = (piece) => card.classList.toggle("wrong", piece?.match === false);
    card.append(
      h(
        "button",
        {
          type: "button",
          class: "hit-main",
          "aria-label": `${video.title}, ${span(hit)} of ${length(video.duration)}, ${rating(hit)}. Play`,
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
          h("span", { class: "score", title: `Score ${hit.score.toFixed(2)}` }, rating(hit)),
          hit.said.length ? h("span", { class: "quote" }, `${span(hit.said[0])} “${hit.said[0].text}”`) : null,
        ),
      ),
      small(hit, this.#scale, (time) => {
        this.choose(number);
        this.stage.seek(time);
      }),
      h(
        "div",
        { class: "below" },
        others.length
          ? h(
              "div",
              { class: "also" },
              h("span", {}, "Also"),
              ...others.map((moment) =>
                h("button", { type: "button", class: "chip tiny", title: moment.part || undefined, "aria-label": `Play ${video.title} at ${span(moment)}`, onclick: () => this.#play(number, moment) }, span(moment)),
              ),
            )
          : null,
        this.#takesFeedback(hit) ? this.book.buttons(hit, () => best, isWrong).element : "",
      ),
    );
    return card;
  }

  // A query with operators has several parts, so it would be unclear which of them is right.
  #takesFeedback(hit) {
    return Boolean(this.library?.writable) && !hit.part;
  }

  #showTrouble(problem) {
    this.trouble.replaceChildren(failure(problem));
    say(`The feedback was not saved. ${problem.message}`);
  }

  // ---------------------------------------------------------------- filters

  #showThreshold() {
    this.thresholdText.textContent = percent(Number(this.threshold.value));
  }

  #refine() {
    const [query] = JSON.parse(this.#searchKey ?? "[null]");
    const text = query ?? document.getElementById("query").value.trim();
    if (text) this.navigate({ query: text, folder: this.folder.value, threshold: Number(this.threshold.value) });
  }
}
