// Statistics of many runs: the importance of hyperparameters for a metric, and axes of any values.

import * as format from "./format";
import { ticks } from "./plot";

/** A finite number, or undefined for anything else. */
export function numeric(value: unknown): number | undefined {
  if (typeof value === "number" && Number.isFinite(value)) return value;
  return undefined;
}

/** A value as a text for comparing and sorting; lists and objects as JSON. */
export function word(value: unknown): string {
  if (value === null || value === undefined) return "";
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}

/** The ranks of numbers from 1; equal numbers share their mean rank. */
export function ranks(values: readonly number[]): number[] {
  const order = values.map((_, at) => at).sort((one, other) => at(values, one) - at(values, other));
  const found = new Array<number>(values.length).fill(0);
  for (let start = 0; start < order.length; ) {
    let end = start;
    while (
      end + 1 < order.length &&
      at(values, at(order, end + 1)) === at(values, at(order, start))
    )
      end += 1;
    for (let place = start; place <= end; place += 1) {
      found[at(order, place)] = (start + end) / 2 + 1;
    }
    start = end + 1;
  }
  return found;
}

function at(values: readonly number[], place: number): number {
  return values[place] ?? Number.NaN;
}

/** Spearman's rank correlation; undefined if a variable is constant, or for fewer than three runs. */
export function correlation(one: readonly number[], other: readonly number[]): number | undefined {
  if (one.length < 3) return undefined;
  const [a, b] = [ranks(one), ranks(other)];
  const mean = (one.length + 1) / 2;
  let product = 0;
  let first = 0;
  let second = 0;
  for (let place = 0; place < a.length; place += 1) {
    const [x, y] = [at(a, place) - mean, at(b, place) - mean];
    product += x * y;
    first += x * x;
    second += y * y;
  }
  return first > 0 && second > 0 ? product / Math.sqrt(first * second) : undefined;
}

/**
 * How much of the ranks of a metric a category explains, from 0 to 1: the square root of the share
 * of variance between the categories.
 */
export function separation(
  words: readonly string[],
  metric: readonly number[],
): number | undefined {
  const groups = new Map<string, number[]>();
  const ranked = ranks(metric);
  for (const [place, one] of words.entries()) {
    groups.set(one, [...(groups.get(one) ?? []), at(ranked, place)]);
  }
  if (metric.length < 3 || groups.size < 2 || groups.size === metric.length) return undefined;
  const mean = (metric.length + 1) / 2;
  const all = ranked.reduce((sum, one) => sum + (one - mean) ** 2, 0);
  let between = 0;
  for (const held of groups.values()) {
    const own = held.reduce((sum, one) => sum + one, 0) / held.length;
    between += held.length * (own - mean) ** 2;
  }
  return all > 0 ? Math.sqrt(between / all) : undefined;
}

export interface Importance {
  name: string;
  strength: number; // from 0 to 1
  sign: number; // 1 if the metric increases with it, -1 if it decreases, 0 for categories
  runs: number;
}

/** How strongly each hyperparameter correlates with a metric, strongest first. */
export function importance(
  rows: readonly Record<string, unknown>[],
  names: readonly string[],
  metric: string,
): Importance[] {
  const found: Importance[] = [];
  for (const name of names) {
    const kept = rows.filter(
      (row) => numeric(row[metric]) !== undefined && row[name] !== null && row[name] !== undefined,
    );
    const results = kept.map((row) => numeric(row[metric]) ?? 0);
    const numbers = kept.map((row) => numeric(row[name]));
    if (numbers.every((one) => one !== undefined)) {
      const value = correlation(numbers as number[], results);
      if (value !== undefined) {
        const strength = Math.abs(value);
        found.push({ name, strength, sign: Math.sign(value), runs: kept.length });
      }
    } else {
      const strength = separation(
        kept.map((row) => word(row[name])),
        results,
      );
      if (strength !== undefined) found.push({ name, strength, sign: 0, runs: kept.length });
    }
  }
  return found.sort((one, other) => other.strength - one.strength);
}

const LOG_FACTOR = 20;

/** Whether a range suits a log scale: positive, and wide enough. */
export function spansMagnitudes(low: number, high: number): boolean {
  return low > 0 && high / low >= LOG_FACTOR;
}

const MOST_MARKED = 8; // distinct values that are labels themselves
const hasFewDigits = (one: number) => Number.isInteger(one) || Number(one.toPrecision(2)) === one;
const LEAST_GAP = 0.06; // between labels, as a share of the axis

