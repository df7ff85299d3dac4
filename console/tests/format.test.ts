import assert from "node:assert/strict";
import test from "node:test";
import * as format from "../src/format";

test("numbers have at most four significant digits", () => {
  const cases: [number, string][] = [
    [0, "0"],
    [0.93412345, "0.9341"],
    [12.5, "12.5"],
    [1204, "1,204"],
    [123456, "123,456"],
    [0.00001234, "1.234e-5"],
    [12345678.9, "1.235e7"],
    [-0.5, "-0.5"],
    [Number.NaN, "NaN"],
    [Number.NEGATIVE_INFINITY, "−∞"],
  ];
  for (const [value, text] of cases) assert.equal(format.number(value), text);
});

test("the words of JSON for numbers are numbers", () => {
  assert.equal(format.text("Infinity"), "∞");
  assert.equal(format.text({ a: [1] }), '{"a":[1]}');
  assert.equal(format.text(null), "");
  assert.equal(format.text("<b>"), "<b>");
});

test("points stand below each other", () => {
  const texts = ["4", "0.1", "0.123", "NaN"];
  const longest = format.longestFraction(texts);
  assert.equal(longest, 4);
  const [whole, one, three, word] = texts.map((text) => format.aligned(text, longest));
  assert.equal(three, "0.123");
  assert.equal(word, "NaN");
  assert.equal(whole?.length, "4.123".length);
  assert.equal(one?.length, "0.123".length);
});

test("durations, sizes and times are for people", () => {
  assert.equal(format.duration(7500), "2 h 5 min");
  assert.equal(format.duration(59.7), "1 min");
  assert.equal(format.duration(0.25), "250 ms");
  assert.equal(format.duration(86400), "1 d");
  assert.equal(format.bytes(512), "512 B");
  assert.equal(format.bytes(1536), "1.5 KiB");
  assert.equal(format.bytes(5e12), "4.5 TiB");
  const now = Date.parse("2026-01-31T12:00:00Z");
  assert.equal(format.relative("2026-01-31T11:58:00Z", now), "2 min ago");
  assert.equal(format.relative("2026-01-31T15:00:00Z", now), "in 3 h");
  assert.equal(format.relative("2026-01-31T11:59:58Z", now), "just now");
  assert.equal(format.relative("nonsense", now), "nonsense");
  assert.equal(format.plural(1, "run"), "1 run");
  assert.equal(format.plural(1204, "run"), "1,204 runs");
});
