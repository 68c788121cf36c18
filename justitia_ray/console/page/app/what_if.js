/** What if: the last minutes simulated again under another policy, weights or number of replicas. */
import { useState } from "../vendor/preact-hooks.mjs";
import { feed, hello, model } from "./feed.js";
import { change, count, counted, percent, seconds } from "./format.js";
import { html } from "./html.js";
import { Notice, Panel, PicturePanel, Table, Tenant } from "./parts.js";
import { callJson, inWords } from "./service.js";

export function WhatIfView() {
  const [state, setState] = useState({ busy: false, answer: null, error: null });
  const ask = async (question) => {
    setState((before) => ({ ...before, busy: true, error: null }));
    try {
      const answer = await callJson("v1/console/what-if", {
        method: "POST",
        body: JSON.stringify(question),
      });
      setState({ busy: false, answer, error: null });
    } catch (error) {
      setState((before) => ({ ...before, busy: false, error }));
    }
  };
  if (!hello.value.is_operator) {
    return html`<${Notice} tone="warn">Only a key with the scope “operate” may ask what if.<//>`;
  }
  return html`<${Panel} title="What if" about="the last minutes, simulated again by the scheduler's own code">
      <div class="body">
        <${Form} busy=${state.busy} ask=${ask} />
        <div aria-live="polite">
          ${state.error && html`<${Notice} tone="warn">${whatIfTrouble(state.error)}<//>`}
        </div>
      </div>
    <//>
    ${state.answer && html`<${Answer} answer=${state.answer} />`}`;
}

function whatIfTrouble(error) {
  if (error.status === 429)
    return "Another estimate is being made; one is made at a time. Ask again in some seconds.";
  if (error.status === 504) return "The estimate took too long: ask for fewer minutes.";
  return inWords(error);
}

function Form({ busy, ask }) {
  const { frame } = feed.value;
  const { strip, shares, replicas } = frame;
  const [policy, setPolicy] = useState("");
  const [number, setNumber] = useState("");
  const [minutes, setMinutes] = useState("5");
  const [weights, setWeights] = useState({});
  const weighted = shares.filter((row) => row.weight !== null);
  const submit = (event) => {
    event.preventDefault();
    const given = Object.entries(weights).filter(([, weight]) => weight !== "");
    ask({
      model: model.value,
      minutes: Number(minutes),
      ...(policy && { policy }),
      ...(number && { replicas: Number(number) }),
      ...(given.length && {
        weights: Object.fromEntries(given.map(([node, weight]) => [node, Number(weight)])),
      }),
    });
  };
  const changed = policy || number || Object.values(weights).some(Boolean);
  return html`<form class="form" onSubmit=${submit}>
    <div class="row">
      <label>
        Policy
        <select value=${policy} onChange=${(event) => setPolicy(event.target.value)}>
          <option value="">as now (${strip.policy})</option>
          ${hello.value.policies
            .filter((one) => one !== strip.policy)
            .map((one) => html`<option value=${one}>${one}</option>`)}
        </select>
      </label>
      <label>
        Replicas
        <input
          type="number"
          min="1"
          max="64"
          placeholder=${replicas.length}
          value=${number}
          onInput=${(event) => setNumber(event.target.value)}
        />
      </label>
      <label>
        Last
        <select value=${minutes} onChange=${(event) => setMinutes(event.target.value)}>
          ${["1", "2", "5", "10", "15"].map((one) => html`<option value=${one}>${one} min</option>`)}
        </select>
      </label>
    </div>
    ${
      weighted.length > 0 &&
      html`<fieldset>
      <legend>Weights of tenants</legend>
      <div class="weights">
        ${weighted.map(
          ({ node, weight }) => html`<label key=${node}>
            <${Tenant} path=${node} />
            <input
              type="number"
              min="0.001"
              step="any"
              aria-label=${`Weight of ${node}`}
              placeholder=${weight}
              value=${weights[node] ?? ""}
              onInput=${(event) => setWeights({ ...weights, [node]: event.target.value })}
            />
          </label>`,
        )}
      </div>
    </fieldset>`
    }
    <div class="row">
      <button class="main" disabled=${busy || !changed}>${busy ? "Simulating …" : "Estimate"}</button>
      <span class="muted small">
        ${
          busy
            ? "The last minutes are simulated twice; this takes up to a minute."
            : changed
              ? "Nothing of the service changes."
              : "Change the policy, the replicas or a weight first."
        }
      </span>
    </div>
  </form>`;
}

function Answer({ answer }) {
  const { before, after, notes, measured, simulated } = answer;
  const rows = [
    { name: null, ...answer.all },
    ...Object.entries(answer.tenants).map(([name, one]) => ({ name, ...one })),
  ];
  return html`<${PicturePanel}
    title="Estimate"
    about=${aboutAnswer(answer)}
    end=${html`<span class="badge warn">an estimate</span>`}
    picture=${() => html`<div class="body">
      <p class="why">${headline(answer)}</p>
      <${Bars} rows=${rows} />
      <${Trust} measured=${measured} simulated=${simulated} />
      ${
        notes.length > 0 &&
        html`<ul class="notes muted small">
        ${notes.map((note) => html`<li>${note}</li>`)}
      </ul>`
      }
    </div>`}
    table=${() => html`<${Table}
      caption=${`Completion times with ${words(before)}, and with ${words(after)}`}
      columns=${COLUMNS}
      rows=${rows}
      rowKey=${({ name }) => name ?? ""}
    />`}
  />`;
}

function aboutAnswer({ applications, inferences, start, end }) {
  const load = `${counted(applications, "application")} with ${counted(inferences, "call")}`;
  return `${load} in ${seconds(end - start)}, simulated as they are and changed`;
}

function words({ policy, weights, replicas }) {
  const weighted = Object.entries(weights).map(([node, weight]) => `${node} at weight ${weight}`);
  return [policy, counted(replicas, "replica"), ...weighted].join(", ");
}

function headline({ all, before, after }) {
  const { mean, no_later: noLater } = all;
  if (mean === null) return "No application could be compared.";
  const than = ` than with ${words(before)}`;
  const isSame = Math.abs(mean) < 0.005;
  const longer = `${percent(Math.abs(mean))} ${mean < 0 ? "shorter" : "longer"}${than}`;
  const sooner =
    noLater === null ? "" : `; ${percent(noLater)} of the applications would end no later`;
  return `With ${words(after)} the mean completion time would be ${isSame ? "as long as now" : longer}${sooner}.`;
}

/** Mean completion times of each tenant, as they are and changed. */
function Bars({ rows }) {
  const most = Math.max(
    ...rows.flatMap(({ before, after }) => [before.mean_s ?? 0, after.mean_s ?? 0]),
    1e-9,
  );
  const width = (value) => ({ width: `${(100 * (value ?? 0)) / most}%` });
  const label = rows.map((row) => `${row.name ?? "all"} ${change(row.mean)}`).join(", ");
  return html`<div class="changes" role="img" aria-label=${`Change of the mean completion time: ${label}`}>
    <div class="head muted small">
      <span></span><span>mean completion time, now and changed</span><span>mean</span><span>p90</span
      ><span>worst</span>
    </div>
    ${rows.map(
      (row) => html`<div class="change" key=${row.name ?? ""}>
        <span><${Who} name=${row.name} /></span>
        <span class="pair">
          <span class="now" style=${width(row.before.mean_s)}></span><em>${seconds(row.before.mean_s)}</em>
          <span class="then" style=${width(row.after.mean_s)}></span><em>${seconds(row.after.mean_s)}</em>
        </span>
        <${Part} part=${row.mean} /><${Part} part=${row.p90} /><${Part} part=${row.worst} />
      </div>`,
    )}
  </div>`;
}

/** A tenant, or all of them. */
function Who({ name }) {
  return name === null ? html`<strong>all tenants</strong>` : html`<${Tenant} path=${name} />`;
}

function Part({ part }) {
  const tone = part == null || Math.abs(part) < 0.005 ? "" : part < 0 ? "gain" : "loss";
  return html`<span class=${`number ${tone}`}>${change(part)}</span>`;
}

function Trust({ measured, simulated }) {
  if (measured.mean_s === null || simulated.mean_s === null) return null;
  return html`<p class="muted small">
    How far to trust it: of ${counted(measured.applications, "application")} that have ended, the
    mean completion time was ${seconds(measured.mean_s)} in truth and is ${seconds(simulated.mean_s)} simulated unchanged
    (${change(simulated.mean_s / measured.mean_s - 1)}).
  </p>`;
}

const COLUMNS = [
  {
    name: "Tenant",
    cell: ({ name }) => html`<${Who} name=${name} />`,
  },
  { name: "Applications", number: true, cell: ({ before }) => count(before.applications) },
  ...["mean", "p90", "worst"].map((figure) => ({
    name: `${figure[0].toUpperCase()}${figure.slice(1)}: now, changed`,
    number: true,
    cell: (row) => html`${seconds(row.before[`${figure}_s`])} → ${seconds(row.after[`${figure}_s`])}
      <span class="under"><${Part} part=${row[figure]} /></span>`,
  })),
  { name: "No later", number: true, cell: ({ no_later: part }) => percent(part) },
];
