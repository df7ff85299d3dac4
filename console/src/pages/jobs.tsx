// The jobs below the hub's roots, newest first, and a tab for the engines.

import { type Engine, get, type Job } from "../api";
import { Bar, Empty, ErrorNote, StateCount, StateMark, Time } from "../components/basics";
import { type Column, Table } from "../components/table";
import * as format from "../format";
import { useActions, useKeys } from "../keys";
import { useLive, useLoaded } from "../loading";
import { address, place, setQuery } from "../router";
import { isMember, me } from "../session";
import { EngineList } from "./engines";
import { JobPanel } from "./job";

const MOST_JOBS = 1000;

/** How many members are in each state: "3 running, 1 failed". */
export function membersOf(job: Pick<Job, "states">): string {
  return Object.entries(job.states)
    .map(([state, count]) => `${format.count(count)} ${state}`)
    .join(", ");
}

const COLUMNS: readonly Column<Job>[] = [
  {
    key: "id",
    title: "job",
    width: 176,
    cell: (job) => <span title={job.command.join(" ")}>{job.id}</span>,
  },
  {
    key: "state",
    title: "state",
    width: 104,
    cell: (job) => <StateMark state={job.state} title={job.reason} />,
  },
  {
    key: "experiment",
    title: "experiment",
    width: 128,
    cell: (job) => (
      <a href={address("/runs", { where: `experiment == ${JSON.stringify(job.experiment)}` })}>
        {job.experiment}
      </a>
    ),
  },
  {
    key: "members",
    title: "members",
    width: 80,
    isNumber: true,
    cell: (job) => format.count(job.count),
  },
  {
    key: "states",
    title: "members by state",
    width: 168,
    cell: (job) => (
      <span class="counts" title={membersOf(job)}>
        {Object.entries(job.states).map(([state, count]) => (
          <StateCount key={state} state={state} count={count} />
        ))}
      </span>
    ),
  },
  { key: "on", title: "engine", width: 104, cell: (job) => job.on },
  { key: "user", title: "user", width: 96, cell: (job) => job.user },
  { key: "created", title: "created", width: 104, cell: (job) => <Time at={job.created} /> },
  {
    key: "command",
    title: "command",
    width: 240,
    grows: true,
    cell: (job) => <code title={job.command.join(" ")}>{job.command.join(" ")}</code>,
  },
];

export function Jobs() {
  const { query } = place.value;
  const tab = query.get("tab") === "engines" && isMember() ? "engines" : "jobs";
  const jobs = useLoaded("", (signal) =>
    get<{ jobs: Job[] }>("/jobs", { limit: MOST_JOBS }, signal),
  );
  useLive(["job", "jobs"], jobs.refresh);
  // Viewers may not list engines, so wait until the role is known.
  const listsEngines = tab === "engines" && me.value !== undefined;
  const engines = useLoaded(String(listsEngines), async (signal) =>
    listsEngines ? get<{ engines: Engine[] }>("/engines", {}, signal) : undefined,
  );
  const rows = jobs.data?.jobs ?? [];
  const shown = query.get("job") ?? "";
  const root = query.get("root") ?? undefined;
  const active = rows.findIndex((job) => job.id === shown && (!root || job.root === root));
  const show = (job: Job | undefined, replace = false) =>
    setQuery({ job: job?.id, root: job?.root, member: undefined, state: undefined }, replace);
  const move = (step: number) => {
    const next = rows[Math.max(0, Math.min(rows.length - 1, active + step))];
    if (next) show(next, true);
  };
  useKeys("Jobs", [
    { key: "j", label: "Next job", run: () => move(1) },
    { key: "k", label: "Previous job", run: () => move(-1) },
  ]);
  useActions(
    "Jobs",
    isMember()
      ? [
          {
            label: "Engines",
            hint: "page",
            run: () => setQuery({ tab: "engines", job: undefined }),
          },
        ]
      : [],
  );
  return (
    <div class="page">
      <Bar>
        <h1>{tab === "jobs" ? "Jobs" : "Engines"}</h1>
        <span class="soft">
          {tab === "jobs"
            ? jobs.data && format.plural(rows.length, "job")
            : engines.data && format.plural(engines.data.engines.length, "engine")}
        </span>
        {isMember() && (
          <nav class="tabs end" aria-label="Jobs or engines">
            <a href={address("/jobs")} aria-current={tab === "jobs" ? "true" : undefined}>
              Jobs
            </a>
            <a
              href={address("/jobs", { tab: "engines" })}
              aria-current={tab === "engines" ? "true" : undefined}
            >
              Engines
            </a>
          </nav>
        )}
      </Bar>
      {tab === "engines" ? (
        <EngineList engines={engines} />
      ) : (
        <>
          <ErrorNote error={jobs.error} onRetry={jobs.refresh} />
          <div class="split">
            <div class="main">
              {jobs.data && rows.length === 0 ? (
                <Empty
                  title="No jobs yet"
                  code="aboard submit --sweep lr=0.1,0.01 -- python train.py --lr {lr}"
                >
                  <p>
                    A job runs a command once for every combination of its hyperparameters. Submit
                    one:
                  </p>
                </Empty>
              ) : (
                <Table
                  label="Jobs"
                  columns={COLUMNS}
                  count={rows.length}
                  at={(index) => rows[index]}
                  keyOf={(job) => `${job.root} ${job.id}`}
                  active={active}
                  onActive={(index) => show(rows[index])}
                />
              )}
            </div>
            {shown && (
              <JobPanel
                key={`${root} ${shown}`}
                id={shown}
                root={root}
                onClose={() => show(undefined)}
                onChange={jobs.refresh}
              />
            )}
          </div>
        </>
      )}
    </div>
  );
}
