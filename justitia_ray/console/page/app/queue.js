/** The queue: which applications wait, why, and until when. */
import { address, hasFilters, isShown } from "./address.js";
import { CancelButton } from "./cancel.js";
import { feed, hello } from "./feed.js";
import { count, counted, seconds, spread } from "./format.js";
import { html } from "./html.js";
import { ApplicationLink, Panel, Table, Tenant } from "./parts.js";

const tierOf = ({ tier }) => (tier && tier !== "default" ? ` · ${tier}` : "");

const COLUMNS = [
  {
    name: "#",
    number: true,
    cell: (row) => (row.position === null ? "–" : count(row.position + 1)),
  },
  {
    name: "Application",
    cell: (
      row,
    ) => html`<${ApplicationLink} application=${row.application} id=${row.application_id} />
      <span class="under clip" title=${row.application_class}>${row.application_class}</span>`,
  },
  {
    name: "Tenant",
    cell: (row) => html`<${Tenant} path=${row.tenant} />
      <span class="under wide-only">weight ${row.weight}${tierOf(row)}</span>`,
  },
  {
    name: "Why it waits",
    class: "reason",
    cell: (row) => html`<${Reason} row=${row} />`,
  },
  {
    name: "Waited",
    number: true,
    cell: (row) =>
      html`${seconds(row.waited_s)}<span class="under">${counted(row.waiting, "call")}</span>`,
  },
  {
    name: "Starts in",
    number: true,
    cell: (row) => html`${spread(row.expected_start_s)}
      <span class="under">ends in ${spread(row.expected_finish_s)}</span>`,
  },
  {
    name: "Promised by",
    number: true,
    cell: (row) => (row.guaranteed_by_s === null ? "–" : seconds(row.guaranteed_by_s)),
  },
];
const CANCEL = {
  name: html`<span class="hidden-text">Cancel</span>`,
  number: true,
  cell: (row) =>
    html`<${CancelButton} application=${row.application} id=${row.application_id} isShort />`,
};

function Reason({ row }) {
  if (row.reason === "running") {
    return `${counted(row.running, "call")} of it ${row.running === 1 ? "runs" : "run"}, others wait for their turn`;
  }
  return html`${row.why}<span class="under wide-only">would help: ${row.what_would_help}</span>`;
}

export function QueuePanel() {
  const { frame } = feed.value;
  const { queue, others } = frame;
  // The order is up to a second old: an application that runs by now waits no more.
  const rows = queue.rows.filter(
    (row) => isShown(row) && (row.waiting || row.reason !== "running"),
  );
  const columns = hello.value.is_operator ? [...COLUMNS, CANCEL] : COLUMNS;
  const parts = [
    queue.waiting > queue.rows.length
      ? `first ${count(queue.rows.length)} of ${counted(queue.waiting, "application")} that wait`
      : counted(queue.waiting, "application waits", "applications wait"),
    hasFilters() ? `${count(rows.length)} pass the filters` : "",
    others.applications
      ? `others: ${counted(others.applications, "application")}, ${count(others.waiting)} calls wait,` +
        ` ${count(others.running)} run`
      : "",
  ];
  return html`<${Panel}
    title="Queue"
    about=${parts.filter(Boolean).join(" · ")}
    end=${html`<${Reasons} counts=${queue.by_reason} />`}
  >
    <${Table}
      caption="Waiting applications in the order in which they start; times are from now, from p10 to p90"
      columns=${columns}
      rows=${rows}
      rowKey=${(row) => row.application}
      empty=${
        hasFilters() && queue.waiting
          ? address.value.text
            ? `None of these rows has “${address.value.text}”. Enter opens the application of that id.`
            : "No application that waits passes the filters."
          : "Nothing waits."
      }
    />
  <//>`;
}

const NAMES = {
  running: "running",
  turn: "wait their turn",
  headroom: "wait for memory",
  context: "wait for the replica with their context",
  working_set: "wait until contexts leave room",
  replica: "wait for a replica",
  quota: "held by a quota",
  tier: "held by a tier",
  tool: "at a tool",
  recovery: "in recovery",
  store: "wait for Redis",
};

function Reasons({ counts }) {
  const entries = Object.entries(counts).sort(([, one], [, other]) => other - one);
  return html`<ul class="legend" aria-label="Live applications by reason">
    ${entries.map(
      ([reason, number]) =>
        html`<li class="badge">${count(number)} ${NAMES[reason] ?? reason}</li>`,
    )}
  </ul>`;
}
