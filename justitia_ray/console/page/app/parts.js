/** Small parts that several views share. */
import { useEffect, useState } from "../vendor/preact-hooks.mjs";
import { link } from "./address.js";
import { html } from "./html.js";
import { tenantColour } from "./tenants.js";

/** A tenant's path behind its colour. */
export function Tenant({ path }) {
  return html`<span class="tenant">
    <span class="swatch" style=${{ background: `var(--${tenantColour(path)})` }}></span>
    <span class="clip" title=${path}>${path}</span>
  </span>`;
}

/** An application's id, which opens the application. */
export function ApplicationLink({ application, id }) {
  return html`<a class="clip mono" title=${id} ...${link({ application })}>${id}</a>`;
}

/**
 * A titled box.
 * @param {{title: string, about?: any, end?: any, children: any}} props
 */
export function Panel({ title, about, end, children }) {
  return html`<section class="panel" aria-label=${title}>
    <header>
      <h2>${title}</h2>
      ${about && html`<span class="muted small">${about}</span>`}
      ${end && html`<div class="end">${end}</div>`}
    </header>
    ${children}
  </section>`;
}

/**
 * A panel whose body is a picture, or the same as a table.
 * @param {{title: string, about?: any, end?: any, picture: () => any, table: () => any}} props
 */
export function PicturePanel({ title, about, end, picture, table }) {
  const [asTable, setAsTable] = useState(false);
  const toggle = html`<button
    class="short"
    aria-pressed=${asTable}
    aria-label=${`${title}: show as table`}
    onClick=${() => setAsTable(!asTable)}
  >
    Table
  </button>`;
  return html`<${Panel} title=${title} about=${about} end=${[end, toggle]}>
    ${asTable ? table() : picture()}
  <//>`;
}

/**
 * A table from columns.
 * @param {object} props
 * @param {string} props.caption what it shows, for screen readers
 * @param {{name: string, cell: (row: any) => any, number?: boolean, class?: string}[]} props.columns
 * @param {any[]} props.rows
 * @param {(row: any) => any} props.rowKey
 * @param {string} [props.empty] text without rows
 */
export function Table({ caption, columns, rows, rowKey, empty = "Nothing to show." }) {
  if (!rows.length) return html`<p class="empty">${empty}</p>`;
  const kind = (column) => `${column.number ? "number" : ""} ${column.class ?? ""}`.trim() || null;
  return html`<div class="scroll tall" tabindex="0" role="region" aria-label=${caption}>
    <table>
      <caption class="hidden-text">${caption}</caption>
      <thead>
        <tr>
          ${columns.map((column) => html`<th scope="col" class=${kind(column)}>${column.name}</th>`)}
        </tr>
      </thead>
      <tbody>
        ${rows.map(
          (row) => html`<tr key=${rowKey(row)}>
            ${columns.map((column) => html`<td class=${kind(column)}>${column.cell(row)}</td>`)}
          </tr>`,
        )}
      </tbody>
    </table>
  </div>`;
}

/** A message across the page; `tone` is `good`, `warn` or `bad`. */
export function Notice({ tone, children, action }) {
  const role = tone === "bad" ? "alert" : "status";
  return html`<div class=${`notice ${tone}`} role=${role}><div>${children}</div>${action}</div>`;
}

/** Pairs of names and values. */
export function Pairs({ pairs }) {
  return html`<dl class="pairs">
    ${pairs.map(([name, value]) => html`<dt>${name}</dt><dd>${value}</dd>`)}
  </dl>`;
}

/** Seconds since the page opened, renewed every `interval` seconds. */
export function useClock(interval = 1) {
  const [now, setNow] = useState(performance.now());
  useEffect(() => {
    const timer = setInterval(() => setNow(performance.now()), interval * 1000);
    return () => clearInterval(timer);
  }, [interval]);
  return now;
}
