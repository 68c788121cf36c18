/** Calls of the service, with the key of this page, and its errors in words. */
import { signal } from "../vendor/signals.mjs";

/** The key: in this variable only, so that closing or reloading the page forgets it. */
export const key = signal("");

/** An answer other than 200, or none. */
export class ServiceError extends Error {
  /**
   * @param {number} status 0: no answer
   * @param {string} message what the service says
   * @param {string} [code]
   * @param {number | null} [retryAfter] seconds
   */
  constructor(status, message, code = "", retryAfter = null) {
    super(message);
    this.status = status;
    this.code = code;
    this.retryAfter = retryAfter;
  }

  /** Whether only another key can help. */
  get wantsOtherKey() {
    return this.status === 401 || this.status === 403;
  }
}

/**
 * Call a path of the service and return the answer once its head is there.
 * @param {string} path relative to the service's root, which is above the page
 * @param {RequestInit} [options]
 * @throws {ServiceError}
 */
export async function call(path, options = {}) {
  const headers = { ...options.headers };
  if (key.value) headers.Authorization = `Bearer ${key.value}`;
  if (options.body) headers["Content-Type"] = "application/json";
  let answer;
  try {
    answer = await fetch(new URL(`../${path}`, location.href.split("?")[0]), {
      cache: "no-store",
      credentials: "omit",
      ...options,
      headers,
    });
  } catch (error) {
    if (options.signal?.aborted) throw error;
    throw new ServiceError(0, "The service does not answer.");
  }
  if (!answer.ok) throw await refusal(answer);
  return answer;
}

/** Call a path and return the JSON of its answer. */
export async function callJson(path, options) {
  return (await call(path, options)).json();
}

async function refusal(answer) {
  let said = {};
  try {
    said = (await answer.json()).error ?? {};
  } catch {
    // A proxy's own page: the status has to do.
  }
  const after = Number.parseFloat(answer.headers.get("Retry-After") ?? "");
  return new ServiceError(
    answer.status,
    said.message ?? "",
    said.code ?? "",
    Number.isFinite(after) ? after : null,
  );
}

/**
 * An error as the page tells it.
 * @param {Error} error
 */
export function inWords(error) {
  if (!(error instanceof ServiceError)) return `The page failed: ${error.message}`;
  const detail = error.message ? ` ${sentence(error.message)}` : "";
  switch (error.status) {
    case 0:
      return "The service does not answer.";
    case 401:
      return key.value
        ? "The service does not accept this key: it is unknown, malformed or has expired."
        : "The service asks for a key.";
    case 403:
      return `This key may not do that.${detail}`;
    case 404:
      return `Not found.${detail}`;
    case 429:
      return `The service serves no more viewers now.${detail}`;
    case 503:
      return `The service cannot answer now.${detail}`;
    default:
      return `The service answered ${error.status}.${detail}`;
  }
}

function sentence(text) {
  const whole = text.trim();
  return whole[0].toUpperCase() + whole.slice(1) + (/[.!?]$/.test(whole) ? "" : ".");
}
