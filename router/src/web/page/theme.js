// Dark or light, before anything is drawn: as the system prefers, until somebody chooses.
(() => {
  const KEY = "millrace-theme";
  const root = document.documentElement;
  const store = (value) => {
    try {
      if (value === undefined) return localStorage.getItem(KEY);
      localStorage.setItem(KEY, value);
    } catch {
      // The browser keeps nothing for this page.
    }
    return null;
  };
  const system = matchMedia("(prefers-color-scheme: dark)");
  const shown = () => root.dataset.theme ?? (system.matches ? "dark" : "light");
  const chosen = store();
  if (chosen === "dark" || chosen === "light") root.dataset.theme = chosen;

  addEventListener("DOMContentLoaded", () => {
    const button = document.getElementById("theme");
    const label = () => {
      const other = shown() === "dark" ? "light" : "dark";
      button.textContent = other === "light" ? "☀ Light" : "☾ Dark";
      button.setAttribute("aria-label", `Switch to ${other} colours`);
    };
    button.addEventListener("click", () => {
      root.dataset.theme = shown() === "dark" ? "light" : "dark";
      store(root.dataset.theme);
      label();
    });
    system.addEventListener("change", label);
    label();
  });
})();
