/** Numbers as people read them, each with its unit; an unknown value is a dash. */

const DASH = "–";
const whole = new Intl.NumberFormat("en-US");

/**
 * A duration, rounded as `justitia why` rounds it: 0.4 s, 37 s, 12 min, 3.5 h.
 * @param {number | null | undefined} value seconds
 */
export function seconds(value) {
  if (value == null) return DASH;
  const [amount, unit] = inUnit(value, value);
  return `${amount} ${unit}`;
}

/**
 * Two ends of a range in the unit of the later one: "4 – 12 s".
 * @param {{p10: number, p90: number} | null | undefined} quantiles seconds
 */
export function spread(quantiles) {
  if (quantiles == null) return DASH;
  const [from] = inUnit(quantiles.p10, quantiles.p90);
  const [to, unit] = inUnit(quantiles.p90, quantiles.p90);
  return from === to ? `${to} ${unit}` : `${from} – ${to} ${unit}`;
}

/** Return a time in the unit that suits `scale`, without and with that unit. */
function inUnit(value, scale) {
  if (scale < 10) return [value.toFixed(1), "s"];
  if (scale < 120) return [value.toFixed(value < 10 && value > 0 ? 1 : 0), "s"];
  if (scale < 7200) return [(value / 60).toFixed(value < 600 ? 1 : 0), "min"];
  return [(value / 3600).toFixed(1), "h"];
}

/**
 * An amount of KV tokens or of service: 940, 12.3 k, 1.25 M.
 * @param {number | null | undefined} value
 */
export function amount(value) {
  if (value == null) return DASH;
  for (const [size, letter] of [
    [1e12, "T"],
    [1e9, "G"],
    [1e6, "M"],
    [1e3, "k"],
  ]) {
    if (Math.abs(value) >= (letter === "k" ? 1e4 : size)) {
      const scaled = value / size;
      return `${scaled.toFixed(scaled >= 100 ? 0 : 1)} ${letter}`;
    }
  }
  return count(Math.round(value));
}

/** @param {number | null | undefined} value */
export function count(value) {
  return value == null ? DASH : whole.format(value);
}

/** @param {number | null | undefined} part a part of 1 */
export function percent(part) {
  if (part == null) return DASH;
  const hundredths = part * 100;
  return `${hundredths > 0 && hundredths < 9.95 ? hundredths.toFixed(1) : hundredths.toFixed(0)} %`;
}

/**
 * A change with its sign: −12 %, +4 %, 0 %.
 * @param {number | null | undefined} part
 */
export function change(part) {
  if (part == null) return DASH;
  const rounded = Math.round(part * 100);
  if (rounded === 0) return "0 %";
  return `${rounded < 0 ? "−" : "+"}${Math.abs(rounded)} %`;
}

/**
 * @param {number} number
 * @param {string} one
 * @param {string} [several]
 */
export function counted(number, one, several = `${one}s`) {
  return `${count(number)} ${number === 1 ? one : several}`;
}
