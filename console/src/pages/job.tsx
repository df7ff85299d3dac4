// The panel of one job: its members, their logs, and actions.

import { useSignal } from "@preact/signals";
import { type ApiError, change, get, type Job, type Member } from "../api";
import { Button, Command, ErrorNote, StateMark, Time } from "../components/basics";
import { Confirm } from "../components/confirm";
import { Log } from "../components/log";
import { Panel, Section } from "../components/panel";
import { type Column, Table } from "../components/table";
import * as format from "../format";
import { asError, useLive, useLoaded, usePaged } from "../loading";
import { address, place, setQuery } from "../router";
import { isAdmin } from "../session";
import { Fact } from "./board";

const RETRIED = ["failed", "killed", "lost"] as const;

/** How many members a retry submits again. */
export function retriable(job: Pick<Job, "states">): number {
  return RETRIED.reduce((sum, state) => sum + (job.states[state] ?? 0), 0);
}

/** How many members have not ended. */
export function unfinished(job: Pick<Job, "states">): number {
  return (job.states.running ?? 0) + (job.states.pending ?? 0) + (job.states.unknown ?? 0);
}

export function JobPanel(props: {
  id: string;
  root: string | undefined;
  onClose: () => void;
  onChange: () => void;
}) {
  const path = `/jobs/${encodeURIComponent(props.id)}`;
  const { root } = props;
  const job = useLoaded(path, (signal) => get<Job>(path, { root }, signal));
  useLive(["job", "jobs"], job.refresh, (event) => event.kind !== "job" || event.id === props.id);
  const error = useSignal<ApiError | undefined>(undefined);
  const asks = useSignal<"" | "stop" | "delete">("");
  const found = job.data;
  const ask = (what: "" | "stop" | "delete") => {
    asks.value = what;
  };
  if (!found) {
    return (
      <Panel title="Job" onClose={props.onClose}>
        <ErrorNote error={job.error} onRetry={job.refresh} />
      </Panel>
    );
  }
  const again = retriable(found);
  const left = unfinished(found);
  const retry = async () => {
    error.value = undefined;
    try {
      await change("POST", `${path}/retry`, {}, { query: { root } });
    } catch (thrown) {
      error.value = asError(thrown);
    }
    job.refresh();
    props.onChange();
  };
  return (
    <Panel
      title={`Job ${found.id}`}
      heading={
        <>
          {found.id} <StateMark state={found.state} title={found.reason} />
        </>
      }
      onClose={props.onClose}
    >
      <ErrorNote error={error.value ?? job.error} />
      {found.reason && (
        <p class={`note ${found.state === "failed" ? "bad" : ""}`}>{found.reason}</p>
      )}
      <div class="actions">
        <a class="button" href={address("/runs", { where: `job == ${JSON.stringify(found.id)}` })}>
          Runs
        </a>
        <a class="button" href={address("/boards", { new: "1", selector: [found.selector] })}>
          Board…
        </a>
        {isAdmin() && left > 0 && <Button onClick={() => ask("stop")}>Stop…</Button>}
        {isAdmin() && again > 0 && (
          <Button onClick={retry}>Retry {format.plural(again, "member")}</Button>
        )}
        {isAdmin() && left === 0 && (
          <Button kind="danger" onClick={() => ask("delete")}>
            Delete…
          </Button>
        )}
      </div>
      <Section title="About">
        <dl class="facts">
          <Fact name="experiment">{found.experiment}</Fact>
          <Fact name="engine">{found.on}</Fact>
          <Fact name="user">{found.user}</Fact>
          <Fact name="host">{found.host}</Fact>
          <Fact name="created">
            <Time at={found.created} />
          </Fact>
          <Fact name="attempts">{format.count(found.attempts)}</Fact>
          <Fact name="exit code">{found.exit_code === null ? "" : String(found.exit_code)}</Fact>
          <Fact name="below">{found.root}</Fact>
        </dl>
        <Command words={found.command} />
      </Section>
      <Members job={found} path={path} root={root} />
      {asks.value === "stop" && (
        <Confirm
          title={`Stop ${found.id}?`}
          action="Stop"
          run={async () => {
            await change("POST", `${path}/stop`, {}, { query: { root } });
            job.refresh();
            props.onChange();
          }}
          onClose={() => ask("")}
        >
          <p>
            {format.plural(left, "member")} that run or wait will be stopped. Logged data is kept,
            and Retry submits them again.
          </p>
        </Confirm>
      )}
      {asks.value === "delete" && (
        <Confirm
          title={`Delete ${found.id}?`}
          action="Delete"
          run={async () => {
            const force = found.state === "unknown";
            await change("DELETE", path, undefined, { query: { root, force } });
            props.onChange();
            props.onClose();
          }}
          onClose={() => ask("")}
        >
          <p>
            This deletes the record of the job with its command and members, so it can no longer be
            retried. Its {format.plural(found.count, "run")} are kept.
          </p>
        </Confirm>
      )}
    </Panel>
  );
}

