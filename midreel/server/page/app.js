// The page as a whole. The URL determines what is shown; clicks and keys change the URL.

import * as api from "./api.js";
import { byId, h, icon } from "./dom.js";
import { count, length } from "./format.js";
import { isPressed, keysDialog } from "./keys.js";
import { LibraryView } from "./library.js";
import { examples, failure, notice } from "./notices.js";
import { SearchView } from "./search.js";

const THRESHOLD = 0.5; // the default of the server

const main = byId("main");
const box = byId("query");
let library = null;
let tokenError = ""; // why the token in the URL did not work
let latest = 0; // number of the latest call of `show`; earlier ones must not change the page any more

// ---------------------------------------------------------------- the URL

function readUrl() {
  const params = new URLSearchParams(location.search);
  return {
    isLibrary: location.pathname === "/library",
    query: (params.get("q") ?? "").trim(),
    folder: params.get("folder") ?? "",
    threshold: params.has("threshold") ? Math.min(1, Math.max(0, Number(params.get("threshold")) || 0)) : THRESHOLD,
    video: params.get("v") ?? "",
  };
}

function urlOf({ query, folder = "", threshold = THRESHOLD, video = "" }) {
  const params = new URLSearchParams({ q: query });
  if (folder) params.set("folder", folder);
  if (threshold !== THRESHOLD) params.set("threshold", threshold);
  if (video) params.set("v", video);
  return `/?${params}`;
}

function go(url) {
  if (url !== location.pathname + location.search) history.pushState(null, "", url);
  return show();
}

const searchView = new SearchView({
  navigate: (question) => go(urlOf(question)),
  remember: (video) => history.replaceState(null, "", urlOf({ ...readUrl(), video })),
});

const libraryView = new LibraryView({ changed: () => show() });

// ---------------------------------------------------------------- views

async function show() {
  const now = (latest += 1);
  const { isLibrary, query, folder, threshold, video } = readUrl();
  document.body.dataset.view = isLibrary ? "library" : query ? "search" : "start";
  byId("hero").hidden = isLibrary || Boolean(query);
  byId("library-link").toggleAttribute("aria-current", isLibrary);
  if (isLibrary) byId("library-link").setAttribute("aria-current", "page");
  document.title = isLibrary ? "Library · midreel" : query ? `${query} · midreel` : "midreel";
  if (box.value.trim() !== query && !isLibrary) box.value = query;
  if (isLibrary || !query) searchView.leave();
  if (!isLibrary) libraryView.leave();
  try {
    if (isLibrary) {
      render(libraryView.element);
      await refresh();
      if (now === latest) await libraryView.show(library);
    } else if (query) {
      render(searchView.element);
      if (!library) await refresh().catch(() => {}); // the search reports the problem
      await searchView.show({ query, folder, threshold, video });
    } else {
      await showStart();
    }
  } catch (problem) {
    if (now === latest) render(problem.status === 401 ? tokenForm(tokenError) : failure(problem, show));
  }
}

function render(element) {
  if (main.firstElementChild !== element || main.childElementCount > 1) main.replaceChildren(element);
}

async function refresh() {
  library = await api.library();
  searchView.setLibrary(library);
}

async function showStart() {
  render(h("div", { class: "start" }));
  await refresh();
  const start = library.videos
    ? h(
        "div",
        { class: "start" },
        examples(library.examples, (query) => go(urlOf({ query }))),
        h("p", { class: "quiet operators" }, "Combine descriptions: ", ...["a cat AND a dog", "a boat OR a ship", "a car NOT at night", "a cat THEN a dog"].map((text) => h("code", {}, text))),
        h("p", { class: "quiet" }, `${count(library.videos, "video")}, ${length(library.seconds)}`),
        library.unsearchable ? h("p", { class: "quiet" }, h("a", { href: "/library", "data-nav": true }, `${count(library.unsearchable, "damaged video")}`), " cannot be found") : null,
      )
    : h("div", { class: "start" }, notice({ title: "The library is empty", text: "Index a folder of videos, then describe a moment.", actions: [{ label: "Open the library", act: () => go("/library") }] }));
  if (document.body.dataset.view === "start") render(start);
}

