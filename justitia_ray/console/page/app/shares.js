/** Shares: the tree of tenants, what each may use, uses and has left. */
import { isShown } from "./address.js";
import { feed } from "./feed.js";
import { amount, count, counted, percent, seconds } from "./format.js";
import { html } from "./html.js";
import { Panel, PicturePanel, Table, Tenant } from "./parts.js";
import { SharesChart } from "./shares_chart.js";

const UNITS = {
  kv_token_time: "token·iterations",
  computed_tokens: "computed tokens",
  inferences: "calls",
};

export function SharesView() {
  const { frame } = feed.value;
  const rows = frame.shares.filter((row) =>
    isShown({ tenant: row.node, application_id: "", application_class: "" }),
  );
  return html`<${HistoryPanel} rows=${rows} />
    <${Panel} title="Tenants" about="parts of the model's KV memory and service; ┃ is the fair share now">
      <${Table}
        caption="Tree of tenants with weights, fair shares, used shares and quotas left"
        columns=${COLUMNS}
        rows=${rows}
        rowKey=${(row) => row.node}
        empty="No tenant has a share now: nothing waits or runs."
      />
    <//>`;
}

const COLUMNS = [
  {
    name: "Tenant",
    cell: ({ node }) =>
      html`<span style=${{ paddingLeft: `${18 * (node.split("/").length - 1)}px` }}>
        <${Tenant} path=${node} />
      </span>`,
  },
  { name: "Weight", number: true, cell: ({ weight }) => weight ?? "–" },
  { name: "Used and fair share", class: "wide", cell: (row) => html`<${ShareBar} ...${row} />` },
  { name: "Used now", number: true, cell: ({ used }) => percent(used) },
  { name: "Fair share", number: true, cell: ({ fair_share: fair }) => percent(fair) },
  {
    name: "Guaranteed",
    number: true,
    class: "wide-only",
    cell: ({ guaranteed }) => (guaranteed ? percent(guaranteed) : "–"),
  },
  {
    name: "Borrowed",
    number: true,
    class: "wide-only",
    cell: ({ borrowed }) => (borrowed ? percent(borrowed) : "–"),
  },
  { name: "Wait", number: true, cell: ({ waiting }) => count(waiting) },
  { name: "Run", number: true, cell: ({ running }) => count(running) },
  { name: "Quotas left", cell: ({ quotas }) => html`<${Quotas} quotas=${quotas} />` },
];

function ShareBar({ used, fair_share: fair, borrowed }) {
  const width = (part) => `${Math.min(100, 100 * part)}%`;
  return html`<div class="bar" aria-hidden="true">
    <span class="over" style=${{ width: width(used) }}></span>
    <span style=${{ width: width(used - borrowed) }}></span>
    ${fair != null && html`<i style=${{ left: `calc(${width(fair)} - 1px)` }}></i>`}
  </div>`;
}

function Quotas({ quotas }) {
  if (!quotas.length) return "–";
  return quotas.map(({ unit, per, remaining, limit, reset_s: reset }) => {
    const left = limit ? remaining / limit : 0;
    const tone = left > 0.25 ? "" : left > 0 ? "warn" : "bad";
    return html`<div>
      <span class=${`badge ${tone}`}>${percent(Math.max(0, left))}</span> ${amount(Math.max(0, remaining))} of
      ${" "}${amount(limit)} ${UNITS[unit] ?? unit}
      <span class="under">per ${per}, again full in ${seconds(reset)}</span>
    </div>`;
  });
}

/** Top nodes of the shown rows: their used shares add up to at most 1. */
function topNodes(rows) {
  const nodes = rows.map((row) => row.node);
  return nodes.filter((node) => !nodes.some((other) => node.startsWith(`${other}/`)));
}

function HistoryPanel({ rows }) {
  const { shares } = feed.value;
  const nodes = topNodes(rows);
  const { samples } = shares;
  const span = samples.length ? samples.at(-1).at - samples[0].at : 0;
  const table = () => html`<${Table}
    caption="Used shares over time"
    columns=${[
      { name: "Ago", cell: ({ at }) => seconds(samples.at(-1).at - at) },
      ...nodes.map((node) => ({
        name: node,
        number: true,
        cell: ({ used }) => percent(used[node] ?? 0),
      })),
    ]}
    rows=${[...samples].reverse()}
    rowKey=${({ at }) => at}
  />`;
  return html`<${PicturePanel}
    title="Used shares"
    about=${`of the KV memory, last ${seconds(span)} of 15 min, ${counted(nodes.length, "tenant")}`}
    picture=${() => html`<div class="body"><${SharesChart} samples=${samples} nodes=${nodes} /></div>`}
    table=${table}
  />`;
}
