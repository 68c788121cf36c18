/** Cancelling an application: for operators, after a question. */
import { useState } from "../vendor/preact-hooks.mjs";
import { signal } from "../vendor/signals.mjs";
import { Dialog } from "./dialog.js";
import { html } from "./html.js";
import { call, inWords } from "./service.js";

/** The last cancelled application, for a notice; null: none. */
export const cancelled = signal(null);

/** @param {{application: string, id: string, isShort?: boolean}} props */
export function CancelButton({ application, id, isShort }) {
  const [asked, setAsked] = useState(false);
  return html`<button
      class=${`danger ${isShort ? "short" : ""}`}
      aria-label=${`Cancel ${id}`}
      onClick=${() => setAsked(true)}
    >
      Cancel
    </button>
    ${asked && html`<${Question} application=${application} id=${id} onClose=${() => setAsked(false)} />`}`;
}

function Question({ application, id, onClose }) {
  const [state, setState] = useState({ busy: false, error: null });
  const cancel = async (event) => {
    event.preventDefault();
    setState({ busy: true, error: null });
    try {
      await call(`v1/applications/${encodeURIComponent(application)}`, { method: "DELETE" });
      cancelled.value = id;
      onClose();
    } catch (error) {
      setState({ busy: false, error: inWords(error) });
    }
  };
  return html`<${Dialog} title=${`Cancel ${id}?`} onClose=${onClose}>
    <form onSubmit=${cancel}>
      <p>
        Its waiting and running calls end with an error, and its id is blocked for a while. This cannot be
        undone.
      </p>
      ${state.error && html`<p class="error" role="alert">${state.error}</p>`}
      <div class="row">
        <button type="button" onClick=${onClose}>Keep it</button>
        <button class="danger" disabled=${state.busy}>Cancel the application</button>
      </div>
    </form>
  <//>`;
}
