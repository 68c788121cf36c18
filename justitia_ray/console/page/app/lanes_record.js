/** The lanes of one model: the past of each replica, as the frames have told it. */
import { LaneLayout } from "./lane_layout.js";

/** How much of the past the page keeps, in seconds. */
const KEPT_S = 300;

export class LanesRecord {
  /** @type {Map<string, LaneLayout>} by the replica's id */
  lanes = new Map();
  /** @type {Map<string, {tenant: string, application_id: string, application_class: string}>} */
  labels = new Map();
  /** @type {import("./lane_layout.js").Piece[]} pieces ahead of now, on all replicas */
  planned = [];
  /** Time from which the lanes are recorded without a break. */
  begunAt = 0;
  #epoch = null;

  /** Take a frame of the stream; a whole one of the same epoch goes on with what is known. */
  take(frame) {
    if (frame.epoch !== this.#epoch) {
      this.lanes.clear();
      this.#epoch = frame.epoch;
      this.begunAt = frame.at;
    }
    for (const [application, [tenant, application_id, application_class]] of Object.entries(
      frame.labels,
    )) {
      this.labels.set(application, { tenant, application_id, application_class });
    }
    const capacities = new Map(frame.replicas.map((one) => [one.replica_id, one.kv_tokens]));
    const bars = frame.bars.map(([id, replica, application, kind, start, end, kv]) => ({
      id,
      replica,
      application,
      kind,
      start,
      end,
      kv,
    }));
    for (const [replica, own] of byReplica(bars)) {
      if (!this.lanes.has(replica)) this.lanes.set(replica, new LaneLayout());
      this.lanes.get(replica).take(own, capacities.get(replica) ?? Infinity);
    }
    this.planned = layOutPlan(frame.planned, capacities);
    if (frame.is_whole) for (const lane of this.lanes.values()) lane.endOthers(bars, frame.at);
    const oldest = frame.at - KEPT_S;
    for (const [replica, lane] of this.lanes) {
      lane.dropBefore(oldest);
      if (!lane.pieces.length && !capacities.has(replica)) this.lanes.delete(replica);
    }
    if (frame.number % 60 === 0) this.#dropLabels();
  }

  /** Return the pieces of a replica's past. */
  past(replica) {
    return this.lanes.get(replica)?.pieces ?? [];
  }

  /** Return the names of an application; its key, if no frame has told them. */
  label(application) {
    return (
      this.labels.get(application) ?? {
        tenant: "",
        application_id: application,
        application_class: "",
      }
    );
  }

  #dropLabels() {
    const used = new Set(this.planned.map(({ bar }) => bar.application));
    for (const lane of this.lanes.values()) {
      for (const { bar } of lane.pieces) used.add(bar.application);
    }
    for (const application of this.labels.keys()) {
      if (!used.has(application)) this.labels.delete(application);
    }
  }
}

function layOutPlan(planned, capacities) {
  const bars = planned.map(([replica, application, start, end, kv], id) => ({
    id,
    replica,
    application,
    kind: "planned",
    start,
    end,
    kv,
  }));
  return [...byReplica(bars)].flatMap(([replica, own]) => {
    const layout = new LaneLayout();
    layout.take(own, capacities.get(replica) ?? Infinity);
    return layout.pieces;
  });
}

function byReplica(bars) {
  const found = new Map();
  for (const bar of bars) {
    if (found.has(bar.replica)) found.get(bar.replica).push(bar);
    else found.set(bar.replica, [bar]);
  }
  return found;
}
