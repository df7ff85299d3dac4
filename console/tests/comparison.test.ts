import assert from "node:assert/strict";
import test from "node:test";
import { layOut } from "../src/comparison";

const WIDE = { width: 880, height: 660 };

test("few charts grow into the room that there is", () => {
  const [one, two, four, many] = [1, 2, 4, 5].map((count) => layOut(count, WIDE));
  assert.equal(one?.per, 1);
  assert.equal(two?.per, 1);
  assert.equal(four?.per, 2);
  assert.deepEqual(many, { per: 0, height: 220 });
  assert.ok((one?.height ?? 0) > (two?.height ?? 0) && (two?.height ?? 0) > 220);
});

test("charts stay as they are on a narrow or low page", () => {
  assert.deepEqual(layOut(4, { width: 600, height: 660 }), { per: 0, height: 220 });
  assert.deepEqual(layOut(2, { width: 880, height: 200 }), { per: 1, height: 220 });
  assert.equal(layOut(1, { width: 360, height: 2000 }).height, 270);
});
