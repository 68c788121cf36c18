/** One application: what it did, why it waits, what it was predicted to cost. */
import { useEffect, useState } from "../vendor/preact-hooks.mjs";
import { address, link } from "./address.js";
import { CancelButton } from "./cancel.js";
import { hello } from "./feed.js";
import { amount, count, counted, percent, seconds, spread } from "./format.js";
import { html } from "./html.js";
import { Notice, Panel, PicturePanel, Table, Tenant } from "./parts.js";
import { callJson, inWords } from "./service.js";
import { Timeline, TimelineLegend, callRows } from "./timeline.js";

const EVERY_MS = 2_000;

export function ApplicationView() {
  const { application } = address.value;
  const [answer, setAnswer] = useState({ of: "", found: null, error: null });
  useEffect(() => {
    const stopped = new AbortController();
    let timer = 0;
    const ask = async () => {
      try {
        const path = `v1/console/applications/${application.split("/").map(encodeURIComponent).join("/")}`;
        const found = await callJson(path, { signal: stopped.signal });
        setAnswer({ of: application, found, error: null });
      } catch (error) {
        if (stopped.signal.aborted) return;
        setAnswer((before) => ({ ...before, of: application, error }));
      }
      timer = setTimeout(ask, EVERY_MS);
    };
    ask();
    return () => {
      stopped.abort();
      clearTimeout(timer);
    };
  }, [application, hello.value]);

  const { of, error } = answer;
  const found = of === application ? answer.found : null;
  const name = found?.application_id ?? application.split("|").at(-1);
  return html`<nav class="crumbs" aria-label="Where">
      <a ...${link({ application: "" })}>Now</a><span class="muted">/</span>
      <h1 class="mono">${name}</h1>
      ${found && html`<${Tenant} path=${found.tenant} />`}
      ${
        found &&
        hello.value?.is_operator &&
        isLive(found) &&
        html`<div class="end"><${CancelButton} application=${application} id=${name} /></div>`
      }
    </nav>
    ${of === application && error && html`<${Notice} tone="warn">${troubleOf(error, found)}<//>`}
    ${found && html`<${Models} models=${Object.entries(found.models)} />`}
    ${!found && !error && html`<p class="empty">Asking for the application …</p>`}`;
}

function Models({ models }) {
  return models.map(
    ([model, one]) =>
      html`<${AtModel} key=${model} model=${models.length > 1 ? model : ""} one=${one} />`,
  );
}

function isLive({ models }) {
  return Object.values(models).some((one) => one.state !== "ended");
}

function troubleOf(error, found) {
  if (error.status === 404) {
    return found
      ? "The application has ended and is no longer kept; these are the last figures."
      : "No such application is open, or it is another tenant's, or it ended some minutes ago.";
  }
  return inWords(error);
}

function AtModel({ model, one }) {
  return html`<${Outlook} one=${one} model=${model} />
    <${PicturePanel}
      title="Timeline"
      about=${timelineAbout(one)}
      picture=${() => html`<div class="body"><${TimelineLegend} /><${Timeline} one=${one} /></div>`}
      table=${() => html`<${CallsTable} one=${one} />`}
    />
    <${Panel} title="Cost" about="KV token-time is KV memory times the iterations for which it is held">
      <div class="body"><${Figures} pairs=${costs(one)} /></div>
    <//>`;
}

function Outlook({ one, model }) {
  const { row } = one;
  const state =
    one.state === "ended"
      ? `ended: ${one.outcome ?? "closed"}`
      : one.running
        ? "running"
        : row
          ? "waiting"
          : "at a tool";
  const tone = one.state === "ended" ? "" : one.running ? "good" : row ? "warn" : "";
  const about = [
    model,
    one.application_class,
    one.tier !== "default" && `tier ${one.tier}`,
    `weight ${one.weight}`,
    one.recognized_by && `recognised by ${one.recognized_by}`,
  ];
  return html`<${Panel}
    title="Why and when"
    about=${about.filter(Boolean).join(" · ")}
    end=${[html`<span class=${`badge ${tone}`}>${state}</span>`, html`<${TraceLink} trace=${one.trace} />`]}
  >
    <div class="body">
      <p class="why">${sentence(one)}</p>
      ${row && html`<${Figures} pairs=${outlookFigures(row)} />`}
    </div>
  <//>`;
}

function sentence({ row, state, running, at, arrived_at: arrived, ended_at: ended }) {
  const age = `it arrived ${seconds(at - arrived)} ago`;
  if (state === "ended") return `It took ${seconds(ended - arrived)} from its arrival to its end.`;
  if (row && row.reason !== "running")
    return `It waits: ${row.why}. What would help: ${row.what_would_help}.`;
  if (running)
    return `${counted(running, "call")} of it ${running === 1 ? "runs" : "run"} now; ${age}.`;
  return `It asks nothing of the model now: its caller or a tool is at work; ${age}.`;
}