function tokenForm(wrong = "") {
  const field = h("input", { type: "password", id: "token", autocomplete: "current-password", required: true, "aria-describedby": "token-help" });
  return h(
    "form",
    {
      class: "notice",
      onsubmit: async (event) => {
        event.preventDefault();
        try {
          await api.signIn(field.value.trim());
          tokenError = "";
          show();
        } catch (problem) {
          render(problem.status === 401 ? tokenForm("Wrong token.") : failure(problem, show));
        }
      },
    },
    h("h1", {}, "Sign in"),
    h("p", { id: "token-help" }, "Enter the token of this server. It is in the URL that midreel serve printed."),
    h("label", { class: "field", for: "token" }, "Token"),
    field,
    wrong ? h("p", { role: "alert", class: "failure" }, wrong) : null,
    h("div", { class: "actions" }, h("button", { type: "submit", class: "button strong" }, "Sign in")),
  );
}

// ---------------------------------------------------------------- clicks and keys

byId("search-form").addEventListener("submit", (event) => {
  event.preventDefault();
  const query = box.value.trim().replace(/\s+/g, " ");
  const { folder, threshold } = readUrl();
  if (!query) return go("/");
  if (query === readUrl().query && searchView.hasHits) return searchView.playChosen();
  box.blur();
  return go(urlOf({ query, folder, threshold }));
});

document.addEventListener("click", (event) => {
  const link = event.target.closest("a[data-nav]");
  if (!link || event.button || event.metaKey || event.ctrlKey || event.shiftKey) return;
  event.preventDefault();
  go(link.getAttribute("href"));
});

const acceptsText = (element) => element.matches("input:not([type=range]), textarea, select, [contenteditable]");

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing || event.defaultPrevented || document.querySelector("dialog[open]")) return;
  const here = document.activeElement ?? document.body;
  const isTyping = acceptsText(here);
  if (!isTyping && isPressed(event, "/")) {
    event.preventDefault();
    box.focus();
    box.select();
  } else if (event.key === "Escape") {
    if (searchView.stage.isPlaying) searchView.stage.stop();
    else if (here === box) box.blur();
    else if (document.body.dataset.view === "search") searchView.focusChosen();
  } else if (document.body.dataset.view !== "search" || !searchView.hasHits || here.matches("select, [type=range], video")) {
    return;
  } else if (event.key === "ArrowDown" || event.key === "ArrowUp") {
    if (isTyping && here !== box) return;
    event.preventDefault();
    if (here === box && event.key === "ArrowDown") searchView.focusChosen();
    else if (here !== box) searchView.step(event.key === "ArrowDown" ? 1 : -1);
  } else if (!isTyping && isPressed(event, "l")) {
    searchView.stage.toggleLoop();
  } else if (isTyping || here.matches("button, a, summary")) {
    return; // these elements handle the remaining keys themselves
  } else if (event.key === "Enter") {
    searchView.playChosen();
  } else if (event.key === " ") {
    event.preventDefault();
    searchView.stage.toggle();
  }
});

addEventListener("popstate", show);

const keys = keysDialog();
document.body.append(keys);
byId("keys").append(icon("keys"));
byId("keys").addEventListener("click", () => keys.showModal());

// ---------------------------------------------------------------- theme

const THEMES = ["auto", "light", "dark"];
const NAMES = { auto: "system", light: "light", dark: "dark" };

function showTheme() {
  const theme = document.documentElement.dataset.theme ?? "auto";
  byId("theme").replaceChildren(icon(theme));
  byId("theme").setAttribute("aria-label", `Theme: ${NAMES[theme]}`);
  byId("theme").title = `Theme: ${NAMES[theme]}`;
}

byId("theme").addEventListener("click", () => {
  const now = document.documentElement.dataset.theme ?? "auto";
  const next = THEMES[(THEMES.indexOf(now) + 1) % THEMES.length];
  if (next === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = next;
  try {
    localStorage.setItem("midreel-theme", next);
  } catch {
    // Without storage, the choice lasts until the page is closed.
  }
  showTheme();
});

// ---------------------------------------------------------------- start

async function start() {
  showTheme();
  const token = new URLSearchParams(location.hash.slice(1)).get("token");
  if (token) {
    history.replaceState(null, "", location.pathname + location.search);
    await api.signIn(token).catch((problem) => (tokenError = problem.status === 401 ? "The token in the URL is wrong." : problem.message));
  }
  await show();
  if (document.body.dataset.view === "start" && matchMedia("(hover: hover)").matches) box.focus();
}

start();
