// The colour and dash of a run on a page: its own, or that of a field's value.

import { COLOURS, colour, slots } from "./palette";
import { numeric, spansMagnitudes, word } from "./sweep";

/** From low to high, for light and dark backgrounds. */
const RAMPS = {
  light: ["#c9a200", "#2fa06b", "#1f7d99", "#3b4fa3", "#3d1a66"],
  dark: ["#5a56c8", "#3f8fd0", "#2fc2a0", "#a5dc4b", "#fff06a"],
};
const GREY = { light: "#8b94a3", dark: "#6c7686" };
const DASHES: readonly (readonly number[])[] = [[], [6, 4], [2, 3], [10, 3, 2, 3], [12, 5]];
const MOST_NUMBERS = 6; // more different numbers than this become a ramp

export interface Run {
  id: string;
  values: Readonly<Record<string, unknown>>;
}

/** The colour of a ramp at a fraction from 0 to 1. */
export function ramp(part: number, dark: boolean): string {
  const stops = dark ? RAMPS.dark : RAMPS.light;
  const at = Math.max(0, Math.min(1, part)) * (stops.length - 1);
  const [low, high] = [stops[Math.floor(at)] ?? "", stops[Math.ceil(at)] ?? ""];
  const share = at - Math.floor(at);
  const mix = (from: number) => {
    const [one, other] = [low, high].map((text) => Number.parseInt(text.slice(from, from + 2), 16));
    return Math.round((one ?? 0) + ((other ?? 0) - (one ?? 0)) * share)
      .toString(16)
      .padStart(2, "0");
  };
  return `#${mix(1)}${mix(3)}${mix(5)}`;
}

/** The colour of each run: its own without a field, else that of its value. */
export function coloursBy(
  runs: readonly Run[],
  field: string,
  dark: boolean,
): ReadonlyMap<string, string> {
  const found = new Map<string, string>();
  if (!field) {
    const given = slots(runs.map((run) => run.id));
    for (const run of runs) found.set(run.id, colour(given.get(run.id) ?? 0, dark));
    return found;
  }
  const values = runs.map((run) => run.values[field]);
  const numbers = values.map(numeric);
  const there = values.filter((one) => one !== undefined && one !== null);
  const distinct = distinctWords(there);
  const isRamp =
    distinct.length > MOST_NUMBERS &&
    numbers.filter((one) => one !== undefined).length === there.length;
  const held = numbers.filter((one) => one !== undefined);
  const [low, high] = [Math.min(...held), Math.max(...held)];
  const isLog = spansMagnitudes(low, high);
  const grey = dark ? GREY.dark : GREY.light;
  for (const [at, run] of runs.entries()) {
    const value = values[at];
    if (value === undefined || value === null) found.set(run.id, grey);
    else if (isRamp) {
      const number = numbers[at] ?? low;
      const part = isLog
        ? Math.log(number / low) / Math.log(high / low)
        : (number - low) / (high - low);
      found.set(run.id, ramp(part, dark));
    } else {
      found.set(run.id, colour(distinct.indexOf(word(value)) % (3 * COLOURS.light.length), dark));
    }
  }
  return found;
}

/** The dash of each run by a value; none without a field. */
export function dashesBy(
  runs: readonly Run[],
  field: string,
): ReadonlyMap<string, readonly number[]> {
  const found = new Map<string, readonly number[]>();
  if (!field) return found;
  const distinct = distinctWords(runs.map((run) => run.values[field]));
  for (const run of runs) found.set(run.id, dash(distinct.indexOf(word(run.values[field]))));
  return found;
}

/** The dash by index; the first is a solid line. */
export function dash(place: number): readonly number[] {
  return DASHES[Math.max(0, place) % DASHES.length] ?? [];
}

function distinctWords(values: readonly unknown[]): string[] {
  return [...new Set(values.map(word))].sort((one, other) =>
    one.localeCompare(other, "en", { numeric: true }),
  );
}

/** The names of hyperparameters that differ between runs. */
export function differing(runs: readonly { hparams: Record<string, unknown> }[]): string[] {
  const names = new Set(runs.flatMap((run) => Object.keys(run.hparams)));
  return [...names].filter((name) => {
    const texts = new Set(runs.map((run) => word(run.hparams[name])));
    return texts.size > 1;
  });
}
