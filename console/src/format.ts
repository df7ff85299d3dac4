// Formats values for display. The full value belongs in the title of the element.

const DIGITS = 4;
const FIGURE_SPACE = "\u2007";
const POINT_SPACE = "\u2008";

/** A number of at most 4 significant digits: 0.9341, 12.5, 1,204, 1.2e-5. */
export function number(value: number): string {
  if (Number.isNaN(value)) return "NaN";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (Number.isInteger(value) && size < 1e6) return value.toLocaleString("en-US");
  if (size >= 1e6 || size < 1e-4) {
    const [digits, exponent] = value.toExponential(DIGITS - 1).split("e");
    return `${Number(digits)}e${Number(exponent)}`;
  }
  const rounded = Number(value.toPrecision(DIGITS));
  return rounded.toLocaleString("en-US", { maximumSignificantDigits: DIGITS });
}

/** Any value of a hyperparameter or metric; the strings NaN and ±Infinity are numbers too. */
export function text(value: unknown): string {
  if (value === null || value === undefined) return "";
  if (typeof value === "number") return number(value);
  if (value === "NaN" || value === "Infinity" || value === "-Infinity")
    return number(Number(value));
  if (typeof value === "object") return JSON.stringify(value);
  return String(value);
}

/** The length of a number's fraction, with its point; undefined for other texts. */
function fraction(one: string): number | undefined {
  const found = /^[−-]?[\d,]+(\.\d+)?$/.exec(one);
  return found ? (found[1]?.length ?? 0) : undefined;
}

/** The longest fraction among the numbers of a column, for `aligned`. */
export function longestFraction(texts: readonly string[]): number {
  return texts.reduce((most, one) => Math.max(most, fraction(one) ?? 0), 0);
}

/** Pad a number so that the points of right-aligned numbers line up. */
export function aligned(one: string, longest: number): string {
  const has = fraction(one);
  if (has === undefined || has >= longest) return one;
  const digits = FIGURE_SPACE.repeat(longest - Math.max(has, 1));
  return has === 0 ? one + POINT_SPACE + digits : one + digits;
}

/** A count: 1,204. */
export function count(value: number): string {
  return value.toLocaleString("en-US");
}

/** "1 run", "2 runs". */
export function plural(value: number, noun: string): string {
  return `${count(value)} ${noun}${value === 1 ? "" : "s"}`;
}

export function bytes(value: number): string {
  let size = value;
  for (const unit of ["B", "KiB", "MiB", "GiB"]) {
    if (size < 1024)
      return `${size < 10 && unit !== "B" ? size.toFixed(1) : Math.round(size)} ${unit}`;
    size /= 1024;
  }
  return `${size < 10 ? size.toFixed(1) : Math.round(size)} TiB`;
}

const UNITS: readonly [number, string][] = [
  [86400, "d"],
  [3600, "h"],
  [60, "min"],
  [1, "s"],
];

/** Seconds in the two largest units: "2 h 5 min". */
export function duration(seconds: number): string {
  if (seconds < 1) return seconds <= 0 ? "0 s" : `${Math.round(seconds * 1000)} ms`;
  let left = Math.round(seconds);
  const parts: string[] = [];
  for (const [size, unit] of UNITS) {
    const whole = Math.floor(left / size);
    if (parts.length > 0 || whole > 0) parts.push(whole > 0 ? `${whole} ${unit}` : "");
    left -= whole * size;
    if (parts.length === 2) break;
  }
  return parts.filter(Boolean).join(" ");
}

/** A relative time: "2 min ago", "in 3 h", "just now". */
export function relative(time: string, now: number = Date.now()): string {
  const seconds = (now - Date.parse(time)) / 1000;
  if (Number.isNaN(seconds)) return time;
  const size = Math.abs(seconds);
  if (size < 5) return "just now";
  const [unit, name] = UNITS.find(([unit]) => size >= unit) ?? [1, "s"];
  const shown = `${Math.floor(size / unit)} ${name}`;
  return seconds > 0 ? `${shown} ago` : `in ${shown}`;
}

/** The exact time, in the browser's time zone. */
export function exact(time: string): string {
  const parsed = new Date(time);
  if (Number.isNaN(parsed.getTime())) return time;
  return parsed.toLocaleString(undefined, { dateStyle: "medium", timeStyle: "long" });
}
