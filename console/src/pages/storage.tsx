// The roots of the hub: their runs, requests to buckets, and problems.

import { useSignal } from "@preact/signals";
import { type ApiError, change, get, type Root } from "../api";
import { Bar, Button, Copy, Empty, ErrorNote, Time } from "../components/basics";
import { Form, into, TextField } from "../components/form";
import { Panel, Section } from "../components/panel";
import { type Column, filled, Table } from "../components/table";
import { say } from "../components/toast";
import * as format from "../format";
import { useActions, useKeys } from "../keys";
import { asError, useLive, useLoaded } from "../loading";
import { address, place, setQuery } from "../router";
import { isAdmin } from "../session";
import { Fact } from "./board";

/** The requests of a day to the bucket of a root; undefined for a directory. */
export function requestsOf(root: Pick<Root, "requests">): number | undefined {
  if (root.requests.length === 0) return undefined;
  return root.requests.reduce((sum, one) => sum + one.requests, 0);
}

function damageOf(root: Root): string {
  if (root.damaged_files === 0) return "";
  return `${format.bytes(root.damaged_bytes)} in ${format.plural(root.damaged_files, "file")}`;
}

const COLUMNS: readonly Column<Root>[] = [
  { key: "name", title: "root", width: 144, cell: (root) => root.name },
  {
    key: "uri",
    title: "place",
    width: 320,
    cell: (root) => <span title={root.uri}>{root.uri}</span>,
  },
  {
    key: "runs",
    title: "runs",
    width: 80,
    isNumber: true,
    cell: (root) => format.count(root.runs),
  },
  {
    key: "looked",
    title: "last checked",
    width: 104,
    cell: (root) => <Time at={root.looked} empty="not yet" />,
  },
  {
    key: "requests",
    title: "requests/day",
    width: 112,
    isNumber: true,
    hasValue: (root) => requestsOf(root) !== undefined,
    cell: (root) => {
      const requests = requestsOf(root);
      return requests === undefined ? "" : format.count(requests);
    },
  },
  {
    key: "damage",
    title: "damage",
    width: 152,
    hasValue: (root) => damageOf(root) !== "",
    cell: (root) => damageOf(root) && <span class="bad-text">✗ {damageOf(root)}</span>,
  },
  {
    key: "problem",
    title: "problem",
    width: 320,
    grows: true,
    hasValue: (root) => root.problem !== "",
    cell: (root) =>
      root.problem && (
        <span class="bad-text" title={root.problem}>
          ✗ {root.problem}
        </span>
      ),
  },
];

export function Storage() {
  const { query } = place.value;
  const shown = query.get("root") ?? "";
  const adds = query.has("add");
  const roots = useLoaded("", (signal) => get<{ roots: Root[] }>("/roots", {}, signal));
  useLive(["runs", "run"], roots.refresh);
  const rows = roots.data?.roots ?? [];
  const found = rows.find((root) => root.uri === shown);
  const active = rows.findIndex((root) => root.uri === shown);
  const add = () => setQuery({ root: undefined, add: "1" });
  const close = () => setQuery({ root: undefined, add: undefined });
  const move = (step: number) => {
    const next = rows[Math.max(0, Math.min(rows.length - 1, active + step))];
    if (next) setQuery({ root: next.uri, add: undefined }, true);
  };
  useKeys("Storage", [
    { key: "j", label: "Next root", run: () => move(1) },
    { key: "k", label: "Previous root", run: () => move(-1) },
  ]);
  useActions("Storage", isAdmin() ? [{ label: "Add a root", run: add }] : []);
  return (
    <div class="page">
      <Bar>
        <h1>Storage</h1>
        <span class="soft">{roots.data && format.plural(rows.length, "root")}</span>
        {isAdmin() && (
          <div class="end">
            <Button kind="primary" onClick={add}>
              Add root
            </Button>
          </div>
        )}
      </Bar>
      <ErrorNote error={roots.error} onRetry={roots.refresh} />
      <div class="split">
        <div class="main">
          {roots.data && rows.length === 0 ? (
            <Empty title="This hub has no roots" code="aboard serve --root /data/runs">
              <p>
                A root is a directory or a bucket with runs below it.
                {isAdmin() ? " Add one, or start the hub with one:" : " Start the hub with one:"}
              </p>
            </Empty>
          ) : (
            <Table
              label="Roots"
              columns={filled(COLUMNS, rows)}
              count={rows.length}
              at={(index) => rows[index]}
              keyOf={(root) => root.uri}
              active={active}
              onActive={(index) => setQuery({ root: rows[index]?.uri, add: undefined })}
            />
          )}
        </div>
        {adds && <AddRoot onClose={close} onAdded={roots.refresh} />}
        {found && !adds && <RootPanel root={found} onClose={close} />}
      </div>
    </div>
  );
}

