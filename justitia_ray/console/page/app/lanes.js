/** The lanes: a row a replica, its height the KV memory, rectangles the applications on it. */
import { useEffect, useRef, useState } from "../vendor/preact-hooks.mjs";
import { PASTS, address, go, isShown, setFilter } from "./address.js";
import { feed } from "./feed.js";
import { amount, count, counted, percent, seconds, spread } from "./format.js";
import { html } from "./html.js";
import { LanesPainter, laneHeight } from "./lanes_painter.js";
import { ApplicationLink, Pairs, PicturePanel, Table, Tenant } from "./parts.js";
import { tenantColour } from "./tenants.js";
import { isDark } from "./theme.js";

const KINDS = { run: "running", held: "context held", planned: "planned" };

export function LanesPanel() {
  const { frame } = feed.value;
  return html`<${PicturePanel}
    title="Lanes"
    about=${about(frame)}
    end=${html`<label>
      Past
      <select value=${address.value.past} onChange=${(event) => setFilter({ past: event.target.value })}>
        ${Object.entries(PASTS).map(([value, name]) => html`<option value=${value}>${name}</option>`)}
      </select>
    </label>`}
    picture=${() => html`<${LanesPicture} />`}
    table=${() => html`<${LanesTable} />`}
  />`;
}

function about({ at, recorded_from: from, replicas }) {
  const since =
    at - from < Number(address.value.past) ? `; recorded for ${seconds(at - from)}` : "";
  return `${counted(replicas.length, "replica")}; height is KV memory${since}`;
}

function LanesPicture() {
  const { frame } = feed.value;
  if (!frame.replicas.length) return html`<p class="empty">No replica is up, so nothing runs.</p>`;
  return html`<div class="body">
    <${Legend} />
    <div class="lanes">
      <ul class="lane-names" aria-hidden="true">
        ${frame.replicas.map((replica) => html`<${LaneName} replica=${replica} among=${frame.replicas} />`)}
      </ul>
      <${LanesCanvas} />
    </div>
  </div>`;
}

function LaneName({ replica, among }) {
  const { replica_id: id, state, kv_tokens: all, used_kv_tokens: used } = replica;
  const tone = { serving: "good", draining: "warn" }[state] ?? "bad";
  const high = laneHeight(among.length);
  const detail = state === "serving" ? `${amount(all)} tokens` : state;
  return html`<li style=${{ height: `${high}px` }}>
    <span class="lane-id" title=${id}>
      <span class=${`dot ${tone}`}></span><span class="clip mono">${id}</span>
    </span>
    ${high > 30 && html`<span class="muted small">${detail}</span>`}
    ${used != null && html`<span class="lane-used">${percent(used / all)}</span>`}
  </li>`;
}

function Legend() {
  const { frame, lanes } = feed.value;
  const shown = new Set();
  for (const { replica_id: replica } of frame.replicas) {
    for (const { bar } of lanes.past(replica)) shown.add(lanes.label(bar.application).tenant);
  }
  for (const { bar } of lanes.planned) shown.add(lanes.label(bar.application).tenant);
  return html`<ul class="legend">
    ${[...shown]
      .filter(Boolean)
      .sort()
      .slice(0, 12)
      .map(
        (tenant) => html`<li key=${tenant}>
        <span class="swatch" style=${{ background: `var(--${tenantColour(tenant)})` }}></span>${tenant}
      </li>`,
      )}
    <li class="apart"><span class="swatch held"></span>idle context held</li>
    <li><span class="swatch planned"></span>planned</li>
  </ul>`;
}

function LanesCanvas() {
  const current = feed.value;
  const { past } = address.value;
  const dark = isDark();
  const box = useRef(null);
  const canvas = useRef(null);
  const painter = useRef(null);
  const [width, setWidth] = useState(0);
  const [chosen, setChosen] = useState(null);
  const drawn = useRef({ chosen: null, current });
  drawn.current = { chosen: chosen?.piece ?? null, current };

  useEffect(() => {
    painter.current = new LanesPainter(canvas.current);
    const observer = new ResizeObserver(([entry]) => setWidth(Math.floor(entry.contentRect.width)));
    observer.observe(box.current);
    return () => observer.disconnect();
  }, []);

  useEffect(() => {
    if (!width) return;
    const { frame, lanes } = current;
    const replicas = frame.replicas.map((one) => one.replica_id);
    const capacities = new Map(frame.replicas.map((one) => [one.replica_id, one.kv_tokens]));
    painter.current.draw(
      { replicas, capacities, record: lanes, at: frame.at, past: Number(past), width, isShown },
      JSON.stringify([frame.model, lanes.begunAt, [...capacities], width, dark, address.value]),
    );
    paint(painter.current, drawn.current);
  }, [current.frame, width, dark, address.value]);

  useEffect(() => {
    if (!width) return undefined;
    if (matchMedia("(prefers-reduced-motion: reduce)").matches) return undefined;
    let request = 0;
    const next = () => {
      paint(painter.current, drawn.current);
      request = requestAnimationFrame(next);
    };
    request = requestAnimationFrame(next);
    return () => cancelAnimationFrame(request);
  }, [width > 0]);

  const move = (event) => {
    const area = canvas.current.getBoundingClientRect();
    const [x, y] = [event.clientX - area.left, event.clientY - area.top];
    const piece = painter.current.find(x, y, elapsedOf(current));
    setChosen(piece ? { piece, x, y } : null);
  };
  const press = (event) => {
    const step = { ArrowDown: 1, ArrowRight: 1, ArrowUp: -1, ArrowLeft: -1 }[event.key];
    if (step) {
      event.preventDefault();
      const piece = neighbour(current, chosen?.piece, step);
      const row = current.frame.replicas.findIndex((one) => one.replica_id === piece?.bar.replica);
      setChosen(
        piece
          ? { piece, x: width / 3, y: row * (laneHeight(current.frame.replicas.length) + 4) }
          : null,
      );
    } else if (event.key === "Escape") setChosen(null);
    else if (event.key === "Enter" && chosen) go({ application: chosen.piece.bar.application });
  };
  return html`<div class="picture" ref=${box}>
    <canvas
      ref=${canvas}
      tabindex="0"
      role="application"
      aria-label="Lanes: arrow keys go through what runs, is held and is planned; Enter opens it"
      aria-describedby="lanes-chosen"
      onPointerMove=${move}
      onPointerLeave=${() => setChosen(null)}
      onBlur=${() => setChosen(null)}
      onKeyDown=${press}
      onClick=${() => chosen && go({ application: chosen.piece.bar.application })}
    ></canvas>
    <div id="lanes-chosen" aria-live="polite">
      ${chosen && html`<${Card} piece=${chosen.piece} x=${chosen.x} y=${chosen.y} width=${width} />`}
    </div>
  </div>`;
}

