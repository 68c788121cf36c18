/** Light or dark: the system's choice, until the switch of the page overrules it. */
import { effect, signal } from "../vendor/signals.mjs";

const STORED = "justitia-theme";
const system = matchMedia("(prefers-color-scheme: dark)");
const systemIsDark = signal(system.matches);
system.addEventListener("change", () => (systemIsDark.value = system.matches));

const chosen = signal(localStorage.getItem(STORED));

export const isDark = () => (chosen.value ? chosen.value === "dark" : systemIsDark.value);

export function switchTheme() {
  chosen.value = isDark() ? "light" : "dark";
  localStorage.setItem(STORED, chosen.value);
}

effect(() => {
  document.documentElement.dataset.theme = isDark() ? "dark" : "light";
});

/** Return the present value of a colour of the style sheet, for a canvas. */
export function colour(name) {
  probe.style.color = `var(--${name})`;
  return getComputedStyle(probe).color;
}

const probe = document.createElement("span");
probe.hidden = true;
document.documentElement.append(probe);
