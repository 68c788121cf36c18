/** Used shares of the nodes of the tree of tenants, over the last quarter of an hour. */

const KEPT_S = 900;
const EVERY_S = 5;

export class SharesRecord {
  /** @type {{at: number, used: Record<string, number>}[]} in the order of time */
  samples = [];

  /** Take a frame of the stream; a whole one brings the past. */
  take(frame) {
    if (frame.is_whole && frame.shares_past?.length) {
      this.samples = [...frame.shares_past];
    }
    const last = this.samples.at(-1);
    if (last && frame.at - last.at < EVERY_S) return;
    const used = Object.fromEntries(frame.shares.map((row) => [row.node, row.used]));
    this.samples.push({ at: frame.at, used });
    while (frame.at - this.samples[0].at > KEPT_S) this.samples.shift();
  }
}
