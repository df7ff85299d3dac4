import assert from "node:assert/strict";
import test from "node:test";
import {
  choice,
  conjuncts,
  expected,
  literal,
  quoted,
  readField,
  readFilter,
  toggled,
  writeField,
  writeFilter,
} from "../src/question";

test("a field is read as it was written", () => {
  const names = ["lr", "eval/acc", "a b", 'x"]', "acc.max", "<b>", "back\\slash", "naïve"];
  for (const group of ["hparams", "metrics", "tags"] as const) {
    for (const name of names) {
      const field = { group, name, statistic: group === "metrics" ? "max" : "" };
      assert.deepEqual(readField(writeField(field)), field);
    }
  }
  assert.deepEqual(readField("metrics.eval/acc.max"), {
    group: "metrics",
    name: "eval/acc",
    statistic: "max",
  });
  for (const statistic of ["nans", "infinities", "first_step", "max_step"]) {
    const field = { group: "metrics", name: "loss", statistic } as const;
    assert.deepEqual(readField(`metrics.loss.${statistic}`), field);
  }
  assert.equal(readField("stat"), undefined);
  assert.equal(readField("hparams"), undefined);
  assert.equal(readField('hparams["open'), undefined);
});

test("values are written in the language", () => {
  assert.equal(literal('a"b\\c\n'), '"a\\"b\\\\c\\n"');
  assert.equal(literal(0.1), "0.1");
  assert.equal(literal(true), "true");
  assert.equal(literal(null), "none");
});

test("a filter is selectors and a condition", () => {
  const cases: [string, readonly string[], string][] = [
    ["", [], ""],
    ["cifar10", ["cifar10"], ""],
    ["cifar10, mnist tag:best", ["cifar10", "mnist", "tag:best"], ""],
    ["hparam:lr<0.1", ["hparam:lr<0.1"], ""],
    ['state == "failed"', [], 'state == "failed"'],
    ["hparams.amp", [], "hparams.amp"],
    ["hparams.", [], "hparams."],
    ["cifar10 where hparams.lr < 0.1", ["cifar10"], "hparams.lr < 0.1"],
    ["where hparams.lr < 0.1", [], "hparams.lr < 0.1"],
    ["cifar10 where", ["cifar10"], ""],
    ['name == "a where b"', [], 'name == "a where b"'],
  ];
  for (const [text, selectors, where] of cases) {
    assert.deepEqual(readFilter(text), { selectors, where }, text);
    const written = writeFilter({ selectors, where });
    assert.deepEqual(readFilter(written), { selectors, where }, written);
  }
  const odd = { selectors: [], where: "baseline" }; // not a condition, but what the address says
  assert.deepEqual(readFilter(writeFilter(odd)), odd);
});

test("what is being typed is known", () => {
  const kinds: [string, string, string][] = [
    ["", "field", ""],
    ["sta", "field", "sta"],
    ["state", "field", "state"],
    ["state ", "sign", ""],
    ["state =", "sign", "="],
    ["state == ", "value", ""],
    ['state == "fa', "value", '"fa'],
    ['state == "failed" ', "join", ""],
    ['state == "failed" an', "join", "an"],
    ['state == "failed" and ', "field", ""],
    ['state == "failed" and hparams.l', "field", "hparams.l"],
    ['metrics["eval/acc"].max ', "sign", ""],
    ['metrics["eval/acc"].max > ', "value", ""],
    ['state in ("failed", ', "value", ""],
    ["(", "field", ""],
    ["not ", "field", ""],
    ['"base" in ', "field", ""],
    ['"base" in tags ', "join", ""],
  ];
  for (const [text, kind, typed] of kinds) {
    const found = expected(text);
    assert.equal(found.kind, kind, text);
    assert.equal(found.typed, typed, text);
    assert.equal(text.slice(found.start), typed, text);
  }
});

test("conditions are taken apart where `and` joins them", () => {
  assert.deepEqual(conjuncts('a == "x and y" and (b or c) and hparams["and"] > 1'), [
    'a == "x and y"',
    "(b or c)",
    'hparams["and"] > 1',
  ]);
  assert.deepEqual(conjuncts("a and b or c"), ["a and b or c"]);
  assert.deepEqual(conjuncts("  "), []);
});

test("facets change their own condition", () => {
  const failed = quoted("failed");
  const lost = quoted("lost");
  let where = toggled("hparams.lr < 0.1", "state", failed);
  assert.equal(where, 'hparams.lr < 0.1 and state == "failed"');
  where = toggled(where, "state", lost);
  assert.equal(where, 'hparams.lr < 0.1 and state in ("failed", "lost")');
  assert.deepEqual(choice(where, "state"), { values: [failed, lost], rest: "hparams.lr < 0.1" });
  where = toggled(where, "state", failed);
  assert.equal(where, 'hparams.lr < 0.1 and state == "lost"');
  where = toggled(where, "state", lost);
  assert.equal(where, "hparams.lr < 0.1");
  assert.equal(toggled("a or b", "state", lost), '(a or b) and state == "lost"');
  const hostile = quoted('<img src=x onerror="alert(1)">');
  const field = 'hparams["a, (b)"]';
  assert.deepEqual(choice(toggled("", field, hostile), field).values, [hostile]);
  assert.deepEqual(choice("hparams.lr == 0.1", "hparams.lr").values, ["0.1"]);
});
