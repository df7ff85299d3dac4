import assert from "node:assert/strict";
import test from "node:test";
import { address, pathOf, search } from "../src/address";
import { matches } from "../src/components/find";
import { visible } from "../src/components/table";
import { nameOf } from "../src/keys";
import { match } from "../src/router";

test("a path is matched with its parameters", () => {
  assert.deepEqual(match("/runs", "/runs"), {});
  assert.deepEqual(match("/runs/:id", "/runs/1f0c%3Aa%20b"), { id: "1f0c:a b" });
  assert.deepEqual(match("/runs/:id", "/runs/100%"), { id: "100%" });
  assert.equal(match("/runs/:id", "/runs"), undefined);
  assert.equal(match("/runs/:id", "/runs/"), undefined);
  assert.equal(match("/runs", "/runs/x"), undefined);
});

test("a query leaves out what is empty and repeats lists", () => {
  assert.equal(search({ a: "", b: undefined, c: 0, d: ["x", "y&"] }), "?c=0&d=x&d=y%26");
  assert.equal(search({}), "");
  assert.equal(address("/runs", { where: "a > 1" }), "/runs?where=a+%3E+1");
});

test("only addresses of the hub are pages of it", () => {
  assert.equal(pathOf(new URL("http://localhost/runs?x=1")), "/runs");
  assert.equal(pathOf(new URL("http://elsewhere/runs")), undefined);
});

test("letters are found in their order", () => {
  assert.ok(matches("cifar10/run3", "C10 r3"));
  assert.ok(!matches("cifar10/run3", "r3c"));
  assert.ok(matches("anything", ""));
});

test("the rows in sight stay within the table", () => {
  assert.deepEqual(visible(0, 280, 5), [0, 4]);
  assert.deepEqual(visible(0, 280, 0), [0, -1]);
  const [first, last] = visible(28 * 50_000, 280, 100_000);
  assert.ok(first < 50_000 && first > 49_900 && last > 50_009 && last < 50_100);
  assert.ok(visible(28 * 9000, 280, 10)[0] <= 9);
});

test("keys are named with their modifier", () => {
  assert.equal(nameOf({ key: "K", metaKey: true, ctrlKey: false }), "Mod+k");
  assert.equal(nameOf({ key: "Enter", metaKey: false, ctrlKey: false }), "Enter");
});