const COLUMNS: readonly Column<Member>[] = [
  { key: "number", title: "#", width: 56, isNumber: true, cell: (member) => member.number },
  {
    key: "state",
    title: "state",
    width: 112,
    cell: (member) => (
      <StateMark
        state={member.state}
        detail={member.exit_code ? String(member.exit_code) : ""}
        title={member.reason}
      />
    ),
  },
  {
    key: "hparams",
    title: "hyperparameters",
    width: 200,
    grows: true,
    cell: (member) => <span title={hparamsOf(member)}>{hparamsOf(member)}</span>,
  },
];

export function hparamsOf(member: Pick<Member, "hparams">): string {
  return Object.entries(member.hparams)
    .map(([name, value]) => `${name}=${format.text(value)}`)
    .join(" ");
}

function Members(props: { job: Job; path: string; root: string | undefined }) {
  const { job, path, root } = props;
  const { query } = place.value;
  const state = query.get("state") ?? "";
  const chosen = Number(query.get("member") ?? (job.count === 1 ? 1 : 0));
  const states = Object.entries(job.states);
  const total = state ? (job.states[state as keyof typeof job.states] ?? 0) : job.count;
  const key = `${path} ${root} ${state} ${JSON.stringify(job.states)}`;
  const paged = usePaged<Member>(key, async (start, limit, signal) => {
    const pageQuery = { root, state, limit, cursor: start };
    const { members } = await get<{ members: Member[] }>(`${path}/members`, pageQuery, signal);
    return { rows: members, total };
  });
  let active = -1;
  for (let index = 0; index < paged.total; index += 1) {
    if (paged.at(index)?.number === chosen) active = index;
  }
  return (
    <>
      <Section
        title="Members"
        actions={
          states.length > 1 && (
            <select
              aria-label="State of members"
              value={state}
              onChange={(event) =>
                setQuery({ state: event.currentTarget.value, member: undefined })
              }
            >
              <option value="">all {format.count(job.count)}</option>
              {states.map(([name, count]) => (
                <option key={name} value={name} selected={name === state}>
                  {name} {format.count(count)}
                </option>
              ))}
            </select>
          )
        }
      >
        <ErrorNote error={paged.error} onRetry={paged.refresh} />
        <div class="members">
          <Table
            label="Members of the job"
            columns={COLUMNS}
            count={paged.total}
            at={paged.at}
            keyOf={(member) => String(member.number)}
            onShow={paged.show}
            active={active}
            onActive={(index) => setQuery({ member: paged.at(index)?.number })}
          />
        </div>
      </Section>
      {chosen > 0 ? (
        <Section title={`Log of member ${chosen}`}>
          <Log
            key={chosen}
            path={`${path}/logs`}
            query={{ root, member: chosen }}
            label={`Output of member ${chosen}`}
          />
        </Section>
      ) : (
        <p class="soft">Select a member to read its log.</p>
      )}
    </>
  );
}
