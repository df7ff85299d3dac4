import assert from "node:assert/strict";
import test from "node:test";
import { labelsOf } from "../src/roots";

function before(...places: [root: string, experiment: string][]): (string | undefined)[] {
  const runs = places.map(([root, experiment], at) => {
    return { id: String(at), root, experiment, name: "run4" };
  });
  const labels = labelsOf(runs);
  return runs.map((run) => labels.get(run.id)?.before);
}

test("runs have the shortest names that tell them apart", () => {
  assert.deepEqual(before(["/a", "exp"]), [""]);
  assert.deepEqual(before(["/a", "exp"], ["/a", "exp"]), ["", ""]);
  assert.deepEqual(before(["/a", "exp"], ["/a", "other"]), ["exp/", "other/"]);
  assert.deepEqual(before(["/a", "exp"], ["/b", "exp"]), ["/a: ", "/b: "]);
  assert.deepEqual(before(["/a", "exp"], ["/b", ""]), ["/a: exp/", "/b: "]);
});
