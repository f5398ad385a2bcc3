// The address decides what is shown; keys and clicks change the address.

import * as api from "./api.js";
import { byId, h, icon } from "./dom.js";
import { count, length } from "./format.js";
import { isPressed, keysDialog } from "./keys.js";
import { LibraryView } from "./library.js";
import { examples, failure, notice } from "./notices.js";
import { SearchView } from "./search.js";

const main = byId("main");
const box = byId("query");
let library = null;
let wrongToken = ""; // what is wrong with the one in the address
let turn = 0; // of what was asked for last

// ---------------------------------------------------------------- the address

function asked() {
  const words = new URLSearchParams(location.search);
  return {
    isLibrary: location.pathname === "/library",
    query: (words.get("q") ?? "").trim(),
    folder: words.get("folder") ?? "",
    least: Math.min(1, Math.max(0, Number(words.get("min")) || 0)),
    video: words.get("v") ?? "",
  };
}

function addressOf({ query, folder = "", least = 0, video = "" }) {
  const words = new URLSearchParams({ q: query });
  if (folder) words.set("folder", folder);
  if (least) words.set("min", least);
  if (video) words.set("v", video);
  return `/?${words}`;
}

function go(address) {
  if (address !== location.pathname + location.search) history.pushState(null, "", address);
  return show();
}

const searchView = new SearchView({
  navigate: (question) => go(addressOf(question)),
  remember: (video) => history.replaceState(null, "", addressOf({ ...asked(), video })),
});

const libraryView = new LibraryView({ changed: () => show() });

// ---------------------------------------------------------------- what is shown

async function show() {
  const now = (turn += 1);
  const { isLibrary, query, folder, least, video } = asked();
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
      place(libraryView.element);
      await refresh();
      if (now === turn) await libraryView.show(library);
    } else if (query) {
      place(searchView.element);
      if (!library) await refresh().catch(() => {}); // what is wrong shows when it is searched
      await searchView.show({ query, folder, least, video });
    } else {
      await showStart();
    }
  } catch (problem) {
    if (now === turn) place(problem.status === 401 ? tokenForm(wrongToken) : failure(problem, show));
  }
}

function place(element) {
  if (main.firstElementChild !== element || main.childElementCount > 1) main.replaceChildren(element);
}

async function refresh() {
  library = await api.library();
  searchView.setLibrary(library);
}

async function showStart() {
  place(h("div", { class: "start" }));
  await refresh();
  const start = library.videos
    ? h(
        "div",
        { class: "start" },
        examples(library.examples, (query) => go(addressOf({ query }))),
        h("p", { class: "quiet" }, `${count(library.videos, "video")}, ${length(library.seconds)}`),
        library.unsearchable ? h("p", { class: "quiet" }, h("a", { href: "/library", "data-nav": true }, `${count(library.unsearchable, "video is", "videos are")} damaged`), " and cannot be found") : null,
      )
    : h("div", { class: "start" }, notice({ title: "The library is empty", text: "Index a folder of videos, then describe what you look for.", actions: [{ label: "Open the library", act: () => go("/library") }] }));
  if (document.body.dataset.view === "start") place(start);
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
          await api.enter(field.value.trim());
          wrongToken = "";
          show();
        } catch (problem) {
          place(problem.status === 401 ? tokenForm("That is not the token.") : failure(problem, show));
        }
      },
    },
    h("h1", {}, "A token, please"),
    h("p", { id: "token-help" }, "Whoever started the server has it. The address that midreel serve printed holds it too."),
    h("label", { class: "field", for: "token" }, "Token"),
    field,
    wrong ? h("p", { role: "alert", class: "failure" }, wrong) : null,
    h("div", { class: "actions" }, h("button", { type: "submit", class: "button strong" }, "Open")),
  );
}

// ---------------------------------------------------------------- clicks and keys

byId("search-form").addEventListener("submit", (event) => {
  event.preventDefault();
  const query = box.value.trim().replace(/\s+/g, " ");
  const { folder, least } = asked();
  if (!query) return go("/");
  if (query === asked().query && searchView.hasHits) return searchView.playChosen();
  box.blur();
  return go(addressOf({ query, folder, least }));
});

document.addEventListener("click", (event) => {
  const link = event.target.closest("a[data-nav]");
  if (!link || event.button || event.metaKey || event.ctrlKey || event.shiftKey) return;
  event.preventDefault();
  go(link.getAttribute("href"));
});

const types = (element) => element.matches("input:not([type=range]), textarea, select, [contenteditable]");

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing || event.defaultPrevented || document.querySelector("dialog[open]")) return;
  const here = document.activeElement ?? document.body;
  const isTyping = types(here);
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
    return; // they have their own use for what follows
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

// ---------------------------------------------------------------- colours

const THEMES = ["auto", "light", "dark"];
const NAMES = { auto: "as the system", light: "light", dark: "dark" };

function showTheme() {
  const theme = document.documentElement.dataset.theme ?? "auto";
  byId("theme").replaceChildren(icon(theme));
  byId("theme").setAttribute("aria-label", `Colours: ${NAMES[theme]}`);
  byId("theme").title = `Colours: ${NAMES[theme]}`;
}

byId("theme").addEventListener("click", () => {
  const now = document.documentElement.dataset.theme ?? "auto";
  const next = THEMES[(THEMES.indexOf(now) + 1) % THEMES.length];
  if (next === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = next;
  try {
    localStorage.setItem("midreel-theme", next);
  } catch {
    // Then until the page is closed.
  }
  showTheme();
});

// ---------------------------------------------------------------- start

async function start() {
  showTheme();
  const token = new URLSearchParams(location.hash.slice(1)).get("token");
  if (token) {
    history.replaceState(null, "", location.pathname + location.search);
    await api.enter(token).catch((problem) => (wrongToken = problem.status === 401 ? "The address holds another token." : problem.message));
  }
  await show();
  if (document.body.dataset.view === "start" && matchMedia("(hover: hover)").matches) box.focus();
}

start();
