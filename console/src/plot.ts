// Draws curves on a canvas or as SVG, apart from any page: scales, ticks, lines.

import * as format from "./format";

export interface Points {
  x: Float64Array;
  y: Float64Array;
}

export interface PlotCurve extends Points {
  key: string; // the run or group; curves of several tags may share it
  label: string;
  colour: string;
  dash?: readonly number[];
  band?: { lower: Points; upper: Points };
  end?: "live" | "broken"; // mark the last point: the run is running, or has failed
}

export type AxisKind = "number" | "time" | "duration";
export type Range = readonly [number, number];

export interface Scale {
  range: Range;
  isLog: boolean;
}

export interface Plot {
  curves: readonly PlotCurve[];
  width: number;
  height: number;
  x: Scale;
  y: Scale;
  xKind: AxisKind;
  ink: string;
  line: string;
  paper?: string;
  title?: string; // of an exported picture
  emphasis?: string | undefined; // the key of the curves to emphasize; the others are dimmed
}

export const MARGIN = { left: 52, right: 10, top: 8, bottom: 22 };
const FONT = "11px system-ui, sans-serif";
const FADED = 0.15;

// Scales.

/** The fraction of a scale, from 0 to 1, at a value. */
export function share(scale: Scale, value: number): number {
  const [low, high] = scale.range;
  if (!scale.isLog) return (value - low) / (high - low || 1);
  return Math.log(value / low) / (Math.log(high / low) || 1);
}

/** The value at a fraction of a scale. */
export function valueAt(scale: Scale, part: number): number {
  const [low, high] = scale.range;
  return scale.isLog ? low * (high / low) ** part : low + (high - low) * part;
}

function isDrawable(value: number, isLog: boolean): boolean {
  return Number.isFinite(value) && (!isLog || value > 0);
}

/** The least and greatest drawable values of some arrays; undefined if there are none. */
export function extent(arrays: readonly Float64Array[], isLog: boolean): Range | undefined {
  let low = Number.POSITIVE_INFINITY;
  let high = Number.NEGATIVE_INFINITY;
  for (const values of arrays) {
    for (const value of values) {
      if (!isDrawable(value, isLog)) continue;
      if (value < low) low = value;
      if (value > high) high = value;
    }
  }
  return low <= high ? [low, high] : undefined;
}

/** Widen a range a little, so that no curve touches the edge; a single value becomes a range. */
export function widened([low, high]: Range, isLog: boolean, by = 0): Range {
  if (isLog) {
    const factor = high > low ? (high / low) ** by : 1.5;
    return [low / factor, high * factor];
  }
  const margin = high > low ? (high - low) * by : Math.abs(low) * 0.1 || 1;
  return [low - margin, high + margin];
}

/** The visible range of y: of the points between two x, and where lines cross the edges. */
export function extentWithin(
  curves: readonly Points[],
  range: Range,
  isLog: boolean,
): Range | undefined {
  let low = Number.POSITIVE_INFINITY;
  let high = Number.NEGATIVE_INFINITY;
  const take = (value: number) => {
    if (!isDrawable(value, isLog)) return;
    if (value < low) low = value;
    if (value > high) high = value;
  };
  for (const { x, y } of curves) {
    for (let at = 0; at < x.length; at += 1) {
      const here = x[at] as number;
      if (here >= range[0] && here <= range[1]) take(y[at] as number);
    }
    for (const edge of range) {
      const value = interpolated({ x, y }, edge);
      if (value !== undefined) take(value);
    }
  }
  return low <= high ? [low, high] : undefined;
}

/** The index of the last x that is not greater; -1 if all are. `x` ascends. */
export function placeOf(x: Float64Array, value: number): number {
  let low = 0;
  let high = x.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if ((x[middle] as number) <= value) low = middle + 1;
    else high = middle;
  }
  return low - 1;
}

/** The interpolated y of a curve at x; undefined outside of it. */
export function interpolated({ x, y }: Points, value: number): number | undefined {
  const at = placeOf(x, value);
  const last = x.length - 1;
  if (at < 0 || last < 0 || value > (x[last] as number)) return undefined;
  const before = y[at] as number;
  if (at === last || x[at] === value) return before;
  const part = (value - (x[at] as number)) / ((x[at + 1] as number) - (x[at] as number));
  return before + ((y[at + 1] as number) - before) * part;
}

