// Runs before the first paint, so that a dark page does not flash white.
(() => {
  try {
    const chosen = localStorage.getItem("midreel-theme");
    if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
  } catch {
    // Without storage, the theme of the system applies.
  }
})();
