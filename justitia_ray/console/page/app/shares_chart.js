/** Used shares over time as stacked areas, by uPlot. */
import { useEffect, useRef, useState } from "../vendor/preact-hooks.mjs";
import uPlot from "../vendor/uplot.mjs";
import { html } from "./html.js";
import { tenantColour } from "./tenants.js";
import { colour, isDark } from "./theme.js";

const HEIGHT = 230;

/** @param {{samples: {at: number, used: Record<string, number>}[], nodes: string[]}} props */
export function SharesChart({ samples, nodes }) {
  const box = useRef(null);
  const chart = useRef(null);
  const [width, setWidth] = useState(0);
  const dark = isDark();
  const names = nodes.join(" ");

  useEffect(() => {
    const observer = new ResizeObserver(([entry]) => setWidth(Math.floor(entry.contentRect.width)));
    observer.observe(box.current);
    return () => observer.disconnect();
  }, []);

  useEffect(() => {
    if (!width || !nodes.length) return undefined;
    chart.current = new uPlot(options(nodes, width), stacked(samples, nodes), box.current);
    return () => chart.current.destroy();
  }, [width, dark, names]);

  useEffect(() => {
    if (chart.current && nodes.length) chart.current.setData(stacked(samples, nodes));
  }, [samples.at(-1)?.at]);

  const now = samples.at(-1);
  const label = nodes
    .map((node) => `${node} ${Math.round(100 * (now?.used[node] ?? 0))} %`)
    .join(", ");
  return html`<div
    ref=${box}
    class="chart"
    role="img"
    aria-label=${`Used shares of the KV memory over time; now ${label || "none"}`}
  ></div>`;
}

/** Return the columns of uPlot: times, then for each node the sum of its share and of those before it. */
function stacked(samples, nodes) {
  const sums = samples.map(() => 0);
  const columns = nodes.map((node) =>
    samples.map(({ used }, index) => (sums[index] += used[node] ?? 0)),
  );
  return [samples.map(({ at }) => at), ...columns.reverse()];
}

function options(nodes, width) {
  const highestFirst = [...nodes].reverse();
  const axis = {
    stroke: colour("muted"),
    font: "11px Inter, system-ui, sans-serif",
    grid: { stroke: colour("line"), width: 1 },
    ticks: { stroke: colour("line"), width: 1, size: 4 },
  };
  return {
    width,
    height: HEIGHT,
    cursor: { drag: { x: false, y: false }, points: { show: false } },
    legend: { live: false },
    scales: { x: { time: true }, y: { range: (_, __, most) => [0, Math.max(1, most)] } },
    axes: [
      {
        ...axis,
        splits: (_, __, from, to) => minutesBack(from, to),
        values: (chart, times) => times.map((time) => ago(chart.scales.x.max - time)),
      },
      {
        ...axis,
        size: 48,
        values: (_, parts) => parts.map((part) => `${Math.round(part * 100)} %`),
      },
    ],
    series: [
      {},
      ...highestFirst.map((node) => {
        const stroke = colour(tenantColour(node));
        return {
          label: node,
          stroke,
          width: 1.5,
          fill: stroke.replace("rgb(", "rgba(").replace(")", ", 0.55)"),
          points: { show: false },
        };
      }),
    ],
    bands: highestFirst.slice(1).map((_, index) => ({ series: [index + 1, index + 2] })),
  };
}

/** Return times at whole minutes before the last one. */
function minutesBack(from, to) {
  const step = 60 * Math.max(1, Math.ceil((to - from) / 60 / 8));
  const times = [];
  for (let time = to; time >= from; time -= step) times.unshift(time);
  return times;
}

function ago(elapsed) {
  const minutes = Math.round(elapsed / 60);
  return minutes ? `−${minutes} min` : "now";
}
