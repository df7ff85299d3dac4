import assert from "node:assert/strict";
import test from "node:test";
import type { Run } from "../src/api";
import {
  csv,
  defaultColumns,
  defaultFacets,
  fieldValue,
  isExtra,
  moved,
  type Row,
  readColumn,
  readView,
  sortedBy,
  sparkEnd,
  sparkPath,
  titleOf,
  writeColumn,
} from "../src/view";

function row(part: Partial<Row>): Row {
  const empty = { hparams: {}, metrics: {}, tags: {}, more: {}, name: "run1", experiment: "" };
  return { ...empty, ...part } as Row;
}

test("a column is read as it was written", () => {
  const texts = ["run", "hparams.lr@96", "metrics.loss.min", "~metrics.loss@120"];
  for (const text of [...texts, 'hparams["a,b@5"]', 'metrics["a b"].max@300']) {
    const read = readColumn(text);
    assert.ok(read, text);
    assert.equal(writeColumn(read), text);
  }
  assert.equal(readColumn("hparams.lr@2")?.width, 48);
  for (const text of ["", "nonsense", "~hparams.lr", "hparams"])
    assert.equal(readColumn(text), undefined);
});

test("the address is the view", () => {
  const query = new URLSearchParams(
    "selector=cifar10&where=hparams.amp&sort=-created&sort=run&column=run&column=run@300&facet=none",
  );
  const view = readView(query);
  assert.deepEqual(view.selectors, ["cifar10"]);
  assert.deepEqual(view.sort, ["-created", "run"]);
  assert.deepEqual(view.columns, [{ field: "run", isCurve: false, width: 300 }]);
  assert.deepEqual(view.facets, []);
  assert.equal(readView(new URLSearchParams()).columns, undefined);
});

test("a heading sorts down, up, and no more", () => {
  assert.deepEqual(sortedBy([], "run", false), ["-run"]);
  assert.deepEqual(sortedBy(["-run"], "run", false), ["run"]);
  assert.deepEqual(sortedBy(["run"], "run", false), []);
  assert.deepEqual(sortedBy(["run"], "state", false), ["-state"]);
  assert.deepEqual(sortedBy(["run"], "state", true), ["run", "-state"]);
  assert.deepEqual(sortedBy(["run", "-state"], "run", true), ["-state"]);
});

test("columns move", () => {
  assert.deepEqual(moved(["a", "b", "c"], 0, 2), ["b", "c", "a"]);
  assert.deepEqual(moved(["a", "b", "c"], 2, 0), ["c", "a", "b"]);
  assert.deepEqual(moved(["a"], 5, 0), ["a"]);
});

test("columns and facets suit the runs", () => {
  const runs = [0.1, 0.01, 0.1].map((lr, index) =>
    row({ hparams: { lr, seed: index, "a b": 1 }, metrics: { acc: 1, "train/loss": 2 } }),
  ) as unknown as Run[];
  const fields = defaultColumns(runs).map(writeColumn);
  assert.deepEqual(fields.slice(0, 2), ["run", "state"]);
  assert.equal(fields[2], '~metrics["train/loss"]'); // visible in every window
  assert.ok(fields.includes('hparams["a b"]'));
  assert.deepEqual(defaultFacets(runs), ["state", "hparams.lr", "hparams.seed"]);
  assert.deepEqual(defaultColumns([]).map(writeColumn), ["run", "state", "created", "host"]);
  assert.ok(!defaultColumns(runs, ["other"]).map(writeColumn).includes("~metrics.other"));
  const bare = defaultColumns([row({})], ["a", "eval/acc", "b", "train/loss"]).map(writeColumn);
  const curves = ['~metrics["train/loss"]', '~metrics["eval/acc"]', "~metrics.a"];
  assert.deepEqual(bare, ["run", "state", ...curves, "created", "host"]);
});

test("values are found by their field", () => {
  const run = row({
    experiment: "cifar10",
    hparams: { lr: 0.1, "x.y": 1, optimizer: { lr: 2 } },
    metrics: { loss: 3 },
    more: { "metrics.loss.max": 9 },
  });
  assert.equal(fieldValue(run, "run"), "cifar10/run1");
  assert.equal(fieldValue(run, "hparams.lr"), 0.1);
  assert.equal(fieldValue(run, 'hparams["x.y"]'), 1);
  assert.equal(fieldValue(run, 'hparams["optimizer.lr"]'), 2);
  assert.equal(fieldValue(run, "metrics.loss"), 3);
  assert.equal(fieldValue(run, "metrics.loss.max"), 9);
  assert.equal(fieldValue(run, "metrics.loss.min"), undefined);
  assert.equal(fieldValue(run, "hparams.toString"), undefined);
  assert.deepEqual(["metrics.loss", "metrics.loss.min", "duration", "host"].map(isExtra), [
    false,
    true,
    true,
    false,
  ]);
  assert.equal(titleOf('metrics["eval/acc"].max'), "eval/acc max");
});

test("a spreadsheet computes nothing of what is exported", () => {
  const rows = [
    ["run", 'a "b"'],
    ["=1+1", -0.5],
    ["-Infinity", null],
    ["a\nb", { x: 1 }],
  ];
  assert.equal(csv(rows), 'run,"a ""b"""\r\n\'=1+1,-0.5\r\n-Infinity,\r\n"a\nb","{""x"":1}"\r\n');
});

test("a sparkline leaves out what is not a number", () => {
  assert.equal(sparkPath([1, 0], 10, 10), "M0.0 0.0L10.0 10.0");
  assert.equal(sparkPath([1, Number.NaN, 1], 10, 10), "M0.0 5.0M10.0 5.0");
  assert.equal(sparkPath([Number.NaN], 10, 10), "");
  assert.equal(sparkPath([3], 10, 10), "M0.0 5.0h2");
});

test("a sparkline ends at its last point", () => {
  assert.deepEqual(sparkEnd(sparkPath([1, 0], 10, 10)), [10, 10]);
  assert.deepEqual(sparkEnd(sparkPath([3], 10, 10)), [0, 5]);
  assert.deepEqual(sparkEnd(sparkPath([1, 0, Number.NaN], 10, 10)), [5, 10]);
  assert.equal(sparkEnd(""), undefined);
});
