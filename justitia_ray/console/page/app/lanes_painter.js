/**
 * Paints lanes on a canvas: what is new is drawn once for each frame, movement is copying.
 *
 * The past and the plan are drawn on two sheets. The sheet of the past is a strip of time, to whose
 * end each frame adds what has changed since the last one; between frames both sheets are copied,
 * shifted by the time that has passed. So the number of rectangles hardly matters.
 */
import { tenantColour } from "./tenants.js";
import { colour } from "./theme.js";

const AXIS = 22;
const ROW_GAP = 4;
/** Seconds after the frame's time for which open bars are drawn on the sheet of the past. */
const OVERHANG_S = 3;
/** Seconds for which the sheet of the past can grow before what is no longer shown is cut off. */
const ROOM_S = 60;
/** Side of the tile of a hatching, in pixels. */
const TILE = 6;
/** Least size of a rectangle that gets its application's id, in pixels. */
const LEAST_NAMED = { wide: 46, high: 13 };
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
  #look = null;
  #colours = new Map();
  #patterns = new Map();
  #scene = null;
  /** Time at the left end of the sheet of the past, and until when it is drawn. */
  #strip = { from: 0, until: -Infinity };
  /** Pieces with room for the application's id. */
  #named = [];

  constructor(canvas) {
    this.#canvas = canvas;
  }

  /**
   * Draw what a frame has changed.
   * @param {object} scene
   * @param {string[]} scene.replicas ids in the order of the rows
   * @param {Map<string, number>} scene.capacities KV tokens by replica
   * @param {import("./lanes_record.js").LanesRecord} scene.record
   * @param {number} scene.at time of the frame
   * @param {number} scene.past seconds of the past to show
   * @param {number} scene.width pixels
   * @param {(label: object) => boolean} scene.isShown whether an application is drawn in full
   * @param {string} look whatever else the picture depends on: another one draws all of the past
   */
  draw(scene, look) {
    const height = laneHeight(scene.replicas.length);
    const now = Math.round(scene.width * (1 - AHEAD));
    this.#scene = { ...scene, height, now, scale: now / scene.past, look };
    const isSame = this.#look === look && scene.at >= this.#strip.until;
    if (!isSame) this.#begin(look);
    this.#drawPast();
    this.#drawPlan();
    this.#findNames();
  }

  /** Make empty sheets of the right size. */
  #begin(look) {
    const { width, now, scale, at, past } = this.#scene;
    this.#look = look;
    this.#colours.clear();
    this.#patterns.clear();
    this.#strip = { from: at - past, until: -Infinity };
    this.#canvas.style.height = `${this.height}px`;
    resize(this.#canvas, width, this.height);
    resize(this.#past, now + (ROOM_S + OVERHANG_S) * scale, this.height);
    resize(this.#plan, width - now + OVERHANG_S * scale, this.height);
  }

  get height() {
    const rows = this.#scene.replicas.length;
    return rows * (this.#scene.height + ROW_GAP) + AXIS;
  }

  /** Show the lanes as they are `elapsed` seconds after the frame. */
  show(elapsed) {
    const { now, scale, width, replicas, at } = this.#scene;
    const later = Math.min(elapsed, OVERHANG_S);
    const context = this.#canvas.getContext("2d");
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
      context.drawImage(sheet, x, 0, sheet.width / ratio(), this.height);
      context.restore();
    };
    copy(this.#past, now - (at + later - this.#strip.from) * scale, 0, now);
    copy(this.#plan, now - later * scale, now, width);
    this.#writeNames(context, later);
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

  /** Add to the strip of the past what began, went on or ended since it was drawn last. */
  #drawPast() {
    const { replicas, capacities, record, at, scale, isShown } = this.#scene;
    this.#makeRoom();
    const { from, until } = this.#strip;
    const context = this.#past.getContext("2d");
    const [newest, right] = [at + OVERHANG_S, this.#past.width / ratio()];
    const left = Math.max(0, (until - from) * scale);
    context.save();
    context.beginPath();
    context.rect(left, 0, right - left, this.height);
    context.clip();
    context.clearRect(left, 0, right - left, this.height);
    replicas.forEach((replica, row) => {
      for (const { bar, start, end, y } of record.past(replica)) {
        if (end !== null && (end < until || end < from)) continue;
        const label = record.label(bar.application);
        const { top, high } = this.#place(row, y, bar.kv, capacities.get(replica));
        const begins = (Math.max(start, from) - from) * scale;
        const box = [begins, top, ((end ?? newest) - from) * scale - begins, high];
        context.globalAlpha = isShown(label) ? 1 : 0.16;
        this.#fill(context, box, tenantColour(label.tenant), bar.kind === "held");
      }
    });
    context.restore();
    this.#strip.until = at;
  }

  /** Cut off the start of the strip, which is no longer shown, if the frame has no room at its end. */
  #makeRoom() {
    const { at, past, scale } = this.#scene;
    const sheet = this.#past;
    if ((at + OVERHANG_S - this.#strip.from) * scale <= sheet.width / ratio()) return;
    // Whole tiles, so that hatchings stay in step.
    const cut = Math.floor(((at - past - this.#strip.from) * scale) / TILE) * TILE;
    const context = sheet.getContext("2d");
    context.globalCompositeOperation = "copy";
    context.drawImage(sheet, -cut, 0, sheet.width / ratio(), this.height);
    context.globalCompositeOperation = "source-over";
    this.#strip.from += cut / scale;
  }

  #drawPlan() {
    const { replicas, capacities, record, at, scale, isShown } = this.#scene;
    const context = this.#plan.getContext("2d");
    context.clearRect(0, 0, this.#plan.width, this.height);
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
    context.globalAlpha = 1;
  }

  #fill(context, [left, top, wide, high], name, isHatched) {
    context.fillStyle = isHatched ? this.#hatch(context, name) : this.#colour(name);
    const gap = high > 4 && wide > 4 ? 0.5 : 0;
    context.fillRect(
      left + gap,
      top + gap,
      Math.max(0.5, wide - 2 * gap),
      Math.max(0.4, high - 2 * gap),
    );
  }

  #findNames() {
    const { replicas, capacities, record, at, scale, past, isShown } = this.#scene;
    const least = LEAST_NAMED.wide / scale;
    this.#named = [];
    replicas.forEach((replica, row) => {
      const capacity = capacities.get(replica);
      for (const { bar, start, end, y } of record.past(replica)) {
        const to = end ?? Infinity;
        const isLong = Math.min(to, at) - start >= least && to > at - past + least;
        if (bar.kind !== "run" || !isLong) continue;
        const { top, high } = this.#place(row, y, bar.kv, capacity);
        const label = record.label(bar.application);
        if (high < LEAST_NAMED.high || !isShown(label)) continue;
        this.#named.push({ start, to, name: label.application_id, top, high });
      }
    });
  }

  /** Write ids into large rectangles, at their left ends or that of the picture. */
  #writeNames(context, later) {
    const { at, now, scale } = this.#scene;
    context.fillStyle = this.#colour("panel");
    context.font = "500 10.5px Inter, system-ui, sans-serif";
    context.textBaseline = "middle";
    for (const { start, to, name, top, high } of this.#named) {
      const left = Math.max(0, now + (start - at - later) * scale);
      const right = Math.min(now, now + (to - at - later) * scale);
      if (right - left < LEAST_NAMED.wide) continue;
      context.save();
      context.beginPath();
      context.rect(left, top, right - left - 4, high);
      context.clip();
      context.fillText(name, left + 5, top + high / 2 + 0.5);
      context.restore();
    }
  }

  #hatch(context, name) {
    if (!this.#patterns.has(name)) {
      const tile = document.createElement("canvas");
      tile.width = tile.height = TILE;
      const inside = tile.getContext("2d");
      inside.fillStyle = inside.strokeStyle = this.#colour(name);
      inside.globalAlpha = 0.22;
      inside.fillRect(0, 0, TILE, TILE);
      inside.globalAlpha = 1;
      inside.lineWidth = 1.4;
      inside.beginPath();
      for (const x of [-TILE, 0, TILE]) {
        inside.moveTo(x - 1, TILE + 1);
        inside.lineTo(x + TILE + 1, -1);
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
      context.fillText(
        time < 0 ? `−${inMinutes(-time)}` : `+${inMinutes(time)}`,
        x,
        this.height - 6,
      );
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

const ratio = () => devicePixelRatio || 1;

function resize(sheet, width, height) {
  sheet.width = Math.round(width * ratio());
  sheet.height = Math.round(height * ratio());
  sheet.getContext("2d").setTransform(ratio(), 0, 0, ratio(), 0, 0);
}
