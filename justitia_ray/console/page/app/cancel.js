/** Cancelling an application: for operators, after a question. */
import { useState } from "../vendor/preact-hooks.mjs";
import { signal } from "../vendor/signals.mjs";
import { Dialog } from "./dialog.js";
import { html } from "./html.js";
import { call, inWords } from "./service.js";

/** The application whose cancelling is in question; it may leave the queue meanwhile. */
const inQuestion = signal(null);
/** Id of the application that was cancelled last, for a notice; null: none. */
export const cancelled = signal(null);

/** @param {{application: string, id: string, isShort?: boolean}} props */
export function CancelButton({ application, id, isShort }) {
  return html`<button
    class=${`danger ${isShort ? "short" : ""}`}
    aria-label=${`Cancel ${id}`}
    onClick=${() => (inQuestion.value = { application, id })}
  >
    Cancel
  </button>`;
}

export function CancelDialog() {
  const asked = inQuestion.value;
  return asked && html`<${Question} key=${asked.application} ...${asked} />`;
}

function Question({ application, id }) {
  const [state, setState] = useState({ busy: false, error: null });
  const close = () => (inQuestion.value = null);
  const cancel = async (event) => {
    event.preventDefault();
    setState({ busy: true, error: null });
    try {
      await call(`v1/applications/${encodeURIComponent(application)}`, { method: "DELETE" });
      cancelled.value = id;
      close();
    } catch (error) {
      setState({ busy: false, error: inWords(error) });
    }
  };
  return html`<${Dialog} title=${`Cancel ${id}?`} onClose=${close}>
    <form onSubmit=${cancel}>
      <p>
        Its waiting and running calls end with an error, and its id is blocked for a while. This cannot be
        undone.
      </p>
      ${state.error && html`<p class="error" role="alert">${state.error}</p>`}
      <div class="row">
        <button type="button" onClick=${close}>Keep it</button>
        <button class="danger" disabled=${state.busy}>Cancel the application</button>
      </div>
    </form>
  <//>`;
}
