/** The page's address: view, open application and filters live in it, so that a link shows the same. */
import { signal } from "../vendor/signals.mjs";

const DEFAULTS = {
  view: "now",
  application: "",
  model: "",
  tenant: "",
  class: "",
  text: "",
  past: "120",
};
/** Lengths of the past that the lanes can show, by seconds. */
export const PASTS = { 60: "1 min", 120: "2 min", 300: "5 min" };
export const VIEWS = { now: "Now", shares: "Shares", predictor: "Predictor", "what-if": "What if" };

/** Parts of the address, each a string; a part that is missing has its default. */
export const address = signal(read());

addEventListener("popstate", () => (address.value = read()));

function read() {
  const given = new URLSearchParams(location.search);
  const parts = {};
  for (const [name, fallback] of Object.entries(DEFAULTS))
    parts[name] = given.get(name) ?? fallback;
  if (!(parts.view in VIEWS)) parts.view = DEFAULTS.view;
  if (!(parts.past in PASTS)) parts.past = DEFAULTS.past;
  return parts;
}

/**
 * Return the link to the present address with some parts changed.
 * @param {Partial<typeof DEFAULTS>} parts
 */
function linkTo(parts) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries({ ...address.value, ...parts })) {
    if (value !== DEFAULTS[name]) query.set(name, value);
  }
  const text = query.toString();
  return text ? `?${text}` : location.pathname;
}

/** Go to another view or application; the browser's back button returns. */
export function go(parts) {
  history.pushState(null, "", linkTo(parts));
  address.value = read();
  scrollTo(0, 0);
}

/** Change a filter, without an entry in the browser's history for each letter. */
export function setFilter(parts) {
  history.replaceState(null, "", linkTo(parts));
  address.value = read();
}

/**
 * Properties of a link that changes the address without loading the page again.
 * @param {Partial<typeof DEFAULTS>} parts
 */
export function link(parts) {
  return {
    href: linkTo(parts),
    onClick(event) {
      if (event.ctrlKey || event.metaKey || event.shiftKey || event.button !== 0) return;
      event.preventDefault();
      go(parts);
    },
  };
}

/** Whether an application passes the filters of the address. */
export function isShown({ tenant, application_class: kind, application_id: id }) {
  const wanted = address.value;
  const underTenant =
    !wanted.tenant || tenant === wanted.tenant || tenant.startsWith(`${wanted.tenant}/`);
  const text = wanted.text.toLowerCase();
  return (
    underTenant &&
    (!wanted.class || kind === wanted.class) &&
    (!text || `${id} ${tenant} ${kind}`.toLowerCase().includes(text))
  );
}

export function hasFilters() {
  const { tenant, class: kind, text } = address.value;
  return Boolean(tenant || kind || text);
}
