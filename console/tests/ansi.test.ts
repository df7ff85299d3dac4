import assert from "node:assert/strict";
import { test } from "node:test";
import { marked, Output, parseLine, plainLine } from "../src/ansi";

const ESC = "\u001b[";

test("colours and weights become styles, and go on to the next line", () => {
  const { pieces, style } = parseLine(`a${ESC}1;31mb${ESC}0mc${ESC}92md`);
  assert.deepEqual(pieces, [
    { text: "a", style: {} },
    { text: "b", style: { isBold: true, colour: "red" } },
    { text: "c", style: {} },
    { text: "d", style: { colour: "bright-green" } },
  ]);
  assert.deepEqual(parseLine("e", style).pieces, [
    { text: "e", style: { colour: "bright-green" } },
  ]);
});

test("256 colours and all colours are told by their numbers", () => {
  const of = (codes: string) => parseLine(`${ESC}${codes}mx`).pieces[0]?.style;
  assert.deepEqual(of("38;5;196"), { colour: "#ff0000" });
  assert.deepEqual(of("38;5;2"), { colour: "green" });
  assert.deepEqual(of("48;5;255"), { ground: "#eeeeee" });
  assert.deepEqual(of("38;2;1;2;300"), { colour: "#0102ff" });
  assert.deepEqual(of("38;9"), {});
  assert.deepEqual(of("1;4;22"), { isUnderlined: true });
});

test("what moves a cursor or names a window is left out; a progress bar shows its end", () => {
  assert.equal(plainLine(`${ESC}2K${ESC}1Gdone\u001b]0;title\u0007!`), "done!");
  assert.equal(plainLine("10%\r50%\r100%\r"), "100%");
  assert.equal(plainLine("bell\u0007\u0000"), "bell");
  assert.equal(plainLine("<b>\u001b"), "<b>");
});

test("an output comes in parts, and only its end is kept", () => {
  const output = new Output(3);
  output.add(`one\ntw`);
  output.add(`o\n${ESC}31mthree\nfour\nfi`);
  assert.deepEqual(
    output.all.map((line) => line.plain),
    ["two", "three", "four", "fi"],
  );
  assert.equal(output.dropped, 1);
  assert.equal(output.all.at(-1)?.pieces[0]?.style.colour, "red");
});

test("what is sought is a piece of its own, across styles", () => {
  const { pieces } = parseLine(`a lo${ESC}31mss b`);
  assert.deepEqual(
    marked(pieces, "LOSS").map((one) => [one.text, one.isFound]),
    [
      ["a ", false],
      ["lo", true],
      ["ss", true],
      [" b", false],
    ],
  );
});