function outlookFigures(row) {
  return [
    ["Place in the queue", row.position === null ? "–" : count(row.position + 1), "1 is next"],
    ["Before it", amount(row.ahead_kv_token_time), "token·iterations to be served"],
    ["Starts in", spread(row.expected_start_s), "p10 to p90"],
    ["Ends in", spread(row.expected_finish_s), "p10 to p90"],
    [
      "Promised by",
      row.guaranteed_by_s === null ? "–" : seconds(row.guaranteed_by_s),
      "all its waiting calls have started",
    ],
    ["Waited", seconds(row.waited_s), counted(row.waiting, "call")],
  ];
}

function costs(one) {
  const { predicted_kv_token_time: predicted, kv_token_time: served, prompt_tokens: prompt } = one;
  const cached = one.cached_prompt_tokens;
  const ofPredicted = predicted ? served / predicted : null;
  const ofPrompt = prompt ? cached / prompt : null;
  return [
    ["Predicted cost", amount(predicted), "token·iterations"],
    [
      one.state === "ended" ? "True cost" : "Cost so far",
      amount(served),
      html`<${Part} part=${ofPredicted} />${percent(ofPredicted)} of the predicted`,
    ],
    ["Prompt tokens", amount(prompt), "of ended calls"],
    [
      "of them cached",
      amount(cached),
      html`<${Part} part=${ofPrompt} />${percent(ofPrompt)} found in the engine's cache`,
    ],
    [
      "computed",
      amount(prompt - cached),
      html`<${Part} part=${ofPrompt === null ? null : 1 - ofPrompt} />not found in it`,
    ],
    [
      "Output tokens",
      amount(one.output_tokens),
      `of ${counted(one.inferences, "ended call")}; ${count(one.running)} run, ${count(one.waiting)} wait`,
    ],
  ];
}

function Part({ part }) {
  return html`<span class="meter slim" aria-hidden="true">
    <span
      class=${part > 1 ? "used over" : "used"}
      style=${{ width: `${Math.min(100, 100 * (part ?? 0))}%` }}
    ></span>
  </span>`;
}

function Figures({ pairs }) {
  return html`<dl class="figures">
    ${pairs.map(
      ([name, value, detail]) => html`<div>
        <dt>${name}</dt>
        <dd>${value}<small>${detail}</small></dd>
      </div>`,
    )}
  </dl>`;
}

function TraceLink({ trace }) {
  if (!trace) return null;
  if (trace.url) {
    return html`<a href=${trace.url} target="_blank" rel="noopener noreferrer">Open its trace</a>`;
  }
  const start = trace.trace_id.slice(0, 12);
  return html`<span class="muted small">trace <span class="mono">${start}…</span></span>`;
}

function timelineAbout(one) {
  const parts = [counted(one.calls.length, "recorded call")];
  if (one.left_out) parts.push(`${count(one.left_out)} earlier ones dropped`);
  if (one.recorded_from > one.arrived_at) parts.push("it arrived before the recording began");
  return parts.join(" · ");
}

const COLUMNS = [
  { name: "Call", cell: (call) => html`<span class="mono">${call.inference_id}</span>` },
  { name: "Replica", cell: (call) => html`<span class="mono">${call.replica_id ?? "–"}</span>` },
  { name: "State", cell: (call) => call.outcome ?? (call.started_at === null ? "waits" : "runs") },
  { name: "Queue", number: true, cell: ({ phases }) => seconds(phases.queue) },
  { name: "Prefill", number: true, cell: ({ phases }) => seconds(phases.prefill) },
  { name: "Decode", number: true, cell: ({ phases }) => seconds(phases.decode) },
  { name: "Tool before it", number: true, cell: ({ phases }) => seconds(phases.tool) },
  { name: "Prompt", number: true, cell: (call) => count(call.prompt_tokens) },
  { name: "Cached", number: true, cell: (call) => count(call.cached_prompt_tokens) },
  { name: "Output", number: true, cell: (call) => count(call.output_tokens) },
  { name: "Predicted", number: true, cell: (call) => count(call.predicted_output_tokens) },
];

function CallsTable({ one }) {
  return html`<${Table}
    caption="Recorded calls of the application; durations of their phases, and tokens"
    columns=${COLUMNS}
    rows=${callRows(one)}
    rowKey=${(call) => call.inference_id}
    empty="No call is recorded."
  />`;
}
