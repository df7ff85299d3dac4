import assert from "node:assert/strict";
import test from "node:test";
import type { Board, Me } from "../src/api";
import { lostWith, newBoard, preview, reasonOf, rightsOn, splitFields } from "../src/boards";

const query = (text: string) => new URLSearchParams(text);

test("fields are split at commas outside of quotes", () => {
  assert.deepEqual(splitFields('hparams.lr, metrics["a,b"].max ,'), [
    "hparams.lr",
    'metrics["a,b"].max',
  ]);
  assert.deepEqual(splitFields(""), []);
});

test("the form of a new board is sent as the API wants it", () => {
  const form = "new=1&selector=cifar10&selector=job:7&sort=-created&limit=5&cpus=2&on=slurm";
  assert.deepEqual(newBoard(query(`${form}&memory=2GiB&group_by=hparams.lr`)), {
    selectors: ["cifar10", "job:7"],
    sort: ["-created"],
    group_by: ["hparams.lr"],
    limit: 5,
    cpus: 2,
    on: "slurm",
    memory: "2GiB",
  });
  assert.deepEqual(newBoard(query('where=state == "failed"&limit=many&new=again')), {
    selectors: ["*"],
    where: 'state == "failed"',
    limit: "many",
    new: true,
  });
});

test("runs are counted once something is selected", () => {
  assert.equal(preview(query("new=1&name=x")), undefined);
  assert.deepEqual(preview(query("selector=a&sort=-created")), {
    selector: ["a"],
    where: "",
    sort: ["-created"],
    count: true,
  });
});

test("what may be done with a board follows from role and owner", () => {
  const me = (user: string, role: Me["role"]): Me => ({ user, role, personal: false });
  const board = { owner: "max" };
  assert.deepEqual(rightsOn(board, me("max", "member")), { change: true, end: true, logs: true });
  assert.deepEqual(rightsOn(board, me("mia", "member")), { change: false, end: false, logs: true });
  assert.deepEqual(rightsOn(board, me("max", "viewer")), { change: false, end: true, logs: true });
  assert.deepEqual(rightsOn(board, me("anna", "admin")), { change: true, end: true, logs: true });
  assert.deepEqual(rightsOn(board, undefined), { change: false, end: false, logs: false });
});

test("a board says why it waits, and what its deletion loses", () => {
  assert.equal(reasonOf({ state: "pending", reason: "Resources", condition: "" }), "Resources");
  assert.equal(reasonOf({ state: "running", reason: "started", condition: "" }), "");
  assert.equal(
    reasonOf({ state: "running", reason: "", condition: "waiting for data" }),
    "waiting for data",
  );
  assert.match(lostWith({ on: "slurm" } as Board), /its shared links and its log\. Its runs/);
  assert.match(lostWith({ on: "instant" } as Board), /its history and its shared links\./);
});