function paint(painter, { chosen, current }) {
  const elapsed = elapsedOf(current);
  painter.show(elapsed);
  if (chosen) painter.outline(chosen, elapsed);
}

function elapsedOf({ receivedAt }) {
  return Math.max(0, (performance.now() - receivedAt) / 1000);
}

/** Return the piece before or after one, among those of now and the planned ones. */
function neighbour({ frame, lanes }, piece, step) {
  const pieces = [
    ...frame.replicas.flatMap(({ replica_id: replica }) =>
      lanes.past(replica).filter(({ end }) => end === null),
    ),
    ...lanes.planned,
  ].filter(({ bar }) => isShown(lanes.label(bar.application)));
  const same = ({ bar }) =>
    bar.application === piece?.bar.application && bar.kind === piece.bar.kind;
  const place = pieces.findIndex(same);
  if (place < 0) return pieces[0];
  return pieces[(place + step + pieces.length) % pieces.length];
}

function Card({ piece, x, y, width }) {
  const { frame, lanes } = feed.value;
  const { bar, start, end } = piece;
  const label = lanes.label(bar.application);
  const capacity = frame.replicas.find((one) => one.replica_id === bar.replica)?.kv_tokens;
  const row = frame.queue.rows.find((one) => one.application === bar.application);
  const pairs = [
    ["tenant", html`<${Tenant} path=${label.tenant} />`],
    ["class", label.application_class],
    ["replica", html`<span class="mono">${bar.replica}</span>`],
    ["KV memory", `${amount(bar.kv)} tokens${capacity ? `, ${percent(bar.kv / capacity)}` : ""}`],
    ["when", when(bar, start, end, frame.at)],
  ];
  if (row) pairs.push(["waits", row.why], ["starts in", spread(row.expected_start_s)]);
  const side = x > width / 2 ? { right: `${width - x + 14}px` } : { left: `${x + 14}px` };
  return html`<div class="card" style=${{ ...side, top: `${y + 12}px` }}>
    <strong>${label.application_id} <span class="badge">${KINDS[bar.kind]}</span></strong>
    <${Pairs} pairs=${pairs} />
  </div>`;
}

function when(bar, start, end, at) {
  if (bar.kind === "planned")
    return `in ${seconds(Math.max(0, start - at))}, for ${seconds(end - start)}`;
  if (bar.end === null) return `for ${seconds(at - bar.start)}`;
  return `${seconds(bar.end - bar.start)}, until ${seconds(at - bar.end)} ago`;
}

const COLUMNS = [
  { name: "Replica", cell: ({ bar }) => html`<span class="mono">${bar.replica}</span>` },
  {
    name: "Application",
    cell: ({ bar, label }) =>
      html`<${ApplicationLink} application=${bar.application} id=${label.application_id} />`,
  },
  { name: "Tenant", cell: ({ label }) => html`<${Tenant} path=${label.tenant} />` },
  { name: "State", cell: ({ bar }) => KINDS[bar.kind] },
  { name: "KV tokens", number: true, cell: ({ bar }) => count(bar.kv) },
  { name: "Of the replica", number: true, cell: ({ bar, capacity }) => percent(bar.kv / capacity) },
  { name: "When", number: true, cell: ({ bar, start, end, at }) => when(bar, start, end, at) },
];

function LanesTable() {
  const { frame, lanes } = feed.value;
  const pieces = [
    ...frame.replicas.flatMap(({ replica_id: replica }) =>
      lanes.past(replica).filter(({ end }) => end === null),
    ),
    ...lanes.planned,
  ];
  const capacities = new Map(frame.replicas.map((one) => [one.replica_id, one.kv_tokens]));
  const rows = pieces
    .map((piece) => ({
      ...piece,
      at: frame.at,
      label: lanes.label(piece.bar.application),
      capacity: capacities.get(piece.bar.replica),
    }))
    .filter(({ label }) => isShown(label));
  return html`<${Table}
    caption="Applications on the replicas now, and the planned ones"
    columns=${COLUMNS}
    rows=${rows}
    rowKey=${({ bar }) => `${bar.kind} ${bar.id}`}
    empty="No application is on a replica."
  />`;
}