/** The value of the point nearest to x; undefined if the curve ends well before it. */
export function nearest({ x, y }: Points, value: number, slack = 0): number | undefined {
  const at = placeOf(x, value);
  const next = at + 1;
  if (x.length === 0) return undefined;
  if (at < 0) return (x[0] as number) - value <= slack ? y[0] : undefined;
  if (next >= x.length) return value - (x[at] as number) <= slack ? y[at] : undefined;
  return value - (x[at] as number) <= (x[next] as number) - value ? y[at] : y[next];
}

/** Whether x never decreases, so that it can be searched. */
export function ascends(x: Float64Array): boolean {
  for (let at = 1; at < x.length; at += 1) {
    if ((x[at] as number) < (x[at - 1] as number)) return false;
  }
  return true;
}

/** A curve with the points of `detail` inside a window and its own points around it. */
export function refined(whole: Points, detail: Points, window: Range): Points {
  const before = placeOf(whole.x, window[0]);
  let start = before + 1;
  while (start > 0 && (whole.x[start - 1] as number) >= window[0]) start -= 1;
  const end = placeOf(whole.x, window[1]) + 1;
  const join = (one: Float64Array, middle: Float64Array) => {
    const all = new Float64Array(start + middle.length + Math.max(0, one.length - end));
    all.set(one.subarray(0, start), 0);
    all.set(middle, start);
    all.set(one.subarray(end), start + middle.length);
    return all;
  };
  return { x: join(whole.x, detail.x), y: join(whole.y, detail.y) };
}

// Ticks.

const SECONDS = [1, 2, 5, 10, 15, 30];
const SPANS = [
  ...SECONDS,
  ...SECONDS.map((one) => one * 60),
  ...[1, 2, 3, 6, 12, 24, 48, 7 * 24, 14 * 24, 28 * 24].map((one) => one * 3600),
];

/** About `most` round numbers within a range. */
export function ticks([low, high]: Range, most: number, isLog = false): number[] {
  if (!(high > low) || !Number.isFinite(high - low)) return Number.isFinite(low) ? [low] : [];
  if (isLog && low > 0) return logTicks(low, high, most);
  const rough = (high - low) / Math.max(1, most);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((one) => one * power).find((one) => one >= rough) ?? rough;
  return multiples(low, high, step);
}

function multiples(low: number, high: number, step: number): number[] {
  const found: number[] = [];
  const first = Math.ceil(low / step - 1e-9);
  for (let at = first; at * step <= high + step * 1e-9 && found.length < 1000; at += 1) {
    found.push(Number((at * step).toPrecision(12)));
  }
  return found;
}

function logTicks(low: number, high: number, most: number): number[] {
  const first = Math.ceil(Math.log10(low) - 1e-9);
  const last = Math.floor(Math.log10(high) + 1e-9);
  if (last - first < 1) return ticks([low, high], most);
  const every = Math.max(1, Math.ceil((last - first + 1) / Math.max(1, most)));
  const found: number[] = [];
  for (let power = first; power <= last; power += every) found.push(Number(`1e${power}`));
  if (found.length * 3 > most || every > 1) return found;
  const between = found.concat(Number(`1e${first - 1}`)).flatMap((one) => [one, 2 * one, 5 * one]);
  return between.filter((one) => one >= low && one <= high).sort((one, other) => one - other);
}

/** Round times within a range of seconds. */
export function timeTicks([low, high]: Range, most: number, isLocal: boolean): number[] {
  if (!(high > low)) return [low];
  const rough = (high - low) / Math.max(1, most);
  if (rough < 1) return ticks([low, high], most);
  const day = 86400;
  const step = SPANS.find((one) => one >= rough) ?? Math.ceil(rough / day / 28) * day * 28;
  const shift = isLocal ? new Date(low * 1000).getTimezoneOffset() * 60 : 0;
  return multiples(low - shift, high - shift, step).map((one) => one + shift);
}

/** The label of a tick. */
export function tickLabel(value: number, kind: AxisKind, range: Range): string {
  if (kind === "number") return format.number(value);
  if (kind === "duration") return value === 0 ? "0" : format.duration(value);
  const at = new Date(value * 1000);
  const span = range[1] - range[0];
  const two = (one: number) => String(one).padStart(2, "0");
  const clock = `${two(at.getHours())}:${two(at.getMinutes())}`;
  if (span < 600) return `${clock}:${two(at.getSeconds())}`;
  if (span < 2 * 86400) return clock;
  return at.toLocaleDateString("en-GB", { day: "numeric", month: "short" });
}

