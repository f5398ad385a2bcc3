// What is in the library, what is being indexed, and what could not be read.

import * as api from "./api.js";
import { h, icon, say } from "./dom.js";
import { bytes, count, day, ending, length, sentence } from "./format.js";
import { failure, notice } from "./notices.js";

const SHOWN = 4; // jobs, of those that are over

const because = ({ file, reason }) => h("li", {}, h("strong", {}, file), h("span", {}, sentence(reason.replace(`${file} `, ""))));

export class LibraryView {
  #text = "";
  #folder = "";
  #shown = 0;
  #leftOut = 0; // files that are shown
  #turn = 0; // of what was asked for last
  #typing = 0;
  #watched = null; // a job's id, and what ends watching it
  #jobsAsked = 0; // how often

  constructor({ changed }) {
    this.changed = changed;
    this.facts = h("dl", { class: "facts" });
    this.places = h("div", { class: "places" });
    this.jobs = h("div", { class: "jobs", "aria-live": "off" });
    this.trouble = h("div");
    this.search = h("input", { type: "search", id: "names", placeholder: "Filter by name", "aria-label": "Filter videos by name", maxlength: 200, oninput: () => this.#type() });
    this.folder = h("select", { "aria-label": "Folder", onchange: () => this.#filter() });
    this.grid = h("ul", { class: "grid", "aria-label": "Videos" });
    this.more = h("button", { type: "button", class: "button", hidden: true, onclick: () => this.#fetch().catch((problem) => this.#failed(problem, this.shelfTrouble)) }, "Show more");
    this.shelfTrouble = h("div");
    this.total = h("span", { class: "quiet" });
    this.reasons = h("ul", { class: "reasons", tabindex: "0", "aria-labelledby": "quarantine-title" });
    this.reasonsTotal = h("span", { class: "quiet" });
    this.moreReasons = h("button", { type: "button", class: "button small", hidden: true, onclick: () => this.#quarantine().catch((problem) => this.#failed(problem, this.reasonsTrouble)) });
    this.reasonsTrouble = h("div");
    this.quarantine = h(
      "section",
      { class: "panel", "aria-labelledby": "quarantine-title", hidden: true },
      h("h2", { id: "quarantine-title" }, "Left out ", this.reasonsTotal),
      h("p", { class: "quiet" }, "These files could not be read. They are tried again when they change."),
      this.reasons,
      this.moreReasons,
      this.reasonsTrouble,
    );
    this.unsearchableFiles = h("ul", { class: "reasons", tabindex: "0", "aria-labelledby": "unsearchable-title" });
    this.unsearchableTotal = h("span", { class: "quiet" });
    this.unsearchable = h(
      "section",
      { class: "panel unsearchable", "aria-labelledby": "unsearchable-title", hidden: true },
      h("h2", { id: "unsearchable-title" }, "Cannot be found ", this.unsearchableTotal),
      h("p", { class: "quiet" }, "No search finds these videos, for what the library keeps of them is damaged; the files need not be. To make that good: ", h("code", {}, "midreel index --library LIBRARY --retry")),
      this.unsearchableFiles,
    );
    this.indexing = h("section", { class: "panel", "aria-labelledby": "indexing-title" }, h("h2", { id: "indexing-title" }, "Index"), this.places, this.jobs, this.trouble);
    this.dialog = h("dialog", { class: "sheet", "aria-labelledby": "sheet-title", onclose: () => this.dialog.replaceChildren() });
    this.element = h(
      "div",
      { class: "library-view" },
      h("div", { class: "head" }, h("h1", {}, "Library"), this.facts),
      h("div", { class: "panels" }, this.indexing, this.unsearchable, this.quarantine),
      h(
        "section",
        { class: "shelf", "aria-labelledby": "shelf-title" },
        h("div", { class: "row" }, h("h2", { id: "shelf-title" }, "Videos ", this.total), h("div", { class: "filters" }, this.folder, this.search)),
        this.grid,
        this.more,
        this.shelfTrouble,
      ),
      this.dialog,
    );
  }

  async show(library) {
    this.#facts(library);
    this.#unsearchable(library);
    this.#roots(library);
    this.folder.replaceChildren(h("option", { value: "" }, "All folders"), ...library.folders.map(({ name }) => h("option", { value: name }, name)));
    this.folder.value = this.#folder;
    this.folder.hidden = library.folders.length < 2;
    try {
      await Promise.all([this.#listJobs(), this.#quarantine({ anew: true }), this.#fetch({ anew: true })]);
    } catch (problem) {
      if (problem.status === 401) throw problem;
      this.grid.replaceChildren(h("li", { class: "wide" }, failure(problem, () => this.show(library))));
    }
  }

  leave() {
    this.#watch(null);
    this.dialog.close();
  }

  // ---------------------------------------------------------------- facts, folders, jobs

  #facts(library) {
    const fact = (name, value) => h("div", {}, h("dt", {}, name), h("dd", {}, value));
    this.facts.replaceChildren(
      fact("Videos", library.videos.toLocaleString("en")),
      fact("Length", length(library.seconds)),
      fact("Left out", library.quarantined.toLocaleString("en")),
      fact("Model", library.model),
      fact("Backbone", library.backbone),
    );
  }

  #unsearchable({ unsearchable: total, unsearchable_files: files }) {
    const more = total - files.length;
    this.unsearchable.hidden = !total;
    this.unsearchableTotal.textContent = (total ?? 0).toLocaleString("en");
    this.unsearchableFiles.replaceChildren(...files.map((file) => h("li", {}, h("strong", {}, file))), ...(more ? [h("li", {}, `and ${more.toLocaleString("en")} more`)] : []));
  }

  #roots(library) {
    if (!library.writable) return this.places.replaceChildren(h("p", { class: "quiet" }, "This library may only be searched: its folder cannot be written."));
    if (!library.roots.length)
      return this.places.replaceChildren(h("p", { class: "quiet" }, "No folder yet. Start the server with ", h("code", {}, "--root FOLDER"), "."));
    this.places.replaceChildren(
      h("p", { class: "quiet" }, "New, changed and removed videos are found by looking through a folder again."),
      h(
        "ul",
        { class: "roots" },
        ...library.roots.map((root) =>
          h("li", {}, h("span", { class: "name" }, root), h("button", { type: "button", class: "button", "aria-label": `Look through ${root}`, onclick: () => this.#index(root) }, "Look through")),
        ),
      ),
    );
    return undefined;
  }

  async #index(path) {
    this.trouble.replaceChildren();
    try {
      await api.index(path);
      say(`Indexing ${path}`);
      await this.#listJobs();
    } catch (problem) {
      this.#failed(problem, this.trouble);
    }
  }

  #failed(problem, place) {
    place.replaceChildren(failure(problem));
  }

  // An answer that was overtaken by a later question knows less than is shown, and nobody watches what was left.
  async #listJobs() {
    const asked = (this.#jobsAsked += 1);
    const { jobs } = await api.jobs();
    if (asked === this.#jobsAsked && this.element.isConnected) this.#jobs(jobs);
    return jobs;
  }

  // All that are to be done, and the latest that are.
  #jobs(jobs) {
    const ahead = jobs.filter((job) => !api.isOver(job));
    const done = jobs.filter(api.isOver).slice(0, Math.max(0, SHOWN - ahead.length));
    this.jobs.replaceChildren(...[...ahead, ...done].map((job) => this.#job(job)));
    this.#watch(ahead.at(-1) ?? null);
  }

  // One, which others wait for: a browser has few connections to a server, and this takes up one.
  #watch(job) {
    if (job && job.id === this.#watched?.id) return;
    this.#watched?.end();
    this.#watched = job && { id: job.id, end: api.watch(job.id, { told: (now) => this.#news(now), waits: (why) => this.#waits(job, why), lost: () => this.#lost(job) }) };
  }

  #news(job) {
    const old = this.jobs.querySelector(`[data-job="${CSS.escape(job.id)}"]`);
    if (!api.isOver(job)) return old && this.#fill(old, job); // its button stays where it is, under whose finger it is
    if (old) {
      const now = this.#job(job);
      const hadFocus = old.contains(document.activeElement);
      old.replaceWith(now);
      if (hadFocus) now.focus();
    }
    say(`Indexing ${job.path}: ${job.state}. ${job.message}`);
    if (job.id !== this.#watched?.id) return undefined;
    this.#watch(null);
    return this.changed();
  }

  // In place of the latest file, until there is news.
  #waits(job, why) {
    const latest = this.jobs.querySelector(`[data-job="${CSS.escape(job.id)}"] .latest`);
    if (latest) latest.replaceChildren(h("span", { class: "failure" }, why));
    say(why);
  }

  async #lost(job) {
    this.#watch(null);
    try {
      const jobs = await this.#listJobs();
      if (jobs.some(({ id }) => id === job.id)) return;
      const text = `The server was started anew while ${job.path} was being indexed. What was done stays; look through it again for the rest.`;
      this.trouble.replaceChildren(notice({ title: "Cut short", text }));
      say(text);
    } catch (problem) {
      this.#failed(problem, this.trouble);
    }
  }

  async #cancel(job, button) {
    if (button.hasAttribute("aria-disabled")) return;
    button.setAttribute("aria-disabled", "true"); // not disabled, or whoever pressed it would be nowhere
    button.textContent = "Finishing…";
    try {
      const now = await api.cancel(job.id);
      if (api.isOver(now)) this.#news(now);
      else say(`Indexing ${job.path} ends after the videos it is at`);
    } catch (problem) {
      button.removeAttribute("aria-disabled");
      button.textContent = "Cancel";
      this.#failed(problem, this.trouble);
    }
  }

  #job(job) {
    const over = api.isOver(job);
    const cancel = h("button", { type: "button", class: "button small", "aria-label": `Cancel indexing ${job.path}`, onclick: () => this.#cancel(job, cancel) }, "Cancel");
    const element = h(
      "article",
      { "data-job": job.id, tabindex: "-1" },
      h("div", { class: "row" }, h("strong", {}, job.path, h("span", { class: "quiet state" })), over ? null : cancel),
      over ? null : h("progress", { "aria-label": `Progress of ${job.path}` }),
      h("p", { class: "quiet told" }),
      over ? null : h("p", { class: "quiet latest" }),
      over && job.left_out.length
        ? h("details", {}, h("summary", {}, "Why"), h("ul", { class: "reasons", tabindex: "0", "aria-label": `Left out of ${job.path}` }, ...job.left_out.map(because)))
        : null,
    );
    this.#fill(element, job);
    return element;
  }

  #fill(element, job) {
    const words = { queued: "waiting", running: job.total === null ? "looking through" : "indexing", done: "done", cancelled: "cancelled", failed: "failed" };
    const left = job.seconds_left === null ? "" : ` · ${length(job.seconds_left)} left`;
    const part = (name) => element.querySelector(name);
    element.className = `job ${job.state}`;
    element.setAttribute("aria-label", `${job.path}, ${words[job.state]}`);
    part(".state").textContent = ` · ${words[job.state]}`;
    part(".told").textContent = api.isOver(job) ? sentence(job.message) : job.total === null ? "…" : `${job.done.toLocaleString("en")} of ${count(job.total, "file")}${left}`;
    if (api.isOver(job)) return;
    part(".latest").textContent = job.latest;
    if (job.total !== null) Object.assign(part("progress"), { max: job.total, value: job.done });
  }

  async #quarantine({ anew = false } = {}) {
    if (anew) this.#leftOut = 0;
    const { files, total } = await api.quarantine(this.#leftOut);
    const items = files.map(because);
    if (anew) this.reasons.replaceChildren(...items);
    else this.reasons.append(...items);
    this.#leftOut += files.length;
    this.quarantine.hidden = !total;
    this.reasonsTotal.textContent = total.toLocaleString("en");
    this.moreReasons.hidden = this.#leftOut >= total;
    this.moreReasons.textContent = `Show more, of ${(total - this.#leftOut).toLocaleString("en")}`;
    this.reasonsTrouble.replaceChildren();
  }

  // ---------------------------------------------------------------- videos

  #type() {
    clearTimeout(this.#typing);
    this.#typing = setTimeout(() => this.#filter(), 200);
  }

  #filter() {
    [this.#text, this.#folder] = [this.search.value.trim(), this.folder.value];
    this.#fetch({ anew: true }).catch((problem) => this.#failed(problem, this.shelfTrouble));
  }

  async #fetch({ anew = false } = {}) {
    if (anew) this.#shown = 0;
    const turn = (this.#turn += 1);
    const page = await api.videos({ text: this.#text, folder: this.#folder, offset: this.#shown });
    if (turn !== this.#turn) return; // something else has been asked for
    this.shelfTrouble.replaceChildren();
    const cards = page.videos.map((video) => this.#card(video));
    if (anew) this.grid.replaceChildren(...cards);
    else this.grid.append(...cards);
    this.#shown += page.videos.length;
    this.more.hidden = this.#shown >= page.total;
    this.total.textContent = page.total.toLocaleString("en");
    if (!page.total) {
      const isFiltered = this.#text || this.#folder;
      this.grid.replaceChildren(
        h("li", { class: "wide" }, notice(isFiltered ? { title: "No video of that name" } : { title: "No videos yet", text: "Look through a folder to index what is in it." })),
      );
    }
  }

  #card(video) {
    return h(
      "li",
      {},
      h(
        "button",
        { type: "button", class: "tile", onclick: () => this.#open(video) },
        h("span", { class: "thumb" }, h("img", { src: api.picture(video.thumbnail, 320), alt: "", width: 320, height: 180, loading: "lazy", decoding: "async", onerror: (event) => event.target.remove() }), h("span", { class: "when" }, ending(video.duration))),
        h("span", { class: "title" }, video.title),
        this.folder.hidden ? null : h("span", { class: "about" }, video.folder),
      ),
    );
  }

  #open(video) {
    const close = () => this.dialog.close();
    const trouble = h("p", { class: "failure", role: "alert", hidden: true });
    const sure = h("button", { type: "button", class: "button danger", onclick: () => this.#forget(video, sure) }, "Forget this video");
    this.dialog.replaceChildren(
      h("div", { class: "row" }, h("h2", { id: "sheet-title" }, video.title), h("button", { type: "button", class: "icon-button", "aria-label": "Close", onclick: close }, icon("close"))),
      h("video", { src: video.stream, controls: true, playsinline: true, preload: "metadata", poster: api.picture(video.thumbnail, 960), "aria-label": video.title, onerror: () => this.#unplayable(video, trouble) }),
      trouble,
      h("p", { class: "about" }, [`${video.folder}/${video.file}`, ending(video.duration), bytes(video.size), day(video.date)].join(" · ")),
      h("div", { class: "actions" }, sure),
    );
    this.dialog.showModal();
  }

  async #unplayable(video, trouble) {
    trouble.textContent = await api.whyUnplayable(video.stream);
    trouble.hidden = false;
  }

  async #forget(video, button) {
    if (!button.dataset.asked) {
      button.dataset.asked = "yes";
      button.textContent = "Forget it? The file stays";
      return;
    }
    button.disabled = true; // it may wait for others that write
    try {
      await api.forget(video.id);
      say(`${video.title} is forgotten`);
      this.dialog.close();
      this.changed();
    } catch (problem) {
      this.dialog.querySelector(".notice")?.remove();
      this.dialog.append(failure(problem));
    } finally {
      button.disabled = false;
    }
  }
}
