// The table of runs as its URL describes it: filter, order, columns.

import type { Run, Value } from "./api";
import { type Filter, readField, TIMES, writeField } from "./question";

export interface ColumnSpec {
  field: string; // in the query language
  isCurve: boolean; // a sparkline of the metric instead of its value
  width: number | undefined;
}

export interface View extends Filter {
  sort: readonly string[];
  columns: readonly ColumnSpec[] | undefined; // undefined: chosen by the runs' fields
  groupBy: readonly string[];
  facets: readonly string[] | undefined;
}

export const DEFAULT_SORT = "-created";
export const MIN_WIDTH = 48;
export const MAX_WIDTH = 800;
const MOST_HPARAMS = 4;
const MOST_METRICS = 2;
const MOST_CURVES = 3; // for runs without metrics in their records

/** Parse a column of the URL: `hparams.lr`, `metrics.loss.min@96`, `~metrics.loss`. */
export function readColumn(text: string): ColumnSpec | undefined {
  const found = /^(~?)(.*?)(?:@(\d{1,4}))?$/s.exec(text);
  const field = readField(found?.[2] ?? "");
  if (!found || !field) return undefined;
  const isCurve = found[1] === "~";
  if (isCurve && field.group !== "metrics") return undefined;
  return {
    field: writeField(isCurve ? { ...field, statistic: "" } : field),
    isCurve,
    width: found[3] ? Math.min(MAX_WIDTH, Math.max(MIN_WIDTH, Number(found[3]))) : undefined,
  };
}

/** The unique key of a column. */
export function columnKey(spec: ColumnSpec): string {
  return (spec.isCurve ? "~" : "") + spec.field;
}

export function writeColumn(spec: ColumnSpec): string {
  return columnKey(spec) + (spec.width === undefined ? "" : `@${Math.round(spec.width)}`);
}

export function readView(query: URLSearchParams): View {
  const columns = query.getAll("column").map(readColumn);
  const known = columns.filter((one) => one !== undefined);
  const unique = new Map(known.map((one) => [columnKey(one), one]));
  const facets = query.getAll("facet");
  return {
    selectors: query.getAll("selector"),
    where: query.get("where") ?? "",
    sort: query.getAll("sort"),
    columns: unique.size > 0 ? [...unique.values()] : undefined,
    groupBy: query.getAll("group_by"),
    facets: facets.length > 0 ? facets.filter((one) => one !== "none") : undefined,
  };
}

/** Sort by a field, reverse its order, or stop sorting by it; `adds` keeps the other fields. */
export function sortedBy(sort: readonly string[], field: string, adds: boolean): string[] {
  const others = adds ? sort.filter((one) => one.replace(/^-/, "") !== field) : [];
  if (sort.includes(`-${field}`)) return [...others, field];
  if (sort.includes(field)) return others;
  return [...others, `-${field}`];
}

/** Move an entry of a list to another position. */
export function moved<T>(list: readonly T[], from: number, to: number): T[] {
  const next = [...list];
  const [one] = next.splice(from, 1);
  if (one !== undefined) next.splice(to, 0, one);
  return next;
}

/** The hyperparameters or metrics that most of some runs have; those that differ first. */
function frequent(runs: readonly Run[], group: "hparams" | "metrics", most: number): string[] {
  const found = new Map<string, { count: number; first: string; differs: boolean }>();
  for (const run of runs) {
    for (const [name, value] of Object.entries(run[group])) {
      const text = JSON.stringify(value);
      const known = found.get(name) ?? { count: 0, first: text, differs: false };
      known.count += 1;
      known.differs ||= text !== known.first;
      found.set(name, known);
    }
  }
  const ordered = [...found].sort(
    ([, one], [, other]) => Number(other.differs) - Number(one.differs) || other.count - one.count,
  );
  return ordered.slice(0, most).map(([name]) => name);
}

/**
 * The default columns for some runs: a curve, which is visible in every window, what differs
 * between them, metrics, times and places. Runs without metrics in their records, such as a plain
 * log directory, get curves of `logged` tags.
 */
export function defaultColumns(runs: readonly Run[], logged: readonly string[] = []): ColumnSpec[] {
  const plain = (field: string): ColumnSpec => ({ field, isCurve: false, width: undefined });
  const fieldsOf = (group: "hparams" | "metrics", names: readonly string[]) =>
    names.map((name) => writeField({ group, name, statistic: "" }));
  const metrics = fieldsOf("metrics", frequent(runs, "metrics", MOST_METRICS));
  const drawn = fieldsOf(
    "metrics",
    likely(frequent(runs, "metrics", Number.MAX_SAFE_INTEGER)).slice(0, 1),
  );
  const curves =
    drawn.length > 0 ? drawn : fieldsOf("metrics", likely(logged).slice(0, MOST_CURVES));
  return [
    plain("run"),
    plain("state"),
    ...curves.map((field) => ({ field, isCurve: true, width: undefined })),
    ...fieldsOf("hparams", frequent(runs, "hparams", MOST_HPARAMS)).map(plain),
    ...metrics.map(plain),
    plain("created"),
    plain("host"),
  ];
}