/** The full value on an axis, for the cursor. */
export function axisText(value: number, kind: AxisKind): string {
  if (kind === "number") return format.number(value);
  if (kind === "duration") return format.duration(value);
  return new Date(value * 1000).toLocaleString(undefined, {
    dateStyle: "short",
    timeStyle: "medium",
  });
}

// Drawing.

/** The canvas methods that drawing needs; SVG implements them too. */
export type Pen = Pick<
  CanvasRenderingContext2D,
  | "beginPath"
  | "moveTo"
  | "lineTo"
  | "closePath"
  | "rect"
  | "clip"
  | "stroke"
  | "fill"
  | "fillText"
  | "setLineDash"
  | "save"
  | "restore"
  | "strokeStyle"
  | "fillStyle"
  | "lineWidth"
  | "lineJoin"
  | "font"
  | "textAlign"
  | "textBaseline"
  | "globalAlpha"
>;

interface Frame {
  left: number;
  top: number;
  width: number;
  height: number;
}

export function frameOf(plot: Plot): Frame {
  const top = MARGIN.top + (plot.title ? 20 : 0);
  return {
    left: MARGIN.left,
    top,
    width: Math.max(1, plot.width - MARGIN.left - MARGIN.right),
    height: Math.max(1, plot.height - top - MARGIN.bottom),
  };
}

export function draw(pen: Pen, plot: Plot): void {
  const frame = frameOf(plot);
  if (plot.paper) {
    pen.fillStyle = plot.paper;
    pen.beginPath();
    pen.rect(0, 0, plot.width, plot.height);
    pen.fill();
  }
  drawAxes(pen, plot, frame);
  pen.save();
  pen.beginPath();
  pen.rect(frame.left, frame.top - 4, frame.width + 4, frame.height + 8); // room for marks at the edges
  pen.clip();
  pen.lineJoin = "round";
  for (const curve of plot.curves) {
    if (curve.band) drawBand(pen, plot, frame, curve);
  }
  for (const curve of plot.curves) {
    if (curve.key !== plot.emphasis) drawCurve(pen, plot, frame, curve);
  }
  for (const curve of plot.curves) {
    if (curve.key === plot.emphasis) drawCurve(pen, plot, frame, curve, 2.5);
  }
  pen.restore();
}

function drawAxes(pen: Pen, plot: Plot, frame: Frame): void {
  const { left, top, width, height } = frame;
  const bottom = top + height;
  pen.font = FONT;
  pen.fillStyle = plot.ink;
  pen.strokeStyle = plot.line;
  pen.lineWidth = 1;
  pen.setLineDash([]);
  if (plot.title) {
    pen.textAlign = "left";
    pen.textBaseline = "top";
    pen.fillText(plot.title, left, 8);
  }
  pen.beginPath();
  pen.textAlign = "right";
  pen.textBaseline = "middle";
  for (const value of ticks(plot.y.range, Math.max(2, Math.floor(height / 28)), plot.y.isLog)) {
    const at = Math.round(bottom - share(plot.y, value) * height) + 0.5;
    if (at < top - 1 || at > bottom + 1) continue;
    pen.moveTo(left, at);
    pen.lineTo(left + width, at);
    pen.fillText(format.number(value), left - 6, at);
  }
  const most = Math.max(2, Math.floor(width / (plot.xKind === "number" ? 64 : 90)));
  const { range, isLog } = plot.x;
  const isTime = plot.xKind !== "number" && !isLog;
  const found = isTime ? timeTicks(range, most, plot.xKind === "time") : ticks(range, most, isLog);
  pen.textBaseline = "top";
  for (const value of found) {
    const at = Math.round(left + share(plot.x, value) * width) + 0.5;
    if (at < left - 1 || at > left + width + 1) continue;
    pen.moveTo(at, bottom);
    pen.lineTo(at, bottom + 4);
    const label = tickLabel(value, plot.xKind, range);
    // Labels are centered on their ticks, unless they would leave the picture.
    const isLast = at + label.length * 3.5 > left + width + MARGIN.right;
    pen.textAlign = isLast ? "right" : "center";
    pen.fillText(label, isLast ? left + width + MARGIN.right : at, bottom + 7);
  }
  pen.moveTo(left, Math.round(bottom) + 0.5);
  pen.lineTo(left + width, Math.round(bottom) + 0.5);
  pen.stroke();
  const [low, high] = plot.y.range;
  if (plot.y.isLog || low > 0 || high < 0) return;
  // The line at zero is darker than the grid.
  const zero = Math.round(bottom - share(plot.y, 0) * height) + 0.5;
  pen.strokeStyle = plot.ink;
  pen.globalAlpha = 0.5;
  pen.beginPath();
  pen.moveTo(left, zero);
  pen.lineTo(left + width, zero);
  pen.stroke();
  pen.globalAlpha = 1;
}

