import assert from "node:assert/strict";
import { test } from "node:test";
import { coloursBy, dashesBy, differing, ramp } from "../src/colouring";
import {
  axisOf,
  correlation,
  importance,
  marks,
  passes,
  placeOn,
  ranks,
  readBrush,
  separation,
  valueOn,
  writeBrush,
} from "../src/sweep";

test("equal numbers share the mean of their ranks", () => {
  assert.deepEqual(ranks([10, 30, 20, 20]), [1, 4, 2.5, 2.5]);
});

test("rank correlation sees any monotonous relation", () => {
  assert.equal(correlation([1, 2, 3, 4], [1, 8, 27, 64]), 1);
  assert.equal(correlation([1, 2, 3, 4], [9, 7, 5, 1]), -1);
  assert.equal(correlation([1, 1, 1], [1, 2, 3]), undefined);
  assert.equal(correlation([1, 2], [1, 2]), undefined);
  // As scipy.stats.spearmanr computes it.
  const found = correlation([1, 2, 3, 4, 5], [5, 6, 7, 8, 7]) ?? 0;
  assert.ok(Math.abs(found - 0.8207826816681233) < 1e-12);
});

test("categories explain a metric as far as they separate its ranks", () => {
  assert.equal(separation(["a", "a", "b"], [1, 1, 3]), 1);
  const none = separation(["a", "b", "a", "b"], [1, 1, 3, 3]) ?? 1;
  assert.ok(none < 1e-9);
  assert.equal(separation(["a", "b", "c"], [1, 2, 3]), undefined); // each is alone
});

test("the most important hyperparameter comes first, with its sign", () => {
  const rows = [1, 2, 3, 4, 5].map((one) => ({
    lr: one,
    depth: [3, 1, 4, 1, 5][one - 1],
    same: 1,
    kind: one < 3 ? "x" : "y",
    loss: -one,
  }));
  const found = importance(
    [...rows, { loss: "NaN", lr: 9 }],
    ["depth", "lr", "same", "kind"],
    "loss",
  );
  assert.deepEqual(
    found.map((one) => [one.name, one.sign]),
    [
      ["lr", -1],
      ["kind", 0],
      ["depth", -1],
    ],
  );
  assert.equal(found[0]?.strength, 1);
  assert.equal(found[0]?.runs, 5);
});

test("an axis is of numbers, of magnitudes, or of words", () => {
  const log = axisOf("lr", [0.001, 0.1, 1]);
  assert.equal(log.kind, "log");
  assert.ok(Math.abs((placeOn(log, 0.1) ?? 0) - 2 / 3) < 1e-9);
  assert.equal(placeOn(axisOf("n", [1, 3, null]), 2), 0.5);
  assert.deepEqual(axisOf("opt", ["sgd", "adam", 10, 9]).words, ["9", "10", "adam", "sgd"]);
  assert.equal(placeOn(axisOf("one", [5, 5]), 5), 0.5);
  assert.equal(placeOn(axisOf("n", [1, 2]), undefined), undefined);
});

test("a positive range of a factor of 20 or more has a log scale", () => {
  assert.equal(axisOf("lr", [0.003, 0.1]).kind, "log");
  assert.equal(axisOf("lr", [0.01, 0.1]).kind, "number");
  assert.equal(axisOf("lr", [0, 0.1]).kind, "number");
});

test("the labels of an axis are its numbers if they are few, else round ones", () => {
  const texts = (values: unknown[]) => marks(axisOf("depth", values)).map(([, text]) => text);
  assert.deepEqual(texts([2, 3, 3]), ["2", "3"]);
  assert.deepEqual(texts([2, 4, 8]), ["2", "4", "8"]);
  assert.deepEqual(texts([0.1, 0.003, 0.01, 0.1, 0.03]), ["0.003", "0.01", "0.03", "0.1"]);
  assert.deepEqual(texts([1, 100, 101]), ["1", "100"]); // too close to the one before
  assert.deepEqual(texts([2.001, 2.5]), ["2.1", "2.2", "2.3", "2.4", "2.5"]);
  const many = Array.from({ length: 11 }, (_, at) => 2 ** at);
  assert.deepEqual(texts(many), ["1", "10", "100", "1,000"]);
  assert.deepEqual(texts([2, 3, 5, 7, 11, 13, 17, 19, 23]), ["5", "10", "15", "20"]);
  assert.deepEqual(texts([2, "deep"]), ["2", "deep"]);
});

const runs = ["a", "b", "c"].map((id, at) => ({
  id,
  values: { lr: at, kind: at < 2 ? "x" : "y", odd: at === 0 ? undefined : at },
}));

test("runs have colours of their own, or share those of a value", () => {
  assert.equal(new Set(coloursBy(runs, "", false).values()).size, 3);
  const byKind = coloursBy(runs, "kind", false);
  assert.equal(byKind.get("a"), byKind.get("b"));
  assert.notEqual(byKind.get("a"), byKind.get("c"));
  assert.equal(coloursBy(runs, "odd", false).get("a"), "#8b94a3");
  const many = Array.from({ length: 9 }, (_, at) => ({ id: String(at), values: { lr: at } }));
  const ramped = coloursBy(many, "lr", true);
  assert.equal(ramped.get("0"), ramp(0, true));
  assert.equal(ramped.get("8"), ramp(1, true));
  assert.match(ramp(0.3, false), /^#[0-9a-f]{6}$/);
});

test("dashes tell values apart where colours are taken", () => {
  const dashes = dashesBy(runs, "kind");
  assert.deepEqual(dashes.get("a"), []);
  assert.deepEqual(dashes.get("a"), dashes.get("b"));
  assert.notDeepEqual(dashes.get("a"), dashes.get("c"));
  assert.equal(dashesBy(runs, "").size, 0);
});

test("hyperparameters that are the same for all runs do not differ", () => {
  assert.deepEqual(
    differing([{ hparams: { lr: 1, seed: 7 } }, { hparams: { lr: 2, seed: 7, more: true } }]),
    ["lr", "more"],
  );
});

test("a brush in the address chooses the runs inside it", () => {
  assert.deepEqual(readBrush(writeBrush("a~b", [0.25, 0.5])), [["a~b", [0.25, 0.5]]]);
  for (const bad of ["", "0.5~0.2~x", "a~b~c", "0~1"]) assert.deepEqual(readBrush(bad), []);
  assert.ok(passes(0.5, [0.25, 0.5]));
  assert.ok(!passes(0.6, [0.25, 0.5]));
  assert.ok(!passes(undefined, [0, 1]));
  const axis = axisOf("lr", [0.01, 1]);
  assert.ok(Math.abs(Number(valueOn(axis, 0.5)) - 0.1) < 1e-9);
  assert.equal(valueOn(axisOf("kind", ["a", "b"]), 0.9), "b");
});
