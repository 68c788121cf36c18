/**
 * The stream of frames: read, kept for the views, and opened again whenever it ends.
 *
 * The page holds nothing that the service does not send again: after a reconnect the first frame
 * of each model is whole.
 */
import { computed, signal } from "../vendor/signals.mjs";
import { address } from "./address.js";
import { LanesRecord } from "./lanes_record.js";
import { readLines } from "./lines.js";
import { ServiceError, call, inWords, key } from "./service.js";
import { SharesRecord } from "./shares_record.js";
import { learnTenants } from "./tenants.js";

const STREAM = "v1/console/snapshots";
const SILENT_AFTER_S = 8;
const LONGEST_PAUSE_S = 15;
const LEAST_PAUSE_MS = 100;

/**
 * @typedef {object} ModelFeed what the page has of one model
 * @property {string} model
 * @property {object | null} frame the last frame
 * @property {number} receivedAt when it came, by `performance.now()`
 * @property {object | null} trouble the last line of trouble, until a frame comes
 * @property {object | null} predictor the last line of its predictor
 * @property {LanesRecord} lanes
 * @property {SharesRecord} shares
 */

/** The first line of the stream; null before it. */
export const hello = signal(null);
/** Feeds by model; a new object with each line. */
const feeds = signal({});
/** State of the connection: `connecting`, `live`, `waiting` (for another try) or `refused`. */
export const connection = signal({ state: "connecting", error: null, retryAt: 0 });

/** The model that is shown: that of the address, or the first. */
export const model = computed(() => {
  const models = hello.value?.models ?? [];
  return models.includes(address.value.model) ? address.value.model : (models[0] ?? "");
});
/** The feed of that model; null before its first line. */
export const feed = computed(() => feeds.value[model.value] ?? null);

let wake = () => {};
/** Try again at once. */
export const retryNow = () => wake();

/** Follow the stream until the page is closed; another key starts it again. */
export function followForever() {
  let stopped = new AbortController();
  key.subscribe(() => {
    stopped.abort();
    stopped = new AbortController();
    forget();
    follow(stopped.signal);
  });
}

async function follow(stopped) {
  let pause = 1;
  while (!stopped.aborted) {
    let error;
    try {
      const bye = await readStream(stopped, () => (pause = 1));
      if (bye?.code === "limit") {
        await sleep(LEAST_PAUSE_MS, stopped);
        continue;
      }
      error = bye ? endedBy(bye) : new ServiceError(0, "The connection was lost.");
    } catch (thrown) {
      error = thrown;
    }
    if (stopped.aborted) return;
    if (error?.wantsOtherKey) {
      forget();
      connection.value = { state: "refused", error, retryAt: 0 };
      return;
    }
    const wait = error?.retryAfter ?? pause;
    pause = Math.min(pause * 2, LONGEST_PAUSE_S);
    connection.value = { state: "waiting", error, retryAt: Date.now() + wait * 1000 };
    await sleep(wait * 1000 * (1 + Math.random() / 4), stopped);
  }
}

/** Read one stream to its end; return its last line if the service ended it. */
async function readStream(stopped, lineCame) {
  const silent = new AbortController();
  let timer = 0;
  const notSilent = () => {
    clearTimeout(timer);
    timer = setTimeout(() => silent.abort(), SILENT_AFTER_S * 1000);
  };
  notSilent();
  try {
    const answer = await call(STREAM, { signal: AbortSignal.any([stopped, silent.signal]) });
    for await (const line of readLines(answer)) {
      notSilent();
      if (line === null) continue;
      lineCame();
      if (line.kind === "bye") return line;
      take(line);
    }
    return null;
  } catch (error) {
    throw silent.signal.aborted ? new ServiceError(0, "The stream fell silent.") : error;
  } finally {
    clearTimeout(timer);
  }
}

function endedBy(bye) {
  if (bye.retry_after_s === null) return new ServiceError(401, bye.reason, bye.code);
  return new ServiceError(503, bye.reason, bye.code, bye.retry_after_s);
}

function take(line) {
  if (line.kind === "hello") {
    hello.value = line;
    connection.value = { state: "live", error: null, retryAt: 0 };
    return;
  }
  const known = feeds.peek()[line.model] ?? {
    model: line.model,
    frame: null,
    receivedAt: 0,
    trouble: null,
    predictor: null,
    lanes: new LanesRecord(),
    shares: new SharesRecord(),
  };
  const changed = takers[line.kind]?.(known, line);
  if (changed) feeds.value = { ...feeds.peek(), [line.model]: { ...known, ...changed } };
}

const takers = {
  frame(known, frame) {
    learnTenants([
      ...frame.shares.map((row) => row.node),
      ...Object.values(frame.labels).map(([tenant]) => tenant),
    ]);
    known.lanes.take(frame);
    known.shares.take(frame);
    return { frame, receivedAt: performance.now(), trouble: null };
  },
  trouble: (_, line) => ({ trouble: line }),
  predictor: (_, line) => ({ predictor: line }),
};

/** Drop what another key has shown. */
function forget() {
  hello.value = null;
  feeds.value = {};
}

function sleep(milliseconds, stopped) {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, milliseconds);
    wake = () => {
      clearTimeout(timer);
      resolve();
    };
    stopped.addEventListener("abort", wake, { once: true });
  });
}

/** What is wrong with the connection, in words; null if nothing is. */
export const connectionTrouble = computed(() => {
  const { state, error } = connection.value;
  return error && state !== "live" ? inWords(error) : null;
});