/** An axis of any values: numbers on a log or linear scale, others evenly spaced. */
export interface ValueAxis {
  name: string;
  kind: "number" | "log" | "word";
  range: readonly [number, number];
  isWhole: boolean; // only whole numbers
  numbers: readonly number[]; // the distinct values in order, if few and with few digits
  words: readonly string[];
}

export function axisOf(name: string, values: readonly unknown[]): ValueAxis {
  const there = values.filter((one) => one !== null && one !== undefined);
  const numbers = there.map(numeric);
  if (there.length > 0 && numbers.every((one) => one !== undefined)) {
    const held = numbers as number[];
    let low = held[0] ?? 0;
    let high = low;
    for (const one of held) {
      low = Math.min(low, one);
      high = Math.max(high, one);
    }
    const isLog = spansMagnitudes(low, high);
    const distinct = [...new Set(held)].sort((one, other) => one - other);
    if (low === high) [low, high] = [low - Math.abs(low || 1) / 2, high + Math.abs(high || 1) / 2];
    const isWhole = held.every(Number.isInteger);
    const kind = isLog ? "log" : "number";
    const isFew = distinct.length <= MOST_MARKED && distinct.every(hasFewDigits);
    const few = isFew ? distinct : [];
    return { name, kind, range: [low, high], isWhole, numbers: few, words: [] };
  }
  const words = [...new Set(there.map(word))].sort((one, other) =>
    one.localeCompare(other, "en", { numeric: true }),
  );
  const range = [0, Math.max(1, words.length - 1)] as const;
  return { name, kind: "word", range, isWhole: false, numbers: [], words };
}

/** The position of a value on an axis, from 0 to 1; undefined if it is missing. */
export function placeOn(axis: ValueAxis, value: unknown): number | undefined {
  if (value === null || value === undefined) return undefined;
  const [low, high] = axis.range;
  if (axis.kind === "word") {
    const found = axis.words.indexOf(word(value));
    return found < 0 ? undefined : axis.words.length < 2 ? 0.5 : found / (axis.words.length - 1);
  }
  const number = numeric(value);
  if (number === undefined) return undefined;
  if (axis.kind === "log") return Math.log(number / low) / Math.log(high / low);
  return (number - low) / (high - low);
}

/** The value at a position of an axis: a number, or the nearest word. */
export function valueOn(axis: ValueAxis, part: number): number | string {
  const [low, high] = axis.range;
  if (axis.kind === "word") return axis.words[Math.round(part * (axis.words.length - 1))] ?? "";
  return axis.kind === "log" ? low * (high / low) ** part : low + (high - low) * part;
}

/** The labels of an axis: its numbers if they are few, else round ones, or all words that fit. */
export function marks(axis: ValueAxis): [number, string][] {
  if (axis.kind === "word") {
    const every = Math.ceil(axis.words.length / 12);
    return axis.words.flatMap((one, at): [number, string][] =>
      at % every === 0 ? [[placeOn(axis, one) ?? 0, one || "(empty)"]] : [],
    );
  }
  if (axis.numbers.length > 0) {
    let last = Number.NEGATIVE_INFINITY;
    return axis.numbers.flatMap((one): [number, string][] => {
      const part = placeOn(axis, one) ?? 0;
      if (part - last < LEAST_GAP) return [];
      last = part;
      return [[part, format.number(one)]];
    });
  }
  return ticks(axis.range, 7, axis.kind === "log")
    .filter((one) => !axis.isWhole || Number.isInteger(one))
    .map((one) => [placeOn(axis, one) ?? 0, format.number(one)]);
}

/** A range of an axis, by positions; it selects the runs inside. */
export type Brush = readonly [number, number];

export function passes(part: number | undefined, brush: Brush): boolean {
  return part !== undefined && part >= brush[0] - 1e-9 && part <= brush[1] + 1e-9;
}

export function writeBrush(name: string, brush: Brush): string {
  return `${brush.map((one) => Number(one.toFixed(4))).join("~")}~${name}`;
}

/** Parse the name of an axis and its range; undefined if the text is invalid. */
export function readBrush(text: string): [string, Brush][] {
  const [low, high, ...name] = text.split("~");
  const brush = [Number(low), Number(high)] as const;
  return name.length > 0 && brush[0] < brush[1] ? [[name.join("~"), brush]] : [];
}
