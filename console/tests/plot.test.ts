import assert from "node:assert/strict";
import { test } from "node:test";
import { chartsOf, csvOfCurves, readChart, readZoom, writeChart } from "../src/comparison";
import { composed, replaced } from "../src/curves";
import {
  ascends,
  csvOf,
  curveAt,
  extent,
  extentWithin,
  interpolated,
  nearest,
  outline,
  type Plot,
  type PlotCurve,
  refined,
  share,
  svgOf,
  tickLabel,
  ticks,
  timeTicks,
  valueAt,
  widened,
} from "../src/plot";
import type { Curve } from "../src/series";

const floats = (...values: number[]) => Float64Array.from(values);
const points = (x: number[], y: number[]) => ({ x: floats(...x), y: floats(...y) });

test("ticks are round numbers inside the range", () => {
  assert.deepEqual(ticks([0, 1], 5), [0, 0.2, 0.4, 0.6, 0.8, 1]);
  assert.deepEqual(ticks([-3, 12], 4), [0, 5, 10]);
  assert.deepEqual(ticks([0.1, 0.3], 4), [0.1, 0.15, 0.2, 0.25, 0.3]);
  assert.deepEqual(ticks([7, 7], 4), [7]);
  assert.deepEqual(ticks([Number.NaN, 1], 4), []);
  assert.ok(ticks([0, 1e300], 5).length < 12);
});

test("ticks by magnitude are powers, with two and five between few of them", () => {
  assert.deepEqual(ticks([1e-6, 1], 4, true), [1e-6, 1e-4, 1e-2, 1]);
  assert.deepEqual(ticks([1, 100], 20, true), [1, 2, 5, 10, 20, 50, 100]);
  assert.deepEqual(ticks([3, 6], 3, true), [3, 4, 5, 6]);
});

test("ticks of times are whole minutes, hours and days", () => {
  assert.deepEqual(timeTicks([0, 3600], 4, false), [0, 900, 1800, 2700, 3600]);
  assert.deepEqual(timeTicks([10, 95], 5, false), [30, 60, 90]);
  assert.equal(tickLabel(5400, "duration", [0, 9000]), "1 h 30 min");
  assert.match(tickLabel(1.7e9, "time", [1.7e9, 1.7e9 + 60]), /^\d\d:\d\d:\d\d$/);
});

test("scales lead from values to places and back", () => {
  for (const isLog of [false, true]) {
    const scale = { range: [1, 1000] as const, isLog };
    assert.ok(Math.abs(valueAt(scale, share(scale, 30)) - 30) < 1e-9);
  }
  assert.equal(share({ range: [1, 1000], isLog: true }, 1000), 1);
});

test("what cannot be drawn does not count", () => {
  const values = floats(-1, Number.NaN, 2, Number.POSITIVE_INFINITY);
  assert.deepEqual(extent([values], false), [-1, 2]);
  assert.deepEqual(extent([values], true), [2, 2]);
  assert.equal(extent([floats(Number.NaN)], false), undefined);
  assert.deepEqual(widened([2, 2], false), [1.8, 2.2]);
  assert.deepEqual(widened([0, 10], false, 0.1), [-1, 11]);
});

test("the range of y is that of what is in sight, with the lines that enter", () => {
  const curve = points([0, 10, 20], [0, 100, 0]);
  assert.deepEqual(extentWithin([curve], [0, 20], false), [0, 100]);
  assert.deepEqual(extentWithin([curve], [12, 14], false), [60, 80]);
});

test("the value at the cursor is that of the nearest point", () => {
  const curve = points([0, 10, 20], [1, 2, 3]);
  assert.equal(nearest(curve, 4), 1);
  assert.equal(nearest(curve, 16), 3);
  assert.equal(nearest(curve, 21), undefined);
  assert.equal(interpolated(curve, 5), 1.5);
  assert.equal(interpolated(curve, -1), undefined);
});

test("a window in full resolution replaces what was there", () => {
  const whole = points([0, 10, 20, 30], [0, 1, 2, 3]);
  const detail = points([9, 10, 11, 12], [5, 6, 7, 8]);
  const { x, y } = refined(whole, detail, [8, 21]);
  assert.deepEqual([...x], [0, 9, 10, 11, 12, 30]);
  assert.deepEqual([...y], [0, 5, 6, 7, 8, 3]);
  assert.ok(ascends(x));
  assert.deepEqual([...refined(whole, detail, [-5, 50]).x], [9, 10, 11, 12]);
});

function curve(run: string, x: number[], more: Partial<Curve> = {}): Curve {
  return { run, uri: `/${run}`, tag: "loss", points: x.length, ...points(x, x), ...more };
}