function RootPanel(props: { root: Root; onClose: () => void }) {
  const { root } = props;
  const doctor = `aboard doctor ${root.uri}`;
  const isFine = root.problems.length === 0 && root.damaged_files === 0;
  return (
    <Panel title={`Root ${root.name}`} heading={root.name} onClose={props.onClose}>
      <dl class="facts">
        <Fact name="place">
          {root.uri} <Copy text={root.uri} label="Copy the URI" />
        </Fact>
        <Fact name="runs">
          <a href={address("/runs", { where: `root == ${JSON.stringify(root.uri)}` })}>
            {format.plural(root.runs, "run")}
          </a>
        </Fact>
        <Fact name="last checked">
          <Time at={root.looked} empty="not yet" />
        </Fact>
        <Fact name="damage">{damageOf(root) || "none found"}</Fact>
      </dl>
      {root.problems.length > 0 && (
        <Section title="What to do">
          {root.problems.map((problem) => (
            <div class="note bad" key={`${problem.where} ${problem.what}`}>
              <p>
                <span aria-hidden="true">✗</span> {problem.what}
              </p>
              <p class="soft">{problem.where}</p>
              {problem.advice && <p>{problem.advice}</p>}
            </div>
          ))}
        </Section>
      )}
      {!isFine && (
        <Section title="Examine">
          <div class="code">
            <pre>{doctor}</pre>
            <Copy text={doctor} label="Copy the command" />
          </div>
        </Section>
      )}
      {root.requests.length > 0 && (
        <Section title="Requests within a day">
          <dl class="facts">
            {root.requests.map((one) => (
              <Fact key={one.kind} name={one.kind}>
                {format.count(one.requests)}, {format.bytes(one.bytes)}
              </Fact>
            ))}
          </dl>
        </Section>
      )}
    </Panel>
  );
}

function AddRoot(props: { onClose: () => void; onAdded: () => void }) {
  const uri = useSignal("");
  const error = useSignal<ApiError | undefined>(undefined);
  const isBusy = useSignal(false);
  const add = async () => {
    isBusy.value = true;
    error.value = undefined;
    try {
      const root = await change<Root>("POST", "/roots", { uri: uri.value.trim() });
      say(`Added ${root.name}: ${format.plural(root.runs, "run")} so far.`);
      props.onAdded();
      setQuery({ add: undefined, root: root.uri });
    } catch (thrown) {
      error.value = asError(thrown);
    } finally {
      isBusy.value = false;
    }
  };
  return (
    <Panel title="Add a root" onClose={props.onClose}>
      <Form
        label="Add a root"
        submit="Add"
        isBusy={isBusy.value}
        disabled={!uri.value.trim()}
        onSubmit={add}
      >
        <TextField
          label="place"
          isCode
          value={uri.value}
          onChange={into(uri)}
          placeholder="/data/runs or s3://bucket/runs"
          hint="A directory that the hub can read, or a bucket with its credentials in the hub's environment. A team's hub forgets it when it restarts: add it to aboard.toml too."
        />
        <ErrorNote error={error.value} />
      </Form>
    </Panel>
  );
}
