/** Lines of a streamed answer, as they arrive. */
import { ServiceError } from "./service.js";

/**
 * Yield the JSON of each line of an answer; null for an empty one, which is a sign of life.
 * @param {Response} answer
 * @throws {ServiceError} if the connection is lost
 */
export async function* readLines(answer) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read().catch(() => {
        throw new ServiceError(0, "The connection was lost.");
      });
      if (done) return;
      const lines = (rest + value).split("\n");
      rest = lines.pop();
      for (const line of lines) yield line ? JSON.parse(line) : null;
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
