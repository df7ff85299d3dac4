// The form of a new board: which runs, under which names, where it runs and for how long. All of it
// is in the address, so that a form that is filled in can be reloaded and shared.

import { useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { type ApiError, type Board, change, type Engine, type Facet, get, type Root } from "../api";
import { isLive, type NewBoardField, newBoard, preview } from "../boards";
import { Button, ErrorNote, StateMark, Time } from "../components/basics";
import { Form, SelectField, TextField } from "../components/form";
import { Panel, Section } from "../components/panel";
import * as format from "../format";
import { asError, useLive, useLoaded } from "../loading";
import { address, place, setQuery } from "../router";

const MOST_EXPERIMENTS = 100;
const FIRST_EXPERIMENTS = 6;
const TYPING_MILLISECONDS = 250;
const BANDS = [
  ["", "standard deviation"],
  ["sem", "standard error"],
  ["minmax", "smallest to largest"],
  ["quartiles", "quartiles"],
] as const;
const SHOWN = [
  ["", "groups"],
  ["runs", "runs"],
  ["both", "groups and runs"],
] as const;

export function NewBoardPanel(props: { onClose: () => void; onStarted: (id: string) => void }) {
  const { query } = place.value;
  const value = (name: NewBoardField) => query.get(name) ?? "";
  const set = (name: NewBoardField) => (text: string) => setQuery({ [name]: text }, true);
  const error = useSignal<ApiError | undefined>(undefined);
  const isBusy = useSignal(false);
  const wanted = preview(query);
  const body = newBoard(query);
  const on = value("on");
  const isIsolated = on !== "" && on !== "instant";
  // One key for one form: a request that is repeated makes one board.
  const key = useRef({ body: "", id: "" });
  const text = JSON.stringify(body);
  if (key.current.body !== text) {
    const random = crypto.getRandomValues(new Uint32Array(4));
    key.current = { body: text, id: `console-${random.join("-")}` };
  }

  const start = async () => {
    isBusy.value = true;
    error.value = undefined;
    try {
      const headers = { "idempotency-key": key.current.id };
      const board = await change<Board>("POST", "/boards", body, { headers });
      props.onStarted(board.id);
    } catch (thrown) {
      error.value = asError(thrown);
      key.current.body = ""; // what was refused may succeed the next time
    } finally {
      isBusy.value = false;
    }
  };
  return (
    <Panel title="New board" onClose={props.onClose}>
      <Form
        label="New board"
        submit="Start"
        isBusy={isBusy.value}
        disabled={wanted === undefined}
        onSubmit={start}
      >
        <Selection />
        <TextField
          label="where"
          isCode
          value={value("where")}
          onChange={set("where")}
          placeholder='metrics["eval/acc"].max > 0.9'
        />
        <div class="pair">
          <TextField
            label="sort"
            isCode
            value={value("sort")}
            onChange={set("sort")}
            placeholder='-metrics["eval/acc"].max'
          />
          <TextField
            label="limit"
            value={value("limit")}
            onChange={set("limit")}
            placeholder="all runs"
          />
        </div>
        <Preview />
        <Section title="Names">
          <div class="pair">
            <TextField
              label="name"
              value={value("name")}
              onChange={set("name")}
              placeholder="made up by the hub"
            />
            <TextField
              label="template of runs"
              isCode
              value={value("template")}
              onChange={set("template")}
              placeholder="{run} lr={hparams.lr}"
            />
          </div>
          <TextField
            label="group runs by"
            isCode
            value={value("group_by")}
            onChange={set("group_by")}
            placeholder="hparams.lr, hparams.depth"
          />
          {value("group_by") && (
            <div class="pair">
              <SelectField
                label="band"
                value={value("band")}
                onChange={set("band")}
                options={BANDS}
              />
              <SelectField
                label="show"
                value={value("show")}
                onChange={set("show")}
                options={SHOWN}
              />
            </div>
          )}
        </Section>
        <Section title="Where it runs">
          <EngineChoice value={on} onChange={set("on")} />
          {isIsolated && (
            <>
              <div class="pair">
                <TextField
                  label="memory"
                  value={value("memory")}
                  onChange={set("memory")}
                  placeholder="2GiB"
                />
                <TextField
                  label="processors"
                  value={value("cpus")}
                  onChange={set("cpus")}
                  placeholder="1"
                />
              </div>
              <SelectField
                label="pages"
                value={value("engine")}
                onChange={set("engine")}
                options={[
                  ["", "fast, over the hub's index"],
                  ["stock", "TensorBoard's own loader"],
                ]}
              />
            </>
          )}
          <div class="pair">
            <TextField
              label="ends after"
              value={value("timeout")}
              onChange={set("timeout")}
              placeholder="8h"
            />
            <TextField
              label="ends when unused for"
              value={value("idle_timeout")}
              onChange={set("idle_timeout")}
              placeholder="30m"
            />
          </div>
          <SelectField
            label="visible to"
            value={value("visibility")}
            onChange={set("visibility")}
            options={[
              ["", "the hub's default"],
              ["private", "me"],
              ["team", "the team"],
            ]}
          />
          <label class="check">
            <input
              type="checkbox"
              checked={value("new") === "again"}
              onChange={(event) => set("new")(event.currentTarget.checked ? "again" : "1")}
            />
            Another one, even if this selection has a board
          </label>
        </Section>
        <ErrorNote error={error.value} />
        {error.value && error.value.boards.length > 0 && (
          <Blocking
            ids={error.value.boards}
            onRoom={() => {
              error.value = undefined;
            }}
          />
        )}
      </Form>
    </Panel>
  );
}

/** The selectors: picked from the experiments, or written. */
function Selection() {
  const { query } = place.value;
  const chosen = query.getAll("selector");
  const typed = useSignal("");
  const experiments = useLoaded("experiments", (signal) =>
    get<Facet>("/runs/facets", { field: "experiment", limit: MOST_EXPERIMENTS }, signal),
  );
  const roots = useLoaded("roots", (signal) => get<{ roots: Root[] }>("/roots", {}, signal));
  const known = (experiments.data?.values ?? []).map(({ value, count }) => ({
    name: String(value),
    count,
  }));
  const add = (selector: string) => {
    const text = selector.trim();
    if (text && !chosen.includes(text)) setQuery({ selector: [...chosen, text] }, true);
    typed.value = "";
  };
  const suggestions = [
    ...known.map(({ name }) => name),
    ...(roots.data?.roots ?? []).map((root) => root.uri),
  ];
  const free = known.filter(({ name }) => name && !chosen.includes(name));
  return (
    <Section title="Runs">
      {chosen.length > 0 && (
        <ul class="chips" aria-label="Selected">
          {chosen.map((selector) => (
            <li class="chip" key={selector}>
              <span title={selector}>{selector}</span>
              <Button
                kind="bare"
                label={`Remove ${selector}`}
                onClick={() =>
                  setQuery({ selector: chosen.filter((one) => one !== selector) }, true)
                }
              >
                ✕
              </Button>
            </li>
          ))}
        </ul>
      )}
      {/* Enter adds a selector and does not start the board. */}
      <div class="inline">
        <input
          aria-label="Select runs"
          list="selectors"
          placeholder="experiment, run, job:7, tag:best, path or URI"
          spellcheck={false}
          autocomplete="off"
          value={typed.value}
          onInput={(event) => {
            typed.value = event.currentTarget.value;
          }}
          onKeyDown={(event) => {
            if (event.key !== "Enter" || !typed.value.trim()) return;
            event.preventDefault();
            add(typed.value);
          }}
          onBlur={() => add(typed.value)}
        />
        <datalist id="selectors">
          {suggestions.map((one) => (
            <option key={one} value={one} />
          ))}
        </datalist>
        <Button onClick={() => add(typed.value)}>Add</Button>
      </div>
      {free.length > 0 && (
        <div class="actions experiments">
          {free.slice(0, FIRST_EXPERIMENTS).map(({ name, count }) => (
            <Button key={name} onClick={() => add(name)}>
              + {name} <span class="soft">{format.count(count)}</span>
            </Button>
          ))}
        </div>
      )}
    </Section>
  );
}

/** How many runs the board would show, as one types. */
function Preview() {
  const { query } = place.value;
  const wanted = preview(query);
  const limit = Number(query.get("limit") || Number.POSITIVE_INFINITY);
  const answer = useLoaded(JSON.stringify(wanted ?? null), async (signal) => {
    if (!wanted) return undefined;
    await new Promise((resolve) => setTimeout(resolve, TYPING_MILLISECONDS));
    signal.throwIfAborted();
    return get<{ total: number; unread: number }>("/runs", wanted, signal);
  });
  if (!wanted) return <p class="soft">Select runs, or write a question.</p>;
  if (answer.error) return <ErrorNote error={answer.error} />;
  const total = answer.data?.total;
  if (total === undefined) return <p class="soft">…</p>;
  const shown = Math.min(total, limit > 0 ? limit : total);
  return (
    <p class="soft" role="status">
      {shown < total ? `${format.count(shown)} of ` : ""}
      {format.plural(total, "run")} · new ones join by themselves
    </p>
  );
}

function EngineChoice(props: { value: string; onChange: (value: string) => void }) {
  const names = useLoaded("names", (signal) =>
    get<{ engines: Engine[] }>("/engines", { probe: false }, signal),
  );
  const probed = useLoaded("probed", (signal) =>
    get<{ engines: Engine[] }>("/engines", {}, signal),
  );
  const engines = probed.data?.engines ?? names.data?.engines ?? [];
  const known = engines.map(({ name, answers }): [string, string] => [
    name,
    answers === false ? `${name} (does not answer)` : name,
  ]);
  if (props.value && props.value !== "instant" && !engines.some((e) => e.name === props.value)) {
    known.push([props.value, props.value]);
  }
  const chosen = engines.find(({ name }) => name === props.value);
  const free = Object.entries(chosen?.resources ?? {});
  return (
    <>
      <SelectField
        label="engine"
        value={props.value}
        onChange={props.onChange}
        options={[["", "the hub's default"], ["instant", "instant: in the hub"], ...known]}
        hint={free.map(([name, amount]) => `${name}: ${amount}`).join(" · ")}
      />
      {chosen?.problem && (
        <p class="note bad">
          {chosen.problem} <span class="soft">{chosen.hint}</span>
        </p>
      )}
    </>
  );
}

/** The boards that use up a limit, each with the button that stops it. */
function Blocking(props: { ids: readonly string[]; onRoom: () => void }) {
  const boards = useLoaded(props.ids.join(), (signal) =>
    Promise.all(props.ids.map((id) => get<Board>(`/boards/${id}`, {}, signal))),
  );
  useLive(["board"], boards.refresh);
  const error = useSignal<ApiError | undefined>(undefined);
  const stopped = useSignal<ReadonlySet<string>>(new Set());
  const stop = async (board: Board) => {
    try {
      await change("POST", `/boards/${board.id}/stop`, {});
      stopped.value = new Set([...stopped.value, board.id]);
      boards.refresh();
    } catch (thrown) {
      error.value = asError(thrown);
    }
  };
  const hasRoom = boards.data?.some((board) => !isLive(board)) ?? false;
  useEffect(() => {
    if (hasRoom && stopped.peek().size > 0) props.onRoom();
  }, [hasRoom]);
  return (
    <Section title="Stop one of these">
      <ErrorNote error={error.value ?? boards.error} />
      <ul class="lines">
        {boards.data?.map((board) => (
          <li key={board.id}>
            <a class="grow" href={address("/boards", { board: board.id })}>
              {board.title || board.name}
            </a>
            <StateMark state={board.state} title={board.reason} />
            <span class="soft">
              used <Time at={board.last_request} empty="never" />
            </span>
            <Button
              kind="danger"
              label={`Stop ${board.name}`}
              disabled={!isLive(board) || board.state === "stopping" || stopped.value.has(board.id)}
              onClick={() => stop(board)}
            >
              Stop
            </Button>
          </li>
        ))}
      </ul>
    </Section>
  );
}
