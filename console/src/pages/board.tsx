// The panel of one board: its selection, state, links, history and actions.

import { useSignal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { type ApiError, type Board, change, get } from "../api";
import { isIsolated, isLive, lostWith, reasonOf, rightsOn } from "../boards";
import { Button, Copy, ErrorNote, StateMark, Time } from "../components/basics";
import { Confirm } from "../components/confirm";
import { Menu } from "../components/dialog";
import { inputInto } from "../components/form";
import { Log } from "../components/log";
import { Panel, Section } from "../components/panel";
import { say } from "../components/toast";
import * as format from "../format";
import { asError, useLive, useLoaded } from "../loading";
import { address } from "../router";
import { me } from "../session";

const EXTENSIONS: readonly [string, string][] = [
  ["1h", "1 hour more"],
  ["8h", "8 hours more"],
  ["24h", "One more day"],
];
const STOP_MILLISECONDS = 120_000;
const POLL_MILLISECONDS = 500;

interface Share {
  id: string;
  made_by: string;
  created: string;
  expires: string | null;
  revoked: string | null;
  url: string | null;
}

export function BoardPanel(props: { id: string; onClose: () => void; onChange: () => void }) {
  const path = `/boards/${encodeURIComponent(props.id)}`;
  const board = useLoaded(props.id, (signal) => get<Board>(path, {}, signal));
  const isGoing = useSignal(false); // while it is being deleted, it is not loaded again
  useLive(
    ["board"],
    () => {
      if (!isGoing.value) board.refresh();
    },
    (event) => event.kind === "board" && event.id === props.id,
  );
  const error = useSignal<ApiError | undefined>(undefined);
  const asks = useSignal<"" | "stop" | "delete">("");
  const attempt = async (work: () => Promise<unknown>) => {
    error.value = undefined;
    try {
      await work();
    } catch (thrown) {
      error.value = asError(thrown);
    }
    board.refresh();
    props.onChange();
  };
  const found = board.data;
  if (!found) {
    return (
      <Panel title="Board" onClose={props.onClose}>
        <ErrorNote error={board.error} onRetry={board.refresh} />
      </Panel>
    );
  }
  const rights = rightsOn(found, me.value);
  const live = isLive(found);
  const post = (what: string, body: unknown = {}) => change<Board>("POST", `${path}/${what}`, body);
  const remove = async () => {
    isGoing.value = true;
    try {
      if (live && isIsolated(found)) await stopped(path);
      await change("DELETE", path);
    } catch (error) {
      isGoing.value = false;
      throw error;
    }
    say(`Deleted ${found.name}.`);
    props.onChange();
    props.onClose();
  };
  return (
    <Panel
      title={`Board ${found.name}`}
      heading={
        <>
          {found.title || found.name} <StateMark state={found.state} title={found.reason} />
        </>
      }
      onClose={props.onClose}
    >
      <ErrorNote error={error.value ?? board.error} />
      {found.problems.map((problem) => (
        <p key={problem} class="note bad">
          {problem}
        </p>
      ))}
      {found.missing_fields?.map((missing) => (
        <p key={missing} class="note">
          {missing}
        </p>
      ))}
      {found.problems.length === 0 && reasonOf(found) && (
        <p class={`note ${found.state === "failed" || found.condition ? "bad" : ""}`}>
          {reasonOf(found)}
        </p>
      )}
      <div class="actions">
        {live && (
          <a class="button primary" href={address(`/b/${found.id}/`)}>
            Open
          </a>
        )}
        {live && rights.end && (
          <Button
            disabled={found.state === "stopping"}
            onClick={() => {
              asks.value = "stop";
            }}
          >
            Stop…
          </Button>
        )}
        {rights.change && <Button onClick={() => attempt(() => post("restart"))}>Restart</Button>}
        {live && rights.change && (
          <Menu
            label="Extend"
            title="Extend"
            entries={EXTENSIONS.map(([extend, label]) => ({
              label,
              run: () => attempt(() => change("PATCH", path, { extend })),
            }))}
          />
        )}
        {rights.end && (
          <Button
            kind="danger"
            onClick={() => {
              asks.value = "delete";
            }}
          >
            Delete…
          </Button>
        )}
      </div>
      <Runs board={found} canChange={rights.change && live} attempt={attempt} />
      <About board={found} canChange={rights.change} attempt={attempt} />
      {rights.change && <Shares path={path} />}
      {rights.logs && isIsolated(found) && (
        <Section title="Log">
          <Log
            key={found.started ?? ""}
            path={`${path}/logs`}
            label={`Log of board ${found.name}`}
          />
        </Section>
      )}
      <History path={path} version={found.version} state={found.state} />
      {asks.value === "stop" && (
        <Confirm
          title={`Stop ${found.name}?`}
          action="Stop"
          run={async () => {
            await post("stop");
            board.refresh();
            props.onChange();
          }}
          onClose={() => {
            asks.value = "";
          }}
        >
          <p>
            Its pages close for all viewers. Its address, links and history are kept, and Restart
            starts it again.
          </p>
        </Confirm>
      )}
      {asks.value === "delete" && (
        <Confirm
          title={`Delete ${found.name}?`}
          action="Delete"
          run={remove}
          onClose={() => {
            asks.value = "";
          }}
        >
          {live && <p>It is {found.state} and will be stopped first.</p>}
          <p>{lostWith(found)}</p>
        </Confirm>
      )}
    </Panel>
  );
}

/** Stop an isolated board and wait until it has stopped. */
async function stopped(path: string): Promise<void> {
  await change("POST", `${path}/stop`, {});
  const ends = Date.now() + STOP_MILLISECONDS;
  while (isLive(await get<Board>(path)) && Date.now() < ends) {
    await new Promise((resolve) => setTimeout(resolve, POLL_MILLISECONDS));
  }
}

function Runs(props: {
  board: Board;
  canChange: boolean;
  attempt: (work: () => Promise<unknown>) => Promise<void>;
}) {
  const { board } = props;
  const typed = useSignal("");
  const select = (body: { add?: string[]; remove?: string[] }) =>
    props.attempt(() => change("POST", `/boards/${board.id}/selection`, body));
  return (
    <Section
      title="Runs"
      actions={
        board.runs === null ? null : <span class="soft">{format.plural(board.runs, "run")}</span>
      }
    >
      <ul class="chips" aria-label="Selectors">
        {board.selectors.map((selector) => (
          <li class="chip" key={selector}>
            <span title={selector}>{selector}</span>
            {props.canChange && board.selectors.length > 1 ? (
              <Button
                kind="bare"
                label={`Remove ${selector}`}
                onClick={() => select({ remove: [selector] })}
              >
                ✕
              </Button>
            ) : (
              <span>&nbsp;</span>
            )}
          </li>
        ))}
      </ul>
      {props.canChange && (
        <form
          class="inline"
          onSubmit={(event) => {
            event.preventDefault();
            const text = typed.value.trim();
            if (!text) return;
            typed.value = "";
            select({ add: [text] });
          }}
        >
          <input
            aria-label="Add runs"
            placeholder="add an experiment, run, job:7, path…"
            spellcheck={false}
            autocomplete="off"
            value={typed.value}
            onInput={inputInto(typed)}
          />
          <button type="submit" class="button">
            Add
          </button>
        </form>
      )}
      {props.canChange && isIsolated(board) && (
        <p class="soft">Changing the selection restarts this board.</p>
      )}
    </Section>
  );
}

function About(props: {
  board: Board;
  canChange: boolean;
  attempt: (work: () => Promise<unknown>) => Promise<void>;
}) {
  const { board } = props;
  const isTeam = board.visibility === "team";
  const toggle = () =>
    props.attempt(() =>
      change("PATCH", `/boards/${board.id}`, { visibility: isTeam ? "private" : "team" }),
    );
  return (
    <Section title="About">
      <dl class="facts">
        <Fact name="where">{board.where && <code>{board.where}</code>}</Fact>
        <Fact name="sort">{board.sort.join(", ")}</Fact>
        <Fact name="limit">{board.limit > 0 && format.count(board.limit)}</Fact>
        <Fact name="template">{board.template && <code>{board.template}</code>}</Fact>
        <Fact name="groups">
          {board.group_by.length > 0 &&
            `${board.group_by.join(", ")} (${board.band}, ${board.show})`}
        </Fact>
        <Fact name="owner">{board.owner}</Fact>
        <Fact name="visible to">
          {isTeam ? "the team" : "its owner"}{" "}
          {props.canChange && (
            <Button kind="bare" onClick={toggle}>
              {isTeam ? "hide from the team" : "show to the team"}
            </Button>
          )}
        </Fact>
        <Fact name="engine">
          {board.on}
          {board.unit && ` · ${board.unit}`}
          {board.engine !== "fast" && ` · ${board.engine}`}
        </Fact>
        <Fact name="memory">{board.memory ? format.bytes(board.memory) : ""}</Fact>
        <Fact name="processors">{board.cpus ? String(board.cpus) : ""}</Fact>
        <Fact name="exit code">{board.exit_code === null ? "" : String(board.exit_code)}</Fact>
        <Fact name="started">{board.started && <Time at={board.started} />}</Fact>
        <Fact name="last viewed">
          <Time at={board.last_request} empty="never" />
        </Fact>
        <Fact name="expires">{isLive(board) && <Time at={board.expires} empty="does not" />}</Fact>
        <Fact name="ends unused">
          {board.idle_timeout ? `after ${format.duration(board.idle_timeout)}` : ""}
        </Fact>
        <Fact name="id">
          <code>{board.id}</code> <Copy text={board.id} label="Copy the id" />
        </Fact>
      </dl>
    </Section>
  );
}

export function Fact(props: { name: string; children: ComponentChildren }) {
  if (!props.children) return null;
  return (
    <div>
      <dt>{props.name}</dt>
      <dd>{props.children}</dd>
    </div>
  );
}

/** Creates, lists and revokes links that show the board without a login. */
function Shares(props: { path: string }) {
  const path = `${props.path}/shares`;
  const shares = useLoaded(path, (signal) => get<{ shares: Share[] }>(path, {}, signal));
  const made = useSignal("");
  const error = useSignal<ApiError | undefined>(undefined);
  const attempt = async (work: () => Promise<void>) => {
    error.value = undefined;
    try {
      await work();
    } catch (thrown) {
      error.value = asError(thrown);
    }
    shares.refresh();
  };
  const good = (shares.data?.shares ?? []).filter(
    (share) => !share.revoked && !(share.expires && Date.parse(share.expires) < Date.now()),
  );
  const share = () =>
    attempt(async () => {
      made.value = (await change<Share>("POST", path, {})).url ?? "";
    });
  return (
    <Section title="Links" actions={<Button onClick={share}>Share</Button>}>
      <ErrorNote error={error.value ?? shares.error} />
      {made.value && (
        <div class="secret" role="status">
          <p>Anyone with this link can see the board. Copy it now: it is not shown again.</p>
          <code>{made.value}</code>
          <Copy text={made.value} label="Copy the link" />
        </div>
      )}
      {good.length === 0 && <p class="soft">No links to this board.</p>}
      <ul class="lines">
        {good.map((one) => (
          <li key={one.id}>
            <span class="grow">
              by {one.made_by}, <Time at={one.created} />
            </span>
            <span class="soft">
              ends <Time at={one.expires} empty="never" />
            </span>
            <Button
              label={`Revoke the link of ${one.created}`}
              onClick={() =>
                attempt(async () => {
                  await change("DELETE", `${path}/${one.id}`);
                  made.value = "";
                })
              }
            >
              Revoke
            </Button>
          </li>
        ))}
      </ul>
    </Section>
  );
}

function History(props: { path: string; version: number; state: string }) {
  const key = `${props.path} ${props.version} ${props.state}`;
  const history = useLoaded(key, (signal) =>
    get<{ events: { state: string; reason: string; at: string }[] }>(
      `${props.path}/history`,
      {},
      signal,
    ),
  );
  const events = [...(history.data?.events ?? [])].reverse();
  return (
    <Section title="History">
      <ErrorNote error={history.error} />
      <ul class="lines">
        {events.map((event) => (
          <li key={`${event.at} ${event.state}`}>
            <StateMark state={event.state} />
            <span class="grow soft" title={event.reason}>
              {event.reason}
            </span>
            <span class="soft">
              <Time at={event.at} />
            </span>
          </li>
        ))}
      </ul>
    </Section>
  );
}
