// The library page: videos, index jobs, unreadable files and damaged videos.

import * as api from "./api.js";
import { h, icon, say } from "./dom.js";
import { bytes, count, day, ending, length, sentence } from "./format.js";
import { failure, notice } from "./notices.js";

const MAX_JOBS = 4; // shown; all unfinished jobs are shown, even if there are more

const fileWithReason = ({ file, reason }) => h("li", {}, h("strong", {}, file), h("span", {}, sentence(reason.replace(`${file} `, ""))));

export class LibraryView {
  #text = "";
  #folder = "";
  #shown = 0;
  #numUnreadable = 0; // files shown
  #latest = 0; // number of the latest request for videos
  #typing = 0; // timer
  #followed = null; // the id of a job, and a function that stops following it
  #jobRequests = 0; // number of the latest request for jobs

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
      h("h2", { id: "quarantine-title" }, "Unreadable files ", this.reasonsTotal),
      h("p", { class: "quiet" }, "These files cannot be read. They are retried when they change."),
      this.reasons,
      this.moreReasons,
      this.reasonsTrouble,
    );
    this.unsearchableFiles = h("ul", { class: "reasons", tabindex: "0", "aria-labelledby": "unsearchable-title" });
    this.unsearchableTotal = h("span", { class: "quiet" });
    this.unsearchable = h(
      "section",
      { class: "panel unsearchable", "aria-labelledby": "unsearchable-title", hidden: true },
      h("h2", { id: "unsearchable-title" }, "Damaged videos ", this.unsearchableTotal),
      h("p", { class: "quiet" }, "Searches cannot find these videos, because their index entries are damaged. The video files may be intact. Repair: ", h("code", {}, "midreel index --library LIBRARY --retry")),
      this.unsearchableFiles,
    );
    this.indexing = h("section", { class: "panel", "aria-labelledby": "indexing-title" }, h("h2", { id: "indexing-title" }, "Folders"), this.places, this.jobs, this.trouble);
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
      await Promise.all([this.#listJobs(), this.#quarantine({ reset: true }), this.#fetch({ reset: true })]);
    } catch (problem) {
      if (problem.status === 401) throw problem;
      this.grid.replaceChildren(h("li", { class: "wide" }, failure(problem, () => this.show(library))));
    }
  }

  leave() {
    this.#follow(null);
    this.dialog.close();
  }

  // ---------------------------------------------------------------- facts, folders, jobs

  #facts(library) {
    const fact = (name, value) => h("div", {}, h("dt", {}, name), h("dd", {}, value));
    this.facts.replaceChildren(
      fact("Videos", library.videos.toLocaleString("en")),
      fact("Duration", length(library.seconds)),
      fact("Unreadable", library.quarantined.toLocaleString("en")),
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
    if (!library.writable) return this.places.replaceChildren(h("p", { class: "quiet" }, "This library is read-only."));
    if (!library.roots.length)
      return this.places.replaceChildren(h("p", { class: "quiet" }, "No folders to index. Start the server with ", h("code", {}, "--root FOLDER"), "."));
    this.places.replaceChildren(
      h("p", { class: "quiet" }, "Index a folder to add new videos, update changed ones and remove missing ones."),
      h(
        "ul",
        { class: "roots" },
        ...library.roots.map((root) =>
          h("li", {}, h("span", { class: "name" }, root), h("button", { type: "button", class: "button", "aria-label": `Index ${root}`, onclick: () => this.#index(root) }, "Index")),
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

  // Ignores the answer if a later request is on its way or the view was left.
  async #listJobs() {
    const now = (this.#jobRequests += 1);
    const { jobs } = await api.jobs();
    if (now === this.#jobRequests && this.element.isConnected) this.#jobs(jobs);
    return jobs;
  }

  // Shows all unfinished jobs, then the latest ended ones. Follows the job that runs.
  #jobs(jobs) {
    const unfinished = jobs.filter((job) => !api.isOver(job));
    const ended = jobs.filter(api.isOver).slice(0, Math.max(0, MAX_JOBS - unfinished.length));
    this.jobs.replaceChildren(...[...unfinished, ...ended].map((job) => this.#job(job)));
    this.#follow(unfinished.at(-1) ?? null);
  }

  // Follows one job at a time: a browser has only six connections to a server, and each followed job takes one.
  #follow(job) {
    if (job && job.id === this.#followed?.id) return;
    this.#followed?.end();
    this.#followed = job && { id: job.id, end: api.follow(job.id, { onProgress: (now) => this.#update(now), onDisconnect: (reason) => this.#disconnected(job, reason), onLost: () => this.#lost(job) }) };
  }

  #update(job) {
    const old = this.jobs.querySelector(`[data-job="${CSS.escape(job.id)}"]`);
    if (!api.isOver(job)) return old && this.#fill(old, job); // keeps the button, which may have the focus
    if (old) {
      const now = this.#job(job);
      const hadFocus = old.contains(document.activeElement);
      old.replaceWith(now);
      if (hadFocus) now.focus();
    }
    say(`Indexing ${job.path}: ${job.state}. ${job.message}`);
    if (job.id !== this.#followed?.id) return undefined;
    this.#follow(null);
    return this.changed();
  }

  // Shows the reason in place of the latest file, until the next update.
  #disconnected(job, reason) {
    const latest = this.jobs.querySelector(`[data-job="${CSS.escape(job.id)}"] .latest`);
    if (latest) latest.replaceChildren(h("span", { class: "failure" }, reason));
    say(reason);
  }

  async #lost(job) {
    this.#follow(null);
    try {
      const jobs = await this.#listJobs();
      if (jobs.some(({ id }) => id === job.id)) return;
      const text = `The server restarted while it indexed ${job.path}. Finished videos are kept. Index the folder again to continue.`;
      this.trouble.replaceChildren(notice({ title: "Indexing was interrupted", text }));
      say(text);
    } catch (problem) {
      this.#failed(problem, this.trouble);
    }
  }

  async #cancel(job, button) {
    if (button.hasAttribute("aria-disabled")) return;
    button.setAttribute("aria-disabled", "true"); // a disabled button would lose the focus
    button.textContent = "Finishing…";
    try {
      const now = await api.cancel(job.id);
      if (api.isOver(now)) this.#update(now);
      else say(`Indexing ${job.path} stops after the videos in progress`);
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
      h("p", { class: "quiet counts" }),
      over ? null : h("p", { class: "quiet latest" }),
      over && job.left_out.length
        ? h("details", {}, h("summary", {}, "Skipped files"), h("ul", { class: "reasons", tabindex: "0", "aria-label": `Skipped files of ${job.path}` }, ...job.left_out.map(fileWithReason)))
        : null,
    );
    this.#fill(element, job);
    return element;
  }

  #fill(element, job) {
    const labels = { queued: "queued", running: job.total === null ? "scanning" : "indexing", done: "done", cancelled: "cancelled", failed: "failed" };
    const left = job.seconds_left === null ? "" : ` · ${length(job.seconds_left)} left`;
    const part = (name) => element.querySelector(name);
    element.className = `job ${job.state}`;
    element.setAttribute("aria-label", `${job.path}, ${labels[job.state]}`);
    part(".state").textContent = ` · ${labels[job.state]}`;
    part(".counts").textContent = api.isOver(job) ? sentence(job.message) : job.total === null ? "…" : `${job.done.toLocaleString("en")} of ${count(job.total, "file")}${left}`;
    if (api.isOver(job)) return;
    part(".latest").textContent = job.latest;
    if (job.total !== null) Object.assign(part("progress"), { max: job.total, value: job.done });
  }

  async #quarantine({ reset = false } = {}) {
    if (reset) this.#numUnreadable = 0;
    const { files, total } = await api.quarantine(this.#numUnreadable);
    const items = files.map(fileWithReason);
    if (reset) this.reasons.replaceChildren(...items);
    else this.reasons.append(...items);
    this.#numUnreadable += files.length;
    this.quarantine.hidden = !total;
    this.reasonsTotal.textContent = total.toLocaleString("en");
    this.moreReasons.hidden = this.#numUnreadable >= total;
    this.moreReasons.textContent = `Show more (${(total - this.#numUnreadable).toLocaleString("en")} left)`;
    this.reasonsTrouble.replaceChildren();
  }

  // ---------------------------------------------------------------- videos

  #type() {
    clearTimeout(this.#typing);
    this.#typing = setTimeout(() => this.#filter(), 200);
  }

  #filter() {
    [this.#text, this.#folder] = [this.search.value.trim(), this.folder.value];
    this.#fetch({ reset: true }).catch((problem) => this.#failed(problem, this.shelfTrouble));
  }

  async #fetch({ reset = false } = {}) {
    if (reset) this.#shown = 0;
    const now = (this.#latest += 1);
    const page = await api.videos({ text: this.#text, folder: this.#folder, offset: this.#shown });
    if (now !== this.#latest) return; // a later request replaces this one
    this.shelfTrouble.replaceChildren();
    const cards = page.videos.map((video) => this.#card(video));
    if (reset) this.grid.replaceChildren(...cards);
    else this.grid.append(...cards);
    this.#shown += page.videos.length;
    this.more.hidden = this.#shown >= page.total;
    this.total.textContent = page.total.toLocaleString("en");
    if (!page.total) {
      const isFiltered = this.#text || this.#folder;
      this.grid.replaceChildren(
        h("li", { class: "wide" }, notice(isFiltered ? { title: "No matching videos" } : { title: "No videos yet", text: "Index a folder to add its videos." })),
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
    const remove = h("button", { type: "button", class: "button danger", onclick: () => this.#remove(video, remove) }, "Remove from library");
    this.dialog.replaceChildren(
      h("div", { class: "row" }, h("h2", { id: "sheet-title" }, video.title), h("button", { type: "button", class: "icon-button", "aria-label": "Close", onclick: close }, icon("close"))),
      h("video", { src: video.stream, controls: true, playsinline: true, preload: "metadata", poster: api.picture(video.thumbnail, 960), "aria-label": video.title, onerror: (event) => this.#unplayable(video, trouble, event.target) }),
      trouble,
      h("p", { class: "about" }, [`${video.folder}/${video.file}`, ending(video.duration), bytes(video.size), day(video.date)].join(" · ")),
      h("div", { class: "actions" }, remove),
    );
    this.dialog.showModal();
  }

  async #unplayable(video, trouble, player) {
    const why = await api.whyUnreadable(video.stream);
    const proxy = api.proxy(video, 0, 60);
    if (why === null && !player.src.endsWith(proxy)) {
      player.src = proxy; // its first minute, in a form that every browser can play
      return;
    }
    trouble.textContent = why ?? "This browser cannot play the file. Save it and open it in a media player.";
    trouble.hidden = false;
  }

  async #remove(video, button) {
    if (!button.dataset.confirming) {
      button.dataset.confirming = "yes";
      button.textContent = "Confirm: remove from library (the file stays)";
      return;
    }
    button.disabled = true; // the removal may wait for a running job
    try {
      await api.remove(video.id);
      say(`${video.title} was removed`);
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