/** Metrics, with losses and accuracies first. */
function likely(names: readonly string[]): string[] {
  const rank = (name: string) => [/loss/i, /acc/i].findIndex((one) => one.test(name)) >>> 0;
  return [...names].sort((one, other) => rank(one) - rank(other));
}

/** The fields to count besides the state: hyperparameters with few different values. */
export function defaultFacets(runs: readonly Run[]): string[] {
  const few = frequent(runs, "hparams", 20).filter((name) => {
    const values = new Set(runs.map((run) => JSON.stringify(run.hparams[name] ?? null)));
    return values.size > 1 && values.size <= 12;
  });
  const fields = few.slice(0, 2).map((name) => ({ group: "hparams" as const, name }));
  return ["state", ...fields.map((one) => writeField({ ...one, statistic: "" }))];
}

/** The fields that listed runs lack, and that the hub returns with `columns`. */
export function isExtra(field: string): boolean {
  const known = readField(field);
  if (!known) return false;
  if (known.group === "metrics") return known.statistic !== "" && known.statistic !== "last";
  return !known.group && ["duration", "git_commit", "heartbeat"].includes(known.name);
}

export interface Row extends Run {
  more: Readonly<Record<string, Value>>; // values that `columns` returned, by field
}

/** The value of a field of a row; undefined if it has none. */
export function fieldValue(row: Row, field: string): unknown {
  if (Object.hasOwn(row.more, field)) return row.more[field] ?? undefined;
  const known = readField(field);
  if (!known) return undefined;
  if (!known.group) {
    if (known.name === "run") return row.experiment ? `${row.experiment}/${row.name}` : row.name;
    if (known.name === "tags") return Object.keys(row.tags).join(", ");
    return (row as unknown as Record<string, unknown>)[known.name] ?? undefined;
  }
  if (isExtra(field)) return undefined;
  return inside(row[known.group], known.name);
}

/** A value by its name, which may be nested: `optimizer.lr`. */
function inside(held: Readonly<Record<string, unknown>>, name: string): unknown {
  if (Object.hasOwn(held, name)) return held[name] ?? undefined;
  let found: unknown = held;
  for (const part of name.split(".")) {
    if (typeof found !== "object" || found === null || !Object.hasOwn(found, part))
      return undefined;
    found = (found as Record<string, unknown>)[part];
  }
  return found ?? undefined;
}

/** The heading of a column: only the name. */
export function titleOf(field: string): string {
  const known = readField(field);
  if (!known) return field;
  return known.statistic && known.statistic !== "last"
    ? `${known.name} ${known.statistic}`
    : known.name;
}

export function isTime(field: string): boolean {
  return TIMES.includes(field);
}

/**
 * A table as comma-separated values (RFC 4180). A text that a spreadsheet would evaluate gets an
 * apostrophe, because any user can name a run `=HYPERLINK(…)`.
 */
export function csv(rows: readonly (readonly unknown[])[]): string {
  const cell = (value: unknown) => {
    if (value === null || value === undefined) return "";
    if (typeof value === "number" || typeof value === "boolean") return String(value);
    const text = typeof value === "object" ? JSON.stringify(value) : String(value);
    const safe = /^[=+\-@\t\r]/.test(text) && text !== "-Infinity" ? `'${text}` : text;
    return /[",\r\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
  };
  return rows.map((row) => `${row.map(cell).join(",")}\r\n`).join("");
}

/** The last point of the path of a sparkline. */
export function sparkEnd(path: string): readonly [number, number] | undefined {
  const found = /([\d.]+) ([\d.]+)(?:h2)?$/.exec(path);
  return found ? [Number(found[1]), Number(found[2])] : undefined;
}

/** The SVG path of a sparkline of that size. */
export function sparkPath(y: ArrayLike<number>, width: number, height: number): string {
  const finite = Array.from(y).filter(Number.isFinite);
  if (finite.length === 0) return "";
  const low = Math.min(...finite);
  const span = Math.max(...finite) - low;
  const step = y.length > 1 ? width / (y.length - 1) : 0;
  let path = "";
  let isDown = false;
  for (let index = 0; index < y.length; index += 1) {
    const value = y[index] ?? Number.NaN;
    if (!Number.isFinite(value)) {
      isDown = false;
      continue;
    }
    const top = span > 0 ? height - ((value - low) / span) * height : height / 2;
    path += `${isDown ? "L" : "M"}${(index * step).toFixed(1)} ${top.toFixed(1)}`;
    isDown = true;
  }
  return finite.length === 1 ? `${path}h2` : path;
}
