import assert from "node:assert/strict";
import test from "node:test";
import { decodeSeries } from "../src/series";

function encoded(header: object, numbers: number[]): ArrayBuffer {
  const text = JSON.stringify(header);
  const padded = text.padEnd(Math.ceil(text.length / 8) * 8);
  const buffer = new ArrayBuffer(8 + padded.length + 8 * numbers.length);
  new Uint8Array(buffer).set(new TextEncoder().encode(`ABS1    ${padded}`));
  new DataView(buffer).setUint32(4, padded.length, true);
  new Float64Array(buffer, 8 + padded.length).set(numbers);
  return buffer;
}

test("curves are decoded in their order", () => {
  const about = { run: "a/b", uri: "/logs/a/b", tag: "loss", points: 9 };
  const header = {
    series: [
      { ...about, count: 2 },
      { ...about, tag: "acc", count: 1 },
    ],
    unread: 3,
  };
  const answer = decodeSeries(encoded(header, [1, 2, 0.5, Number.NaN, 7, 8]));
  assert.equal(answer.unread, 3);
  assert.deepEqual(
    answer.series.map(({ tag, x, y }) => [tag, [...x], [...y]]),
    [
      ["loss", [1, 2], [0.5, Number.NaN]],
      ["acc", [7], [8]],
    ],
  );
});

test("something else is an error", () => {
  assert.throws(() => decodeSeries(new TextEncoder().encode("{}      ").buffer as ArrayBuffer));
});