test("curves of a window and of runs with new points are put into those that are there", () => {
  const whole = [curve("a", [0, 10, 20]), curve("b", [0, 10, 20])];
  const window = { range: [9, 11] as const, curves: [curve("a", [9, 10, 11])] };
  const drawn = composed({ key: "", whole, window }, [9, 11]);
  assert.deepEqual([...(drawn[0]?.x ?? [])], [0, 9, 10, 11, 20]);
  assert.equal(drawn[1], whole[1]);
  assert.equal(composed({ key: "", whole, window }, undefined), whole);
  const newer = replaced(whole, [curve("b", [0, 10, 20, 30]), curve("c", [0])]);
  assert.deepEqual(
    newer.map((one) => [one.run, one.x.length]),
    [
      ["a", 3],
      ["b", 4],
      ["c", 1],
    ],
  );
});

const PLOT: Plot = {
  curves: [
    { key: "a", label: '<b>&"a"', colour: "#123456", ...points([0, 10], [0, 10]) },
    { key: "b", label: "b", colour: "#654321", ...points([0, 5, 10], [10, Number.NaN, 0]) },
  ],
  width: 300,
  height: 200,
  x: { range: [0, 10], isLog: false },
  y: { range: [0, 10], isLog: false },
  xKind: "number",
  ink: "#000",
  line: "#ccc",
  title: "<script>",
};

test("the curve under the pointer is the nearest one", () => {
  const plain = { ...PLOT, title: "" };
  assert.equal(curveAt(plain, 52, 175)?.key, "a");
  assert.equal(curveAt(plain, 52, 100), undefined);
});

test("SVG holds texts as texts, and breaks a curve where a value is missing", () => {
  const svg = svgOf(PLOT);
  assert.ok(svg.includes("&lt;script&gt;"));
  assert.ok(svg.includes("&lt;b&gt;&amp;&quot;a&quot;"));
  assert.ok(!svg.includes("<script>"));
  assert.ok(!svg.includes("NaN"));
});

test("a mark shows the state of a run, and a line marks zero", () => {
  const drawn = (end?: "live" | "broken", low = 0) => {
    const [first, second] = PLOT.curves;
    const curves = [{ ...(first as PlotCurve), ...(end ? { end } : {}) }, second as PlotCurve];
    return svgOf({ ...PLOT, curves, y: { range: [low, 10], isLog: false } }).split("<path").length;
  };
  assert.equal(drawn("live"), drawn() + 1);
  assert.equal(drawn("broken"), drawn() + 1);
  assert.equal(drawn(undefined, 1), drawn() - 1);
});

/** The heights of the bins of a histogram. */
function heights(buckets: [number, number, number][], span: [number, number]): number[] {
  return [...outline(buckets, span, 240, 96).matchAll(/V([\d.]+)H/g)].map(
    ([, top]) => 96 - Number(top),
  );
}

test("narrow buckets are as high as a wide one of the same density", () => {
  const narrow = Array.from({ length: 1000 }, (_, at): [number, number, number] => {
    return [at / 1e4, (at + 1) / 1e4, 1];
  });
  const found = heights([...narrow, [0.1, 1, 9000]], [0, 1]);
  assert.equal(found.length, 120);
  assert.ok(found.every((one) => Math.abs(one - 96) < 1));
});

test("a bucket of width zero and an empty histogram are drawn", () => {
  assert.deepEqual(Math.max(...heights([[0, 0, 5]], [0, 0])), 96);
  assert.deepEqual(Math.max(...heights([], [0, 1])), 0);
});

test("CSV quotes what needs it, and nothing in it is computed by a spreadsheet", () => {
  assert.equal(csvOf(["a", "b"], [['x,"y"', 1.5]]), 'a,b\r\n"x,""y""",1.5\r\n');
  assert.equal(csvOf(["a"], [["=1+1"], ["-0.5"], ["@x"]]), "a\r\n'=1+1\r\n-0.5\r\n'@x\r\n");
  const table = csvOfCurves([curve("a", [0, 1]), curve("=b", [2])]);
  assert.deepEqual(table.trim().split("\r\n"), [
    "run,tag,x,y",
    "a,loss,0,0",
    "a,loss,1,1",
    "'=b,loss,2,2",
  ]);
  const group = csvOfCurves([curve("lr=1", [0], { line: "middle" })]);
  assert.equal(group.trim().split("\r\n")[1], "lr=1,loss,middle,0,0");
});

test("charts and zoom in the address lead back to what they were", () => {
  for (const tags of [["loss"], ["a|b", "50%7C"], ["%", "x"]]) {
    assert.deepEqual(readChart(writeChart(tags)), tags);
  }
  assert.deepEqual(readZoom("1~2.5"), [1, 2.5]);
  for (const bad of [null, "", "2~1", "x~1", "1"]) assert.equal(readZoom(bad), undefined);
});

test("pinned charts come first, and the filter wants all words", () => {
  const scalars = ["train/loss", "eval/loss", "eval/acc"];
  const charts = (filter: string, pinned: string[][] = []) =>
    chartsOf({ filter, charts: pinned }, scalars);
  assert.deepEqual(charts("eval loss"), [["eval/loss"]]);
  assert.deepEqual(charts("", [["eval/acc", "eval/loss"]]), [
    ["eval/acc", "eval/loss"],
    ["train/loss"],
  ]);
});
