// A comparison apart from its page: its URL parameters, charts and tables.

import { csvOf, type Range } from "./plot";
import type { Curve } from "./series";

export const AXES: readonly [string, string][] = [
  ["step", "step"],
  ["wall_time", "time"],
  ["relative_time", "relative time"],
];

/** The parameters of the URL, which has all choices of the page. */
export function choices(query: URLSearchParams) {
  const x = query.get("x") ?? "step";
  const isAxis = AXES.some(([name]) => name === x);
  return {
    ids: query.getAll("run"),
    where: query.get("where") ?? "",
    selectors: query.getAll("selector"),
    x: isAxis ? (x as "step" | "wall_time" | "relative_time") : ("metric" as const),
    metric: isAxis ? "" : x,
    smoothing: Math.min(0.999, Math.max(0, Number(query.get("smooth")) || 0)),
    log: query.get("log") ?? "",
    group: query.getAll("group"),
    band: query.get("band") ?? "std",
    colour: query.get("colour") ?? "",
    dash: query.get("dash") ?? "",
    per: Number(query.get("per")) || 0,
    height: readHeight(query.get("height")),
    filter: query.get("tags") ?? "",
    charts: query.getAll("chart").map(readChart),
    zoom: readZoom(query.get("zoom")),
    hidden: new Set(query.getAll("hide")),
    focus: query.get("focus") ?? undefined,
    step: query.get("step") === null ? undefined : Number(query.get("step")),
  };
}

function readHeight(text: string | null): number | undefined {
  return Number(text) ? Math.min(1000, Math.max(120, Number(text))) : undefined;
}

export type Choices = ReturnType<typeof choices>;

/** The tags of a chart, separated by bars; a bar in a name is written %7C. */
export function readChart(text: string): string[] {
  return text.split("|").map((one) => one.replace(/%7C/g, "|").replace(/%25/g, "%"));
}

export function writeChart(tags: readonly string[]): string {
  return tags.map((one) => one.replace(/%/g, "%25").replace(/\|/g, "%7C")).join("|");
}

export function readZoom(text: string | null): Range | undefined {
  const [start, stop] = (text ?? "").split("~").map(Number);
  const isRange = start !== undefined && stop !== undefined && start < stop;
  return text && isRange ? [start, stop] : undefined;
}

export function writeZoom(range: Range | undefined): string | undefined {
  return range?.map((one) => String(Number(one.toPrecision(12)))).join("~");
}

const HEIGHT = 220; // of one of many charts
const MOST_HEIGHT = 560;
const LEAST_WIDTH = 340; // as in compare.css
const AROUND = 44; // pixels for a chart's title, its lower edge and the gap below it

/** The charts `per` row, 0 for as many as fit, and their height, to fill the room. */
export function layOut(
  count: number,
  room: { width: number; height: number },
): { per: number; height: number } {
  const per = count <= 2 ? 1 : 2;
  const width = room.width / per;
  if (count > 4 || width < LEAST_WIDTH) return { per: 0, height: HEIGHT };
  const height = Math.floor(room.height / Math.ceil(count / per)) - AROUND;
  return { per, height: Math.max(HEIGHT, Math.min(MOST_HEIGHT, Math.round(width * 0.75), height)) };
}

/** Whether a tag contains all words of a filter. */
export function passing(filter: string): (tag: string) => boolean {
  const words = filter.toLowerCase().split(/\s+/).filter(Boolean);
  return (tag) => words.every((word) => tag.toLowerCase().includes(word));
}

/** Pinned charts first, then one for each other tag that matches the filter. */
export function chartsOf(
  chosen: { charts: readonly string[][]; filter: string },
  scalars: readonly string[],
): string[][] {
  const pinned = new Set(chosen.charts.flat());
  const passes = passing(chosen.filter);
  const rest = scalars.filter((tag) => !pinned.has(tag) && passes(tag));
  return [...chosen.charts.map((tags) => [...tags]), ...rest.map((tag) => [tag])];
}

/** One row for each point; of a group, one for each of its lines. */
export function csvOfCurves(curves: readonly Curve[]): string {
  const isGrouped = curves.some((curve) => curve.line);
  const head = [isGrouped ? "group" : "run", "tag", ...(isGrouped ? ["line"] : []), "x", "y"];
  function* rows() {
    for (const curve of curves) {
      for (let at = 0; at < curve.x.length; at += 1) {
        const line = isGrouped ? [curve.line ?? ""] : [];
        yield [curve.run, curve.tag, ...line, curve.x[at] ?? 0, curve.y[at] ?? 0];
      }
    }
  }
  return csvOf(head, rows());
}