function drawBand(pen: Pen, plot: Plot, frame: Frame, curve: PlotCurve): void {
  const { lower, upper } = curve.band ?? { lower: curve, upper: curve };
  pen.beginPath();
  let isOpen = false;
  const go = (points: Points, at: number) => {
    const place = spot(plot, frame, points.x[at] as number, points.y[at] as number);
    if (!place) return;
    if (isOpen) pen.lineTo(place[0], place[1]);
    else pen.moveTo(place[0], place[1]);
    isOpen = true;
  };
  for (let at = 0; at < upper.x.length; at += 1) go(upper, at);
  for (let at = lower.x.length - 1; at >= 0; at -= 1) go(lower, at);
  if (!isOpen) return;
  pen.closePath();
  pen.fillStyle = curve.colour;
  pen.globalAlpha = plot.emphasis && plot.emphasis !== curve.key ? FADED / 3 : 0.16;
  pen.fill();
  pen.globalAlpha = 1;
}

/** Draw one curve; it has gaps at values that are not finite. */
export function drawCurve(pen: Pen, plot: Plot, frame: Frame, curve: PlotCurve, width = 1.5): void {
  const { x, y } = curve;
  const isFaded = plot.emphasis !== undefined && plot.emphasis !== curve.key;
  pen.globalAlpha = isFaded ? FADED : 1;
  pen.strokeStyle = curve.colour;
  pen.lineWidth = width;
  pen.setLineDash([...(curve.dash ?? [])]);
  pen.beginPath();
  let isOpen = false;
  let lone: readonly [number, number] | undefined; // a point without neighbours
  const dot = () => {
    if (!lone) return;
    pen.moveTo(lone[0] - 1.5, lone[1]);
    pen.lineTo(lone[0] + 1.5, lone[1]);
  };
  for (let at = 0; at < x.length; at += 1) {
    const place = spot(plot, frame, x[at] as number, y[at] as number);
    if (!place) {
      dot();
      lone = undefined;
      isOpen = false;
    } else if (isOpen) {
      pen.lineTo(place[0], place[1]);
      lone = undefined;
    } else {
      dot();
      pen.moveTo(place[0], place[1]);
      isOpen = true;
      lone = place;
    }
  }
  dot();
  pen.stroke();
  pen.setLineDash([]);
  if (curve.end) drawEnd(pen, plot, frame, curve);
  pen.globalAlpha = 1;
}

/** Mark the last point: a disc if the run is running, a cross if it failed. */
function drawEnd(pen: Pen, plot: Plot, frame: Frame, curve: PlotCurve): void {
  const { x, y, end, colour } = curve;
  let last = x.length - 1;
  while (last >= 0 && !isDrawable(y[last] as number, plot.y.isLog)) last -= 1;
  const place = last < 0 ? undefined : spot(plot, frame, x[last] as number, y[last] as number);
  if (!place) return;
  const [across, down] = place;
  pen.beginPath();
  if (end === "broken") {
    const size = 3.5;
    pen.lineWidth = 2;
    pen.moveTo(across - size, down - size);
    pen.lineTo(across + size, down + size);
    pen.moveTo(across - size, down + size);
    pen.lineTo(across + size, down - size);
    pen.stroke();
    return;
  }
  const [size, corners] = [3, 12]; // a polygon that looks like a disc
  for (let at = 0; at < corners; at += 1) {
    const angle = (2 * Math.PI * at) / corners;
    const corner = [across + size * Math.cos(angle), down + size * Math.sin(angle)] as const;
    if (at === 0) pen.moveTo(corner[0], corner[1]);
    else pen.lineTo(corner[0], corner[1]);
  }
  pen.closePath();
  pen.fillStyle = colour;
  pen.fill();
}

