/** The console: header, notices, strip, and the view that the address names. */
import { render } from "../vendor/preact.mjs";
import { VIEWS, address, link } from "./address.js";
import { ApplicationView } from "./application.js";
import { CancelDialog, cancelled } from "./cancel.js";
import {
  connection,
  connectionTrouble,
  feed,
  followForever,
  hello,
  model,
  retryNow,
} from "./feed.js";
import { Filters } from "./filters.js";
import { seconds } from "./format.js";
import { html } from "./html.js";
import { KeyButton, KeyDialog } from "./key_dialog.js";
import { LanesPanel } from "./lanes.js";
import { Notice, useClock } from "./parts.js";
import { PredictorView } from "./predictor.js";
import { QueuePanel } from "./queue.js";
import { SharesView } from "./shares.js";
import { Strip } from "./strip.js";
import { isDark, switchTheme } from "./theme.js";
import { WhatIfView } from "./what_if.js";

const FOR_OPERATORS = ["predictor", "what-if"];

function Console() {
  return html`<a class="skip" href="#content">Skip to the figures</a>
    <${Header} />
    <main id="content" class="content" tabindex="-1">
      <h1 class="hidden-text">Console of ${model.value || "the service"}</h1>
      <${Notices} />
      <${Body} />
    </main>
    <${KeyDialog} />
    <${CancelDialog} />`;
}

function Header() {
  const { view, application } = address.value;
  const isOperator = hello.value?.is_operator;
  const other = isDark() ? "light" : "dark";
  return html`<header class="top">
    <a class="brand" ...${link({ view: "now", application: "" })}
      ><img src="icon.svg" alt="" />justitia_ray</a
    >
    <nav class="views" aria-label="Views">
      ${Object.entries(VIEWS)
        .filter(([name]) => isOperator || !FOR_OPERATORS.includes(name))
        .map(
          ([name, title]) =>
            html`<a
              key=${name}
              aria-current=${name === view && !application ? "page" : null}
              ...${link({ view: name, application: "" })}
              >${title}</a
            >`,
        )}
    </nav>
    <div class="end">
      <${Live} />
      <${KeyButton} />
      <button class="short" aria-label=${`Use the ${other} theme`} onClick=${switchTheme}>
        ${other === "light" ? "Light" : "Dark"}
      </button>
    </div>
  </header>`;
}

/** Whether figures arrive, and how old the last ones are. */
function Live() {
  const now = useClock();
  const { state } = connection.value;
  const current = feed.value;
  const age = current?.frame ? (now - current.receivedAt) / 1000 : null;
  const isFresh = state === "live" && age !== null && age < 3;
  const text = isFresh ? "live" : age !== null && age >= 0 ? `${seconds(age)} old` : state;
  return html`<span class="live"><span class=${`dot ${isFresh ? "good" : "warn"}`}></span>${text}</span>`;
}

function Notices() {
  const trouble = connectionTrouble.value;
  const { state, retryAt } = connection.value;
  const ofModel = feed.value?.trouble;
  return html`${
    trouble &&
    state !== "refused" &&
    html`<${Notice} tone="bad" action=${html`<button class="short" onClick=${retryNow}>Try now</button>`}>
    ${trouble} <${Until} at=${retryAt} />${feed.value?.frame ? " The figures below are the last ones." : ""}
  <//>`
  }
  ${
    state === "live" &&
    ofModel &&
    html`<${Notice} tone="warn">
    No figures of ${ofModel.model} for ${seconds(ofModel.since_s)}: ${ofModel.reason}. The page goes
    on when the scheduler answers${feed.value.frame ? "; the figures below are the last ones" : ""}.
  <//>`
  }
  ${
    cancelled.value &&
    html`<${Notice}
    tone="good"
    action=${html`<button class="short" onClick=${() => (cancelled.value = null)}>Close</button>`}
  >
    ${cancelled.value} is cancelled.
  <//>`
  }`;
}

function Until({ at }) {
  useClock();
  const left = Math.max(0, (at - Date.now()) / 1000);
  return html`<span>Next try in ${Math.ceil(left)} s.</span>`;
}

function Body() {
  const { view, application } = address.value;
  if (!hello.value)
    return html`<p class="empty">${connectionTrouble.value ? "" : "Connecting …"}</p>`;
  if (application) return html`<${ApplicationView} />`;
  if (!feed.value?.frame) return html`<p class="empty">Waiting for the first figures …</p>`;
  if (FOR_OPERATORS.includes(view) && !hello.value.is_operator) {
    return html`<${Notice} tone="warn">Only a key with the scope “operate” sees this view.<//>`;
  }
  return html`<${Strip} frame=${feed.value.frame} />${VIEW[view]()}`;
}

const VIEW = {
  now: () => html`<${Filters} /><${LanesPanel} /><${QueuePanel} />`,
  shares: () => html`<${Filters} /><${SharesView} />`,
  predictor: () => html`<${PredictorView} />`,
  "what-if": () => html`<${WhatIfView} />`,
};

followForever();
render(html`<${Console} />`, document.getElementById("console"));
