/**
 * Paints lanes on a canvas: the past once for each frame, its movement by copying it.
 *
 * The past and the plan are drawn on two sheets when a frame comes. Between frames both are copied,
 * shifted by the time that has passed, so that the number of rectangles does not matter.
 */
import { tenantColour } from "./tenants.js";
import { colour } from "./theme.js";

const AXIS = 22;
const ROW_GAP = 4;
/** Seconds after the frame's time for which open bars are drawn on the sheet of the past. */
const OVERHANG_S = 3;
/** Part of the width that lies ahead of now. */
const AHEAD = 0.28;

/** Return the height of a lane for a number of lanes, in pixels. */
export function laneHeight(lanes) {
  return Math.max(18, Math.min(84, Math.floor(560 / Math.max(1, lanes)) - ROW_GAP));
}

export class LanesPainter {
  #canvas;
  #past = document.createElement("canvas");
  #plan = document.createElement("canvas");
  #colours = new Map();
  #patterns = new Map();
  #scene = null;

  constructor(canvas) {
    this.#canvas = canvas;
  }

  /**
   * Draw both sheets.
   * @param {object} scene
   * @param {string[]} scene.replicas ids in the order of the rows
   * @param {Map<string, number>} scene.capacities KV tokens by replica
   * @param {import("./lanes_record.js").LanesRecord} scene.record
   * @param {number} scene.at time of the frame
   * @param {number} scene.past seconds of the past to show
   * @param {number} scene.width pixels
   * @param {(label: object) => boolean} scene.isShown whether an application is drawn in full
   */
  draw(scene) {
    const height = laneHeight(scene.replicas.length);
    const now = Math.round(scene.width * (1 - AHEAD));
    this.#scene = { ...scene, height, now, scale: now / scene.past };
    this.#colours.clear();
    this.#patterns.clear();
    this.#resize();
    this.#drawPast();
    this.#drawPlan();
  }

