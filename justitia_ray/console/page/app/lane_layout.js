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
  /** @type {Map<number, Piece>} the last piece of each bar, by the bar's id */
  #last = new Map();
  /** @type {Set<Piece>} the pieces that have not ended */
  #open = new Set();
  /** @type {Map<string, number>} where each application was last */
  #places = new Map();

  /**
   * Take new bars, and bars that have changed; one that had ended may go on.
   * @param {Bar[]} bars
   * @param {number} capacity KV tokens of the replica
   */
  take(bars, capacity) {
    const events = [];
    for (const bar of bars) {
      const piece = this.#last.get(bar.id);
      if (piece) Object.assign(piece.bar, bar);
      const isOpen = piece && piece.end === null;
      if (!piece && bar.end !== null && bar.end <= bar.start) continue;
      if (!piece) events.push({ at: bar.start, ends: false, bar });
      else if (!isOpen && bar.end === null)
        events.push({ at: piece.end, ends: false, bar: piece.bar });
      if (bar.end !== null && (!piece || isOpen)) events.push({ at: bar.end, ends: true, bar });
    }
    events.sort((one, other) => one.at - other.at || other.ends - one.ends);
    for (const { at, ends, bar } of events) {
      if (ends) this.#end(this.#last.get(bar.id), at);
      else this.#begin(bar, at, this.#freePlace(bar, capacity) ?? this.#stackAll(at));
    }
  }

  /** End the open bars that are not among these: their ends were not told. */
  endOthers(bars, at) {
    const ids = new Set(bars.map(({ id }) => id));
    for (const piece of this.#open) if (!ids.has(piece.bar.id)) this.#end(piece, at);
  }

  /** Forget what ended before a time. */
  dropBefore(time) {
    if (!this.pieces.length || (this.pieces[0].end ?? Infinity) >= time) return;
    this.pieces = this.pieces.filter((piece) => {
      const isKept = piece.end === null || piece.end >= time;
      if (!isKept && this.#last.get(piece.bar.id) === piece) this.#last.delete(piece.bar.id);
      return isKept;
    });
    this.#places = new Map(this.pieces.map(({ bar, y }) => [bar.application, y]));
  }

  #begin(bar, start, y) {
    const piece = { bar, start, end: null, y };
    this.pieces.push(piece);
    this.#open.add(piece);
    this.#last.set(bar.id, piece);
    this.#places.set(bar.application, y);
  }

  #end(piece, at) {
    piece.end = at;
    this.#open.delete(piece);
  }

  /** Return the start of a gap that holds the bar; null: there is none. */
  #freePlace(bar, capacity) {
    const wanted = this.#places.get(bar.application);
    const taken = [...this.#open].sort((one, other) => one.y - other.y);
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
    const open = [...this.#open].sort(
      (one, other) => (one.bar.kind === "held") - (other.bar.kind === "held") || one.y - other.y,
    );
    let y = 0;
    for (const piece of open) {
      if (piece.y !== y) {
        this.#end(piece, at);
        this.#begin(piece.bar, at, y);
      }
      y += piece.bar.kv;
    }
    return y;
  }
}