const FAR = 1e5; // pixels; further out, canvases lose precision

/** The position of a point in the picture; undefined if it cannot be drawn. */
export function spot(
  plot: Plot,
  frame: Frame,
  x: number,
  y: number,
): readonly [number, number] | undefined {
  if (!isDrawable(y, plot.y.isLog) || !isDrawable(x, plot.x.isLog)) return undefined;
  const across = frame.left + share(plot.x, x) * frame.width;
  const down = frame.top + (1 - share(plot.y, y)) * frame.height;
  return [Math.max(-FAR, Math.min(FAR, across)), Math.max(-FAR, Math.min(FAR, down))];
}

/** The curve nearest to a position of the picture, within some pixels. */
export function curveAt(
  plot: Plot,
  across: number,
  down: number,
  within = 24,
): PlotCurve | undefined {
  const frame = frameOf(plot);
  const value = valueAt(plot.x, (across - frame.left) / frame.width);
  let best: PlotCurve | undefined;
  let distance = within;
  for (const curve of plot.curves) {
    const height = interpolated(curve, value);
    if (height === undefined) continue;
    const place = spot(plot, frame, value, height);
    const away = place ? Math.abs(place[1] - down) : Number.POSITIVE_INFINITY;
    if (away < distance) {
      distance = away;
      best = curve;
    }
  }
  return best;
}

const BINS = 120;

/**
 * The SVG path of a histogram, by density. Buckets near zero may be narrower than a pixel, so their
 * counts are first distributed over bins of equal width.
 */
export function outline(
  buckets: readonly (readonly [number, number, number])[],
  span: Range,
  width: number,
  height: number,
): string {
  const wide = span[1] - span[0] || 1;
  const placed = (value: number) => ((value - span[0]) / wide) * BINS;
  const bins = new Float64Array(BINS);
  for (const [low, high, count] of buckets) {
    const [start, end] = [placed(low), placed(high)];
    const first = Math.max(0, Math.min(BINS - 1, Math.floor(start)));
    const last = Math.max(first, Math.min(BINS - 1, Math.ceil(end) - 1));
    for (let at = first; at <= last; at += 1) {
      const part = end > start ? (Math.min(end, at + 1) - Math.max(start, at)) / (end - start) : 1;
      bins[at] = (bins[at] ?? 0) + count * Math.max(0, part);
    }
  }
  const most = Math.max(...bins) || 1;
  let path = `M0 ${height}`;
  for (const [at, value] of bins.entries()) {
    const top = Math.round(height * (1 - value / most) * 10) / 10;
    path += `V${top}H${((at + 1) * width) / BINS}`;
  }
  return `${path}V${height}Z`;
}

