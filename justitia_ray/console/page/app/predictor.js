/** The predictor: how well the cost of each class of applications is predicted, and by which model. */
import { feed } from "./feed.js";
import { amount, change, count, counted, percent } from "./format.js";
import { html } from "./html.js";
import { Notice, Panel, Table } from "./parts.js";

const COLUMNS = [
  { name: "Class", cell: ({ name }) => html`<span class="mono">${name}</span>` },
  { name: "Seen", number: true, cell: ({ samples }) => count(samples) },
  { name: "Mean cost", number: true, cell: ({ kv_token_time_mean: mean }) => amount(mean) },
  { name: "Predicted by", cell: (row) => html`<${Serving} row=${row} />` },
  { name: "Error", number: true, cell: ({ model }) => percent(model?.error) },
  { name: "Error before", number: true, cell: ({ model }) => percent(model?.rival_error) },
  { name: "Change", number: true, cell: ({ model }) => html`<${Gain} model=${model} />` },
  { name: "Trained on", number: true, cell: ({ model }) => (model ? count(model.samples) : "–") },
  { name: "Trained", cell: ({ model }) => (model?.trained_at ? day(model.trained_at) : "–") },
  { name: "Versions", number: true, cell: ({ versions }) => count(versions.length) },
  { name: "Changes", number: true, cell: ({ changes }) => count(changes) },
];

export function PredictorView() {
  const line = feed.value.predictor;
  if (!line)
    return html`<p class="empty">The predictor's figures come every ten seconds, for operators.</p>`;
  if (!line.overview)
    return html`<${Notice} tone="warn">No figures of the predictor: ${line.error}<//>`;
  const rows = Object.entries(line.overview.classes).map(([name, known]) => ({
    name,
    ...known,
    model: known.versions.find(({ version }) => version === known.serving),
  }));
  const learns = line.overview.learns
    ? "it learns from every application that ends"
    : "learning is off";
  return html`<${Panel} title="Predictor" about=${`${counted(rows.length, "class", "classes")}; ${learns}`}>
    <${Table}
      caption="Classes of applications with the error of the model that predicts their cost"
      columns=${COLUMNS}
      rows=${rows}
      rowKey=${({ name }) => name}
      empty="No application has ended yet."
    />
    <div class="note muted small"><p>
      Error is the mean of |predicted − true| / true on the latest applications, which the model had
      not seen;
      “error before” is that of the version that it replaced, or of the mean of the class. Costs are in
      token·iterations; changes are shifts of a class's costs that the predictor has detected.
    </p></div>
  <//>`;
}

function Serving({ row }) {
  const { serving, active, pinned, model } = row;
  const name = model ? `${model.kind ?? "model"}, version ${serving}` : "mean of the class";
  return html`${name}
  ${pinned && html` <span class="badge warn">pinned</span>`}
  ${serving !== active && html` <span class="badge bad">version ${active} cannot be read</span>`}`;
}

function Gain({ model }) {
  if (model?.error == null || !model.rival_error) return "–";
  const part = model.error / model.rival_error - 1;
  return html`<span class=${part < 0 ? "gain" : part > 0 ? "loss" : ""}>${change(part)}</span>`;
}

function day(at) {
  return new Date(at * 1000).toISOString().slice(0, 16).replace("T", " ");
}
