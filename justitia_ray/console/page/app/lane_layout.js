/**
 * Places of rectangles in one lane: each application keeps its height in the lane while it can.
 *
 * The lane's height is the replica's KV memory. A bar takes the lowest gap that holds it, and that
 * of its application's last bar if it is free. Where free memory is in pieces, all bars are stacked
 * anew, so that a bar may consist of several pieces at different heights.
 */

/**
 * @typedef {object} Bar
 * @property {number} id
 * @property {string} replica
 * @property {string} application
 * @property {"run" | "held" | "planned"} kind
 * @property {number} start
 * @property {number | null} end
 * @property {number} kv
 *
 * @typedef {object} Piece a rectangle: a bar, or a part of it
 * @property {Bar} bar
 * @property {number} start
 * @property {number | null} end null: until now
 * @property {number} y KV tokens below it
 */

export class LaneLayout {
  /** @type {Piece[]} */
  pieces = [];
  /** @type {Map<number, Piece>} the last piece of each bar that has not ended, by the bar's id */
  #open = new Map();
  /** @type {Map<string, number>} */
  #lastPlace = new Map();

  /**
   * Take new bars, and bars that have changed.
   * @param {Bar[]} bars
   * @param {number} capacity KV tokens of the replica
   */
  take(bars, capacity) {
    const events = [];
    for (const bar of bars) {
      const piece = this.#open.get(bar.id);
      if (piece) Object.assign(piece.bar, bar);
      else events.push({ at: bar.start, ends: false, bar });
      if (bar.end !== null) events.push({ at: bar.end, ends: true, bar });
    }
    events.sort((one, other) => one.at - other.at || other.ends - one.ends);
    for (const { at, ends, bar } of events) {
      if (ends) this.#end(bar.id, at);
      else this.#place(bar, capacity);
    }
  }

  /** Forget what ended before a time. */
  dropBefore(time) {
    if (this.pieces.length && (this.pieces[0].end ?? Infinity) < time) {
      this.pieces = this.pieces.filter(({ end }) => end === null || end >= time);
    }
    if (this.#lastPlace.size > 500) {
      this.#lastPlace = new Map(this.pieces.map(({ bar, y }) => [bar.application, y]));
    }
  }

  #end(id, at) {
    const piece = this.#open.get(id);
    if (!piece) return;
    piece.end = at;
    this.#open.delete(id);
  }

  #place(bar, capacity) {
    const y = this.#freePlace(bar, capacity) ?? this.#stackAll(bar.start);
    this.#begin(bar, bar.start, y);
  }

  #begin(bar, start, y) {
    const piece = { bar, start, end: null, y };
    this.pieces.push(piece);
    this.#open.set(bar.id, piece);
    this.#lastPlace.set(bar.application, y);
  }

  /** Return the start of a gap that holds the bar; null: there is none. */
  #freePlace(bar, capacity) {
    const wanted = this.#lastPlace.get(bar.application);
    const taken = [...this.#open.values()].sort((one, other) => one.y - other.y);
    let lowest = null;
    let from = 0;
    for (const { y, bar: other } of [...taken, { y: capacity, bar: { kv: 0 } }]) {
      if (wanted !== undefined && from <= wanted && wanted + bar.kv <= y) return wanted;
      if (lowest === null && y - from >= bar.kv) lowest = from;
      from = Math.max(from, y + other.kv);
    }
    return lowest;
  }

  /** Stack all open bars without gaps, running ones first; return the height of the stack. */
  #stackAll(at) {
    const open = [...this.#open.values()].sort(
      (one, other) => (one.bar.kind === "held") - (other.bar.kind === "held") || one.y - other.y,
    );
    let y = 0;
    for (const piece of open) {
      if (piece.y !== y) {
        piece.end = at;
        this.#begin(piece.bar, at, y);
      }
      y += piece.bar.kv;
    }
    return y;
  }
}