  get height() {
    const rows = this.#scene.replicas.length;
    return rows * (this.#scene.height + ROW_GAP) + AXIS;
  }

  #resize() {
    const ratio = devicePixelRatio || 1;
    const { width } = this.#scene;
    const extra = Math.ceil(OVERHANG_S * this.#scene.scale);
    this.#canvas.style.height = `${this.height}px`;
    for (const [sheet, wide] of [[this.#canvas, width], [this.#past, this.#scene.now + extra], [this.#plan, width - this.#scene.now + extra]]) {
      const size = [Math.round(wide * ratio), Math.round(this.height * ratio)];
      if (sheet.width !== size[0] || sheet.height !== size[1]) [sheet.width, sheet.height] = size;
      const context = sheet.getContext("2d");
      context.setTransform(ratio, 0, 0, ratio, 0, 0);
      context.clearRect(0, 0, wide, this.height);
    }
  }

  /** Copy the sheets as they are `elapsed` seconds after the frame. */
  show(elapsed) {
    const { now, scale, width, replicas } = this.#scene;
    const shift = Math.min(elapsed, OVERHANG_S) * scale;
    const context = this.#canvas.getContext("2d");
    const ratio = devicePixelRatio || 1;
    const high = this.height - AXIS;
    context.clearRect(0, 0, width, this.height);
    context.fillStyle = this.#colour("raised");
    for (let row = 0; row < replicas.length; row += 1) {
      context.fillRect(0, this.#top(row), width, this.#scene.height);
    }
    const copy = (sheet, x, from, to) => {
      context.save();
      context.beginPath();
      context.rect(from, 0, to - from, high);
      context.clip();
      context.drawImage(sheet, x, 0, sheet.width / ratio, this.height);
      context.restore();
    };
    copy(this.#past, -shift, 0, now);
    copy(this.#plan, now - shift, now, width);
    this.#drawAxis(context);
  }

  /**
   * Return the piece at a point; null: there is none.
   * @param {number} x pixels
   * @param {number} y pixels
   * @param {number} elapsed seconds since the frame
   */
  find(x, y, elapsed) {
    const { replicas, height, now, scale, at, record, capacities } = this.#scene;
    const row = Math.floor(y / (height + ROW_GAP));
    const replica = replicas[row];
    if (!replica) return null;
    const time = at + elapsed + (x - now) / scale;
    const tokens = ((this.#top(row) + height - y) / height) * capacities.get(replica);
    const pieces = x > now ? record.planned : record.past(replica);
    return pieces.findLast(
      ({ bar, start, end, y: below }) =>
        bar.replica === replica &&
        start <= time &&
        time <= (end ?? Infinity) &&
        below <= tokens &&
        tokens <= below + bar.kv,
    );
  }

  /** Frame a piece that the pointer or the keyboard has chosen. */
  outline({ bar, start, end, y }, elapsed) {
    const { at, now, scale, width, capacities, replicas } = this.#scene;
    const row = replicas.indexOf(bar.replica);
    if (row < 0) return;
    const position = (time) => now + (time - at - elapsed) * scale;
    const [from, to] = bar.kind === "planned" ? [now, width] : [0, now];
    const left = Math.max(from, position(start));
    const right = end === null ? to : Math.min(to, position(end));
    if (right < left) return;
    const { top, high } = this.#place(row, y, bar.kv, capacities.get(bar.replica));
    const context = this.#canvas.getContext("2d");
    context.strokeStyle = this.#colour("text");
    context.lineWidth = 2;
    context.strokeRect(left, top, Math.max(2, right - left), Math.max(2, high));
  }

  #colour(name) {
    if (!this.#colours.has(name)) this.#colours.set(name, colour(name));
    return this.#colours.get(name);
  }

  #top(row) {
    return row * (this.#scene.height + ROW_GAP);
  }

  #place(row, y, kv, capacity) {
    const { height } = this.#scene;
    const bottom = this.#top(row) + height - (Math.min(y, capacity) / capacity) * height;
    const high = (Math.min(kv, Math.max(0, capacity - y)) / capacity) * height;
    return { top: bottom - high, high };
  }

  #drawPast() {
    const { replicas, capacities, record, at, now, scale, isShown } = this.#scene;
    const context = this.#past.getContext("2d");
    const oldest = at - now / scale;
    const newest = at + OVERHANG_S;
    replicas.forEach((replica, row) => {
      for (const piece of record.past(replica)) {
        const end = piece.end ?? newest;
        if (end < oldest) continue;
        const label = record.label(piece.bar.application);
        const { top, high } = this.#place(row, piece.y, piece.bar.kv, capacities.get(replica));
        const left = now + (Math.max(piece.start, oldest) - at) * scale;
        const box = [left, top, now + (end - at) * scale - left, high];
        context.globalAlpha = isShown(label) ? 1 : 0.16;
        this.#fill(context, box, tenantColour(label.tenant), piece.bar.kind === "held");
        if (piece.bar.kind === "run") this.#write(context, box, label, now);
      }
    });
  }

  #drawPlan() {
    const { replicas, capacities, record, at, scale, isShown } = this.#scene;
    const context = this.#plan.getContext("2d");
    for (const { bar, start, end, y } of record.planned) {
      const row = replicas.indexOf(bar.replica);
      if (row < 0) continue;
      const label = record.label(bar.application);
      const { top, high } = this.#place(row, y, bar.kv, capacities.get(bar.replica));
      const [left, wide] = [(start - at) * scale, (end - start) * scale];
      const name = tenantColour(label.tenant);
      context.globalAlpha = isShown(label) ? 0.34 : 0.08;
      this.#fill(context, [left, top, wide, high], name, false);
      if (high < 3 || wide < 3) continue;
      context.globalAlpha = isShown(label) ? 0.9 : 0.2;
      context.strokeStyle = this.#colour(name);
      context.setLineDash([3, 2]);
      context.strokeRect(left + 0.5, top + 0.5, wide - 1, high - 1);
    }
  }

  #fill(context, [left, top, wide, high], name, isHatched) {
    context.fillStyle = isHatched ? this.#hatch(context, name) : this.#colour(name);
    const gap = high > 4 && wide > 4 ? 0.5 : 0;
    context.fillRect(left + gap, top + gap, Math.max(0.5, wide - 2 * gap), Math.max(0.4, high - 2 * gap));
  }

  #write(context, [left, top, wide, high], label, now) {
    const from = Math.max(left, 0);
    const room = Math.min(left + wide, now) - from;
    if (high < 13 || room < 46) return;
    context.save();
    context.beginPath();
    context.rect(from, top, room - 4, high);
    context.clip();
    context.fillStyle = this.#colour("panel");
    context.font = "500 10.5px Inter, system-ui, sans-serif";
    context.textBaseline = "middle";
    context.fillText(label.application_id, from + 5, top + high / 2 + 0.5);
    context.restore();
  }

  #hatch(context, name) {
    if (!this.#patterns.has(name)) {
      const tile = document.createElement("canvas");
      tile.width = tile.height = 6;
      const inside = tile.getContext("2d");
      inside.fillStyle = inside.strokeStyle = this.#colour(name);
      inside.globalAlpha = 0.22;
      inside.fillRect(0, 0, 6, 6);
      inside.globalAlpha = 1;
      inside.lineWidth = 1.4;
      inside.beginPath();
      for (const x of [-6, 0, 6]) {
        inside.moveTo(x - 1, 7);
        inside.lineTo(x + 7, -1);
      }
      inside.stroke();
      this.#patterns.set(name, context.createPattern(tile, "repeat"));
    }
    return this.#patterns.get(name);
  }

  #drawAxis(context) {
    const { now, scale, width, past } = this.#scene;
    const bottom = this.height - AXIS;
    context.fillStyle = this.#colour("muted");
    context.strokeStyle = this.#colour("line");
    context.lineWidth = 1;
    context.font = "11px Inter, system-ui, sans-serif";
    context.textBaseline = "alphabetic";
    context.textAlign = "center";
    const step = past > 200 ? 60 : past > 90 ? 30 : 15;
    for (let time = -Math.floor(past / step) * step; now + time * scale < width; time += step) {
      const x = now + time * scale;
      if (time === 0 || x < 24 || x > width - 24) continue;
      context.fillText(time < 0 ? `−${inMinutes(-time)}` : `+${inMinutes(time)}`, x, this.height - 6);
      context.beginPath();
      context.moveTo(x, bottom);
      context.lineTo(x, bottom + 4);
      context.stroke();
    }
    context.fillStyle = this.#colour("text");
    context.fillRect(now - 0.75, 0, 1.5, bottom + 4);
    context.font = "600 11px Inter, system-ui, sans-serif";
    context.fillText("now", now, this.height - 6);
    context.textAlign = "start";
  }
}

function inMinutes(time) {
  if (time < 60) return `${time} s`;
  const minutes = Math.floor(time / 60);
  return time % 60 ? `${minutes}:${String(time % 60).padStart(2, "0")} min` : `${minutes} min`;
}
