// The stage: the player, the curve and the moments of the chosen video.

import * as api from "./api.js";
import { h, icon, say } from "./dom.js";
import { bytes, clock, edges, ending, span } from "./format.js";
import { Large, momentsOf } from "./timeline.js";

const reducedMotion = matchMedia("(prefers-reduced-motion: reduce)");

export class Stage {
  #hit = null;
  #moment = null;
  #looping = false;
  #from = 0; // where playback starts once the file is loaded
  #proxy = null; // the part of the video that is loaded instead of its file, which this browser cannot play

  #verdicts = null; // the buttons for feedback on the chosen moment

  constructor({ step, book, takesFeedback }) {
    Object.assign(this, { book, takesFeedback });
    this.video = h("video", {
      controls: true,
      playsinline: true,
      preload: "none",
      onloadedmetadata: () => (this.video.videoWidth ? this.#seekToStart() : this.#convert()), // only its sound can be played
      onloadeddata: () => (this.failure.hidden = true),
      onplay: () => this.#follow(),
      onended: () => this.#looping && this.seek(this.#moment.start),
      ontimeupdate: () => this.#tick(),
      onseeked: () => this.#tick(),
      onerror: () => this.#failed(),
    });
    this.failure = h("p", { class: "failure", hidden: true });
    this.timeline = new Large((time) => this.seek(time));
    this.title = h("h2", { class: "title" });
    this.about = h("p", { class: "about" });
    this.moments = h("div", { class: "moments", role: "group", "aria-label": "Moments in this video" });
    this.loop = h(
      "button",
      { type: "button", class: "tool", "aria-pressed": "false", onclick: () => this.toggleLoop(), title: "Loop the moment (L)" },
      icon("loop"),
      "Loop",
    );
    this.copy = h(
      "button",
      { type: "button", class: "tool", onclick: () => this.#copyLink(), title: "Copy a link to this result" },
      icon("link"),
      "Link",
    );
    this.file = h("a", { class: "tool", download: true, title: "Save the video file" }, icon("file"), "Save");
    const tool = (name, label, by) =>
      h("button", { type: "button", class: "tool bare", "aria-label": label, title: label, onclick: () => step(by) }, icon(name));
    this.element = h(
      "section",
      { class: "stage", "aria-label": "Player" },
      h("div", { class: "screen" }, this.video, this.failure),
      h(
        "div",
        { class: "desk" },
        this.timeline.element,
        h("div", { class: "scale", "aria-hidden": "true" }, h("span", {}, "0:00"), (this.end = h("span"))),
        (this.said = h("div", { class: "said", role: "group", "aria-label": "What is said" })),
        h("div", { class: "choice" }, this.moments, (this.verdicts = h("div"))),
        h(
          "div",
          { class: "bar" },
          h("div", { class: "what" }, this.title, this.about),
          h("div", { class: "tools" }, this.loop, this.copy, this.file, tool("previous", "Previous video", -1), tool("next", "Next video", 1)),
        ),
      ),
    );
  }

  // Shows a hit without playing it. The browser loads the file when it is played.
  show(hit, scale) {
    if (this.#hit !== hit) {
      const { video } = hit;
      this.video.pause();
      this.#hit = hit;
      this.#proxy = null;
      this.failure.hidden = true;
      this.video.poster = api.picture(hit.thumbnail, 960);
      this.video.setAttribute("aria-label", video.title);
      this.#load(hit.start);
      this.file.href = video.stream;
      this.file.setAttribute("download", video.file);
      this.title.textContent = video.title;
      this.about.textContent = [video.folder, ending(video.duration), bytes(video.size)].join(" · ");
      this.end.textContent = ending(video.duration);
      this.timeline.show(hit, scale);
      this.moments.replaceChildren(
        ...momentsOf(hit).map((moment) =>
          h(
            "button",
            { type: "button", class: "chip", title: edges(moment), "aria-label": `Play ${span(moment)}${moment.part ? `: ${moment.part}` : ""}`, onclick: () => this.play(moment) },
            icon("play"),
            span(moment),
            moment.part ? h("span", { class: "part", title: moment.part }, moment.part) : null,
            h("span", { class: "score" }, moment.score.toFixed(2)),
          ),
        ),
      );
      this.said.replaceChildren(
        ...hit.said.map((line) =>
          h("button", { type: "button", class: "line", "aria-label": `Play ${span(line)}: ${line.text}`, onclick: () => this.play(line) }, h("span", { class: "time" }, span(line)), `“${line.text}”`),
        ),
      );
    }
    this.#choose(momentsOf(hit)[0]);
    this.#showVerdicts();
  }

  #showVerdicts() {
    this.#verdicts?.drop();
    this.#verdicts = this.takesFeedback(this.#hit) ? this.book.buttons(this.#hit, () => this.#moment) : null;
    this.verdicts.replaceChildren(...(this.#verdicts ? [this.#verdicts.element] : []));
  }

  get hit() {
    return this.#hit;
  }

  get isPlaying() {
    return !this.video.paused && !this.video.ended;
  }

  play(moment = this.#moment) {
    this.#choose(moment);
    this.seek(moment.start);
    say(`Playing ${this.#hit.video.title} at ${clock(moment.start)}`);
  }

  // Plays from a time, as soon as the file is loaded.
  seek(time) {
    this.timeline.at(time);
    this.failure.hidden = true;
    if (this.video.readyState && !this.video.error && this.#isLoaded(time)) this.#goTo(time);
    else if (this.video.error || time !== this.#from) this.#load(time);
    this.video.play().catch(() => {}); // autoplay is blocked or another file is loading; the controls still work
  }

  // Sets the file and the time to start at, also for the native controls. The fragment makes the browser start there.
  // A handler of loadedmetadata alone would come late on a busy computer, after some frames from the beginning. The
  // fragment has no end, at which browsers would stop.
  #load(time) {
    this.#from = time;
    if (this.#proxy) {
      const start = Math.max(0, Math.floor(time) - 5);
      this.#proxy = { start, end: Math.min(start + 45, this.#hit.video.duration) };
      this.video.src = `${api.proxy(this.#hit.video, start, start + 45)}#t=${(time - start).toFixed(2)}`;
    } else this.video.src = `${this.#hit.video.stream}#t=${time.toFixed(2)}`;
  }

  // The times of the player count from the start of the part that is loaded.
  get #time() {
    return this.video.currentTime + (this.#proxy?.start ?? 0);
  }

  #goTo(time) {
    this.video.currentTime = time - (this.#proxy?.start ?? 0);
  }

  #isLoaded(time) {
    return !this.#proxy || (time >= this.#proxy.start && time < this.#proxy.end);
  }

  // For browsers that ignore fragments.
  #seekToStart() {
    if (this.#time < this.#from - 0.1) this.#goTo(this.#from);
  }

  // Asks the server for the moment in a form that every browser can play.
  #convert() {
    if (this.#proxy || !this.#hit) return;
    const playing = !this.video.paused || this.video.error;
    this.failure.textContent = "Converting the moment for this browser…";
    this.failure.hidden = false;
    say(this.failure.textContent);
    this.#proxy = { start: 0, end: 0 };
    this.#load(this.#from);
    if (playing) this.video.play().catch(() => {});
  }

  toggle() {
    if (this.isPlaying) this.video.pause();
    else if (this.video.readyState) this.video.play().catch(() => {});
    else this.play();
  }

  toggleLoop() {
    this.#looping = !this.#looping;
    this.loop.setAttribute("aria-pressed", String(this.#looping));
    if (this.#looping && this.#hit) this.play();
  }

  stop() {
    this.video.pause();
  }

  #choose(moment) {
    this.#moment = moment;
    this.#verdicts?.update();
    momentsOf(this.#hit).forEach((each, k) =>
      this.moments.children[k].setAttribute("aria-pressed", String(each.start === moment.start && each.end === moment.end)),
    );
  }

  #tick() {
    const time = this.#time;
    if (this.#looping && this.#moment && this.isPlaying && (time >= this.#moment.end || time < this.#moment.start - 0.5)) {
      if (this.#isLoaded(this.#moment.start)) this.#goTo(this.#moment.start);
      else this.seek(this.#moment.start);
    }
    if (this.video.readyState) this.timeline.at(time);
  }

  // Moves the playhead smoothly between the time updates of the browser, unless the user prefers reduced motion.
  #follow() {
    if (reducedMotion.matches) return;
    const animate = () => {
      this.#tick();
      if (this.isPlaying) requestAnimationFrame(animate);
    };
    requestAnimationFrame(animate);
  }

  async #copyLink() {
    try {
      await navigator.clipboard.writeText(location.href);
      this.copy.lastChild.textContent = "Copied";
      say("Link copied");
    } catch {
      this.copy.lastChild.textContent = "In the address bar";
      say("The link is in the address bar");
    }
    setTimeout(() => (this.copy.lastChild.textContent = "Link"), 2000);
  }

  async #failed() {
    if (!this.#hit || !this.video.error) return;
    const hit = this.#hit;
    const why = await api.whyUnreadable(hit.video.stream);
    if (hit !== this.#hit || !this.video.error) return;
    if (why === null && !this.#proxy) {
      this.#convert();
      return;
    }
    this.failure.textContent = why ?? "This browser cannot play the file. Save it and open it in a media player.";
    this.failure.hidden = false;
    say(this.failure.textContent);
  }
}
