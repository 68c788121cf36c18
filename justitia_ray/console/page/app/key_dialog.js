/** The dialog that asks for the key, and the button that opens it again. */
import { useState } from "../vendor/preact-hooks.mjs";
import { signal } from "../vendor/signals.mjs";
import { Dialog } from "./dialog.js";
import { connection, hello } from "./feed.js";
import { html } from "./html.js";
import { inWords, key } from "./service.js";

const opened = signal(false);

/** Who looks at the page: opens the dialog for another key. */
export function KeyButton() {
  const seen = hello.value;
  const who = !seen ? "No key" : seen.tenant === null ? "All tenants" : seen.tenant;
  return html`<button class="short" title="Use another key" onClick=${() => (opened.value = true)}>
    ${who}
  </button>`;
}

export function KeyDialog() {
  const [typed, setTyped] = useState("");
  const { state, error } = connection.value;
  const refused = state === "refused";
  if (!refused && !opened.value) return null;
  const close = () => (opened.value = false);
  const use = (event) => {
    event.preventDefault();
    connection.value = { state: "connecting", error: null, retryAt: 0 };
    key.value = typed.trim();
    setTyped("");
    close();
  };
  return html`<${Dialog} title="API key" onClose=${refused ? undefined : close}>
    <form onSubmit=${use}>
      <p class="muted">
        An operator's key shows all tenants; a key with the scope “own” shows its tenant. The page
        keeps the key until it is closed or reloaded, and stores it nowhere.
      </p>
      ${refused && html`<p class="error" role="alert">${inWords(error)}</p>`}
      <label>
        Key
        <input
          type="password"
          autocomplete="off"
          spellcheck=${false}
          required
          autofocus
          value=${typed}
          onInput=${(event) => setTyped(event.target.value)}
        />
      </label>
      <div class="row">
        ${!refused && html`<button type="button" onClick=${close}>Close</button>`}
        <button class="main">Use this key</button>
      </div>
    </form>
  <//>`;
}
