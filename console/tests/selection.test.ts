import assert from "node:assert/strict";
import test from "node:test";
import { readTag, selectorsOf } from "../src/components/selection";

function run(label: string, root = "/logs") {
  const at = label.lastIndexOf("/");
  const [experiment, name] = [label.slice(0, Math.max(at, 0)), label.slice(at + 1)];
  return { experiment, name, root, uri: `${root}/${label}` };
}

test("a run is selected by its name where that can mean nothing else", () => {
  const cases: [string, string][] = [
    ["cifar10/run1", "cifar10/run1"],
    ["cifar10/my run", "cifar10/my run"],
    ["cifar10/run3-run7", "/logs/cifar10/run3-run7"],
    ["cifar10/a*", "/logs/cifar10/a*"],
    ["a/b/run1", "/logs/a/b/run1"],
    ["job:7/run1", "/logs/job:7/run1"],
    ["alone", "/logs/alone"],
    ["x/lr=1", "/logs/x/lr=1"],
  ];
  for (const [label, selector] of cases) assert.deepEqual(selectorsOf([run(label)]), [selector]);
  const two = [run("a/run1"), run("a/run1", "/other")];
  assert.deepEqual(selectorsOf(two), ["/logs/a/run1", "/other/a/run1"]);
});

test("a tag has a value, or none", () => {
  assert.deepEqual(readTag(" baseline "), ["baseline", true]);
  assert.deepEqual(readTag("score = 7.5"), ["score", 7.5]);
  assert.deepEqual(readTag("team=vision=2"), ["team", "vision=2"]);
  assert.deepEqual(readTag("empty="), ["empty", ""]);
  assert.deepEqual(readTag("id=0x10"), ["id", "0x10"]);
});
