import assert from "node:assert/strict";
import test from "node:test";
import { COLOURS, colour, slots } from "../src/palette";

type Triple = [number, number, number];
type Matrix = [Triple, Triple, Triple];

const PLAIN: Matrix = [
  [1, 0, 0],
  [0, 1, 0],
  [0, 0, 1],
];
// How colours look with each deficiency (Machado, Oliveira and Fernandes 2009), in linear light.
const VISIONS: Matrix[] = [
  PLAIN,
  [
    [0.152286, 1.052583, -0.204868],
    [0.114503, 0.786281, 0.099216],
    [-0.003882, -0.048116, 1.051998],
  ],
  [
    [0.367322, 0.860646, -0.227968],
    [0.280085, 0.672501, 0.047413],
    [-0.01182, 0.04294, 0.968881],
  ],
  [
    [1.255528, -0.076749, -0.178779],
    [-0.078411, 0.930809, 0.147602],
    [0.004733, 0.691367, 0.3039],
  ],
];

function times(matrix: Matrix, vector: Triple): Triple {
  const row = (part: Triple) => part[0] * vector[0] + part[1] * vector[1] + part[2] * vector[2];
  return [row(matrix[0]), row(matrix[1]), row(matrix[2])];
}

function linear(hex: string): Triple {
  const parts = [1, 3, 5].map((at) => {
    const value = Number.parseInt(hex.slice(at, at + 2), 16) / 255;
    return value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
  });
  return parts as Triple;
}

function oklab(light: Triple): Triple {
  const cones = times(
    [
      [0.4122214708, 0.5363325363, 0.0514459929],
      [0.2119034982, 0.6806995451, 0.1073969566],
      [0.0883024619, 0.2817188376, 0.6299787005],
    ],
    light,
  ).map((one) => Math.cbrt(Math.max(0, one))) as Triple;
  return times(
    [
      [0.2104542553, 0.793617785, -0.0040720468],
      [1.9779984951, -2.428592205, 0.4505937099],
      [0.0259040371, 0.7827717662, -0.808675766],
    ],
    cones,
  );
}

function contrast(one: string, other: string): number {
  const luminance = (hex: string) => {
    const [red, green, blue] = linear(hex);
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
  };
  const [low = 0, high = 0] = [luminance(one), luminance(other)].sort((a, b) => a - b);
  return (high + 0.05) / (low + 0.05);
}

for (const [theme, ground] of [
  ["light", "#ffffff"],
  ["dark", "#14171c"],
] as const) {
  test(`ten colours can be told apart on a ${theme} ground, with any colour vision`, () => {
    const list = COLOURS[theme];
    assert.equal(list.length, 10);
    for (const vision of VISIONS) {
      const seen = list.map((hex) => {
        const clipped = times(vision, linear(hex)).map((one) => Math.min(1, Math.max(0, one)));
        return oklab(clipped as Triple);
      });
      for (const [index, one] of seen.entries()) {
        for (const other of seen.slice(index + 1)) {
          const distance = Math.hypot(one[0] - other[0], one[1] - other[1], one[2] - other[2]);
          assert.ok(distance > (vision === PLAIN ? 0.14 : 0.08), `${list[index]}: ${distance}`);
        }
      }
    }
    for (const hex of list) assert.ok(contrast(hex, ground) >= 3, hex);
  });
}

test("a run has one colour, and ten runs have ten", () => {
  const ids = Array.from({ length: 10 }, (_, index) => `1f0c93ab:cifar10:run${index}`);
  const given = slots(ids);
  assert.equal(new Set([...given.values()].map((slot) => colour(slot, false))).size, 10);
  assert.deepEqual(given, slots([...ids].reverse()));
  const [first = ""] = ids;
  assert.equal(slots([first]).get(first), slots([first, first]).get(first));
});

test("further runs are lighter and darker", () => {
  const many = Array.from({ length: 30 }, (_, index) => `run${index}`);
  assert.equal(new Set([...slots(many).values()].map((slot) => colour(slot, true))).size, 30);
  for (const slot of slots(Array.from({ length: 300 }, (_, index) => `run${index}`)).values()) {
    assert.match(colour(slot, false), /^#[0-9a-f]{6}$/);
  }
});
