/** The strip: the state of one model's queue in a line of figures. */
import { amount, count, counted, percent, seconds } from "./format.js";
import { html } from "./html.js";

const TONES = { ready: "good", recovering: "warn", degraded: "warn", stalled: "bad", empty: "bad" };

export function Strip({ frame }) {
  const { strip, ages, own, others } = frame;
  const tiles = [
    [
      "State",
      html`<span class=${`dot ${TONES[strip.state] ?? "warn"}`}></span>${strip.state}`,
      strip.why ?? `${counted(own.applications + others.applications, "application")} live`,
    ],
    [
      "Waiting",
      ages ? html`${seconds(ages.p50_s)} <small>p50</small>` : "nothing",
      ages
        ? `p95 ${seconds(ages.p95_s)} · oldest ${seconds(ages.oldest_s)}`
        : `${counted(own.running, "inference")} running`,
    ],
    ["Drain time", seconds(strip.drain_s), `${count(frame.queue.waiting)} in the queue`],
    ["Replicas", ...replicas(frame)],
    ["KV memory", ...kvMemory(strip)],
    ["Redis", ...store(strip)],
    ["Policy", strip.policy, version(strip)],
  ];
  return html`<dl class="strip" aria-label="State of the queue">
    ${tiles.map(
      ([name, value, detail]) => html`<div class=${`tile ${name === "KV memory" ? "wide" : ""}`}>
        <dt>${name}</dt>
        <dd>
          <div class="value">${value}</div>
          <div class="detail">${detail}</div>
        </dd>
      </div>`,
    )}
  </dl>`;
}

function kvMemory({
  kv_tokens: all,
  used_kv_tokens: used,
  held_kv_tokens: held,
  free_kv_tokens: free,
}) {
  if (!all) return ["–", "not shown to this key"];
  const width = (part) => ({ width: `${Math.min(100, (100 * (part ?? 0)) / all)}%` });
  return [
    html`${percent((used ?? 0) / all)} <small>of ${amount(all)} tokens</small>`,
    html`<span class="meter" aria-hidden="true">
        <span class="used" style=${width(used)}></span>
        <span class="held" style=${width(held)}></span>
      </span>
      used ${amount(used)} · held ${amount(held)} · free ${amount(free)}`,
  ];
}

function replicas({ strip, replicas: lanes }) {
  const up = strip.replicas_up ?? lanes.length;
  const other = lanes.filter(({ state }) => state !== "serving");
  const states = other.map(({ state }) => state).sort();
  const text = [...new Set(states)].map(
    (state) => `${states.filter((one) => one === state).length} ${state}`,
  );
  const why = strip.replicas_wanted !== up ? strip.wanted_why : null;
  return [
    html`${count(up)} <small>up</small> ${
      strip.replicas_wanted != null && html`<small>· ${count(strip.replicas_wanted)} wanted</small>`
    }`,
    text.join(", ") || why || (up ? "all serve" : "none is up"),
  ];
}

function store({ store: view, kv_tokens: all }) {
  if (!view) return ["–", all ? "not reported" : "not shown to this key"];
  if (view.kind === "none") return ["none", "state is kept in memory only"];
  const tone = view.connected ? "good" : "bad";
  return [
    html`<span class=${`dot ${tone}`}></span>${view.connected ? "connected" : "not reachable"}`,
    view.trouble ?? `saved ${seconds(view.saved_s_ago)} ago · ${view.durability}`,
  ];
}

function version({ version: release, suspects }) {
  const apart = suspects ? ` · ${counted(suspects, "call")} run apart` : "";
  return `${release ? `release ${release}` : ""}${apart}`;
}
