/** The calls of an application over time: queue, prefill, decode, and the tool between calls. */
import { count, counted, seconds } from "./format.js";
import { html } from "./html.js";

const PHASES = { queue: "queue", prefill: "prefill", decode: "decode", tool: "tool or caller" };
/** Calls that the picture shows; the table has all. */
const SHOWN = 60;

/** Return the calls with the durations of their phases; a phase that has not begun is null. */
export function callRows({ at, calls, tools }) {
  return calls.map((call) => {
    const {
      submitted_at: submitted,
      started_at: started,
      first_token_at: first,
      ended_at: ended,
    } = call;
    const until = ended ?? at;
    const tool = tools.find(({ end }) => Math.abs(end - submitted) < 0.05);
    return {
      ...call,
      phases: {
        queue: (started ?? until) - submitted,
        prefill: started === null ? null : (first ?? until) - started,
        decode: first === null ? null : until - first,
        tool: tool ? tool.end - tool.start : null,
      },
    };
  });
}

export function TimelineLegend() {
  return html`<ul class="legend">
    ${Object.entries(PHASES).map(
      ([phase, name]) => html`<li><span class=${`swatch phase-${phase}`}></span>${name}</li>`,
    )}
  </ul>`;
}

export function Timeline({ one }) {
  const rows = callRows(one).slice(-SHOWN);
  if (!rows.length) return html`<p class="empty">No call of it is recorded yet.</p>`;
  const from = Math.min(one.arrived_at, ...rows.map((row) => row.submitted_at));
  const first = rows.length < one.calls.length ? rows[0].submitted_at : from;
  const to = Math.max(one.ended_at ?? one.at, first + 1);
  const position = (time) => `${(100 * (Math.max(time, first) - first)) / (to - first)}%`;
  const wide = (start, end) =>
    `${(100 * Math.max(0, end - Math.max(start, first))) / (to - first)}%`;
  const span = (phase, start, end) =>
    end > start &&
    html`<span
      class=${`phase phase-${phase}`}
      style=${{ left: position(start), width: wide(start, end) }}
      title=${`${PHASES[phase]}: ${seconds(end - start)}`}
    ></span>`;
  const description = `${counted(rows.length, "call")} over ${seconds(to - first)}; see the table`;
  const tick = ([time, name]) =>
    html`<span class="tick" style=${{ left: position(time) }}>${name}</span>`;
  return html`<div class="timeline" role="img" aria-label=${description}>
    ${rows.map((row) => {
      const until = row.ended_at ?? one.at;
      const started = row.started_at ?? until;
      const token = row.first_token_at ?? until;
      return html`<div class="call" key=${row.inference_id}>
        <span class="name">
          <span class="mono" title=${row.inference_id}>${row.inference_id.slice(0, 8)}</span>
          <span class="muted">${count(row.prompt_tokens)} → ${count(row.output_tokens)}</span>
        </span>
        <span class="track">
          ${row.phases.tool !== null && span("tool", row.submitted_at - row.phases.tool, row.submitted_at)}
          ${span("queue", row.submitted_at, started)} ${span("prefill", started, token)}
          ${span("decode", token, until)}
        </span>
        <span class="took">${seconds(until - row.submitted_at)}</span>
      </div>`;
    })}
    <div class="call axis">
      <span class="name muted">prompt → output tokens</span>
      <span class="track">${ticks(first, to).map(tick)}</span>
      <span class="took"></span>
    </div>
  </div>`;
}

/** Return some round times of a range, with their distance from its start. */
function ticks(from, to) {
  const steps = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1800, 3600, 7200, 14400];
  const step = steps.find((one) => (to - from) / one <= 8) ?? (to - from) / 8;
  const found = [];
  for (let time = 0; time < (to - from) * 0.97; time += step)
    found.push([from + time, tickName(time)]);
  return found;
}

function tickName(time) {
  if (time < 60) return time ? `${time} s` : "0";
  if (time < 3600) return `${Math.floor(time / 60)}${time % 60 ? ":30" : ""} min`;
  return `${time / 3600} h`;
}
