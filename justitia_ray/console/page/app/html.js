/** The one place that ties Preact and htm together: every component writes its markup with `html`. */
import { h } from "../vendor/preact.mjs";
import htm from "../vendor/htm.mjs";

export const html = htm.bind(h);
