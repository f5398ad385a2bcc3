// Before anything is drawn, so that nobody sees a white flash at night.
(() => {
  try {
    const chosen = localStorage.getItem("midreel-theme");
    if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
  } catch {
    // Storage may be switched off; the system's colours do.
  }
})();