/** Escape a text for XML. */
function escaped(text: string): string {
  const names: Record<string, string> = { "<": "&lt;", ">": "&gt;", "&": "&amp;", '"': "&quot;" };
  return (
    text
      // biome-ignore lint/suspicious/noControlCharactersInRegex: not allowed in XML
      .replace(/[\u0000-\u0008\u000b\u000c\u000e-\u001f\ufffe\uffff]/g, " ")
      .replace(/[<>&"]/g, (one) => names[one] ?? "")
  );
}

/** A pen that writes SVG. */
class SvgPen {
  strokeStyle = "";
  fillStyle = "";
  lineWidth = 1;
  lineJoin: CanvasLineJoin = "round";
  font = "";
  textAlign: CanvasTextAlign = "left";
  textBaseline: CanvasTextBaseline = "top";
  globalAlpha = 1;
  readonly parts: string[] = [];
  private path: string[] = [];
  private dash: number[] = [];

  beginPath(): void {
    this.path = [];
  }
  moveTo(x: number, y: number): void {
    this.path.push(`M${short(x)} ${short(y)}`);
  }
  lineTo(x: number, y: number): void {
    this.path.push(`L${short(x)} ${short(y)}`);
  }
  closePath(): void {
    this.path.push("Z");
  }
  rect(x: number, y: number, width: number, height: number): void {
    this.path.push(`M${short(x)} ${short(y)}h${short(width)}v${short(height)}h${short(-width)}Z`);
  }
  clip(): void {
    this.parts.push(`<clipPath id="frame"><path d="${this.path.join("")}"/></clipPath>`);
    this.parts.push('<g clip-path="url(#frame)">');
  }
  save(): void {}
  restore(): void {
    this.parts.push("</g>");
  }
  setLineDash(dash: number[]): void {
    this.dash = dash;
  }
  stroke(): void {
    if (this.path.length === 0) return;
    const dash = this.dash.length > 0 ? ` stroke-dasharray="${this.dash.join(" ")}"` : "";
    this.parts.push(
      `<path d="${this.path.join("")}" fill="none" stroke="${escaped(String(this.strokeStyle))}"` +
        ` stroke-width="${this.lineWidth}" stroke-linejoin="round"${dash}${this.faded()}/>`,
    );
  }
  fill(): void {
    const fill = escaped(String(this.fillStyle));
    this.parts.push(`<path d="${this.path.join("")}" fill="${fill}"${this.faded()}/>`);
  }
  fillText(text: string, x: number, y: number): void {
    const anchor = { left: "start", right: "end", center: "middle" }[String(this.textAlign)];
    const base = this.textBaseline === "top" ? "hanging" : "central";
    this.parts.push(
      `<text x="${short(x)}" y="${short(y)}" fill="${escaped(String(this.fillStyle))}"` +
        ` text-anchor="${anchor ?? "start"}" dominant-baseline="${base}">${escaped(text)}</text>`,
    );
  }
  private faded(): string {
    return this.globalAlpha < 1 ? ` opacity="${this.globalAlpha}"` : "";
  }
}

function short(value: number): string {
  return String(Math.round(value * 100) / 100);
}

const LEGEND_LINE = 16;
const MOST_LEGEND = 20;

/** Draw the picture with its title and a legend, on any pen. */
export function drawAlone(pen: Pen, plot: Plot): void {
  draw(pen, plot);
  for (const [at, curve] of legendOf(plot).entries()) {
    const y = plot.height + at * LEGEND_LINE + 8;
    pen.strokeStyle = curve.colour;
    pen.lineWidth = 2;
    pen.setLineDash([...(curve.dash ?? [])]);
    pen.beginPath();
    pen.moveTo(MARGIN.left, y);
    pen.lineTo(MARGIN.left + 20, y);
    pen.stroke();
    pen.setLineDash([]);
    pen.fillStyle = plot.ink;
    pen.textAlign = "left";
    pen.textBaseline = "middle";
    pen.fillText(curve.label, MARGIN.left + 28, y);
  }
}

function legendOf(plot: Plot): readonly PlotCurve[] {
  return plot.curves.slice(0, MOST_LEGEND);
}

export function heightAlone(plot: Plot): number {
  return plot.height + legendOf(plot).length * LEGEND_LINE + 8;
}

export function svgOf(plot: Plot): string {
  const pen = new SvgPen();
  const height = heightAlone(plot);
  const { paper, ...rest } = plot;
  drawAlone(pen as unknown as Pen, rest);
  const ground = paper ? `<rect width="100%" height="100%" fill="${escaped(paper)}"/>` : "";
  return (
    `<svg xmlns="http://www.w3.org/2000/svg" width="${plot.width}" height="${height}"` +
    ` viewBox="0 0 ${plot.width} ${height}" font-family="system-ui, sans-serif" font-size="11">` +
    `${ground}${pen.parts.join("")}</svg>\n`
  );
}

// Tables.

/** A cell of CSV; a text that a spreadsheet would evaluate gets an apostrophe. */
export function csvCell(value: string | number): string {
  if (typeof value === "number") return Number.isNaN(value) ? "NaN" : String(value);
  const safe = /^[=+\-@\t\r]/.test(value) && Number.isNaN(Number(value)) ? `'${value}` : value;
  return /[",\r\n]/.test(safe) ? `"${safe.replace(/"/g, '""')}"` : safe;
}

export function csvOf(
  head: readonly string[],
  rows: Iterable<readonly (string | number)[]>,
): string {
  const lines = [head.map(csvCell).join(",")];
  for (const row of rows) lines.push(row.map(csvCell).join(","));
  return `${lines.join("\r\n")}\r\n`;
}
