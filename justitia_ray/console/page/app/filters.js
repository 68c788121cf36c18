/** Filters of lanes, queue and shares; they live in the address. */
import { address, go, hasFilters, setFilter } from "./address.js";
import { feed, hello } from "./feed.js";
import { html } from "./html.js";

export function Filters() {
  const { frame, lanes } = feed.value;
  const wanted = address.value;
  const labels = [...lanes.labels.values(), ...frame.queue.rows];
  const tenants = distinct([
    ...frame.shares.map((row) => row.node),
    ...labels.map(({ tenant }) => tenant),
    wanted.tenant,
  ]);
  const classes = distinct([...labels.map((label) => label.application_class), wanted.class]);
  const [first, ...others] = hello.value.models;
  const clear = () => setFilter({ tenant: "", class: "", text: "" });
  const find = (event) => {
    event.preventDefault();
    const found = frame.queue.rows.find((row) => row.application_id === wanted.text);
    const id = found?.application ?? keyOf(lanes, wanted.text) ?? wanted.text;
    if (id) go({ application: id, text: "" });
  };
  return html`<form class="filters" role="search" aria-label="Filters" onSubmit=${find}>
    ${
      hello.value.models.length > 1 &&
      html`<${Choice} name="Model" part="model" any=${first} choices=${others} />`
    }
    <${Choice} name="Tenant" part="tenant" any="all tenants" choices=${tenants} />
    <${Choice} name="Class" part="class" any="all classes" choices=${classes} />
    <input
      type="search"
      aria-label="Text in id, tenant or class"
      placeholder="Text, or an id and Enter"
      value=${wanted.text}
      onInput=${(event) => setFilter({ text: event.target.value.trim() })}
    />
    ${
      hasFilters() &&
      html`<button type="button" class="quiet" onClick=${clear}>
      Clear filters
    </button>`
    }
  </form>`;
}

function Choice({ name, part, any, choices }) {
  return html`<label
    >${name}
    <select value=${address.value[part]} onChange=${(event) => setFilter({ [part]: event.target.value })}>
      <option value="">${any}</option>
      ${choices.map((one) => html`<option value=${one}>${one}</option>`)}
    </select>
  </label>`;
}

function keyOf(lanes, id) {
  for (const [application, label] of lanes.labels)
    if (label.application_id === id) return application;
  return null;
}

function distinct(names) {
  return [...new Set(names)].filter(Boolean).sort();
}
