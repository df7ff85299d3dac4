// The table of all runs, of any length; the URL has its filter, order and groups.

import { type Signal, useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import type { Query } from "../address";
import {
  type Facet,
  get,
  type Logged,
  type Run,
  type RunGroup,
  type RunList,
  type Value,
} from "../api";
import {
  Bar,
  Button,
  Code,
  Empty,
  ErrorNote,
  RootName,
  StateMark,
  Time,
  ValueText,
} from "../components/basics";
import { ColumnsDialog, GroupDialog } from "../components/columns";
import { ExportDialog } from "../components/export";
import { Facets } from "../components/facets";
import { type FieldCount, FilterBox, fieldsOf } from "../components/filter";
import {
  BoardDialog,
  DeleteDialog,
  labelOf,
  NoteDialog,
  openBoard,
  TagDialog,
} from "../components/selection";
import { Sparkline, useSparklines } from "../components/sparkline";
import { type Column, Table } from "../components/table";
import { attempt, say } from "../components/toast";
import { ViewsMenu } from "../components/views";
import { follow } from "../events";
import * as format from "../format";
import { useActions, useKeys } from "../keys";
import { type Paged, useEvents, useLive, useLoaded, usePaged } from "../loading";
import { conjunction, type Filter, literal, RUN_FIELDS, readField } from "../question";
import { hasSeveralRoots } from "../roots";
import { address, go, place, setQuery } from "../router";
import { isMember } from "../session";
import {
  type ColumnSpec,
  columnKey,
  DEFAULT_SORT,
  defaultColumns,
  defaultFacets,
  fieldValue,
  isExtra,
  isTime,
  moved,
  type Row,
  readView,
  sortedBy,
  titleOf,
  type View,
  writeColumn,
} from "../view";
import "./runs.css";

const FIRST_RUN = `import aboard

with aboard.init("spirals", hparams={"lr": 0.1}) as run:
    run.log_metrics({"loss": 0.5}, step=1)`;
const FIRST_BOARD = "aboard start spirals";
const MOST_SELECTED = 1000; // with one click
const MOST_IN_ADDRESS = 50; // selected runs in a URL
const MOST_FOLLOWED = 50;
const MOST_SAMPLED = 20; // runs whose tags determine the default columns
const FRESH_MILLISECONDS = 1600; // how long a changed value is marked
const AGAIN_MILLISECONDS = 1000;
const READING_MILLISECONDS = 1500; // between requests while the hub reads metrics
const FOLLOW_MILLISECONDS = 800;
const WIDTHS: Record<string, number> = {
  experiment: 160,
  name: 160,
  root: 128,
  state: 104,
  host: 88,
  uri: 320,
  tags: 160,
  reason: 200,
  git_commit: 104,
};

type Asking = "board" | "tag" | "note" | "delete" | "export" | "columns" | "group" | undefined;

/** The defaults for the runs of a filter: decided when the first runs are loaded, then kept. */
interface Suited {
  key: string;
  selectors: string;
  columns: readonly ColumnSpec[];
  facets: readonly string[];
}

interface Status {
  total: number;
  unread: number;
}

interface TableParts {
  view: View;
  columns: readonly ColumnSpec[];
  setColumns: (columns: readonly ColumnSpec[] | undefined, replace?: boolean) => void;
  asking: Signal<Asking>;
  status: Signal<Status | undefined>;
}

const isPhone = () => window.matchMedia("(max-width: 720px)").matches;
const ROOT: ColumnSpec = { field: "root", isCurve: false, width: undefined };
/** Runs of several roots may have the same names, so the root is the second column. */
const plusRoot = <T,>(list: readonly T[], root: T): readonly T[] =>
  hasSeveralRoots() ? [...list.slice(0, 1), root, ...list.slice(1)] : list;
const filterOf = ({ selectors, where }: View): Filter => ({ selectors, where });
const isNarrow = ({ selectors, where }: Filter) => where !== "" || selectors.length > 0;
const narrow = ({ selectors, where }: Filter) =>
  setQuery({ selector: selectors, where, selected: [] });

export function Runs() {
  const { query } = place.value;
  const view = readView(query);
  const filter = filterOf(view);
  const isGrouped = view.groupBy.length > 0;
  const asking = useSignal<Asking>(undefined);
  const status = useSignal<Status | undefined>(undefined);
  const suited = useSignal<Suited>({
    key: "",
    selectors: "",
    columns: defaultColumns([]),
    facets: ["state"],
  });
  const box = useRef<HTMLInputElement>(null);
  const whole = useLoaded("", (signal) => get<RunList>("/runs", { count: true }, signal));
  // The available fields are loaded after the rows, because they take the hub longer.
  const isThere = status.value !== undefined;
  const names = useLoaded(String(isThere), async (signal) => {
    if (!isThere) return undefined;
    return get<{ fields: FieldCount[] }>("/runs/fields", {}, signal);
  });
  const experiments = useLoaded(String(isThere), async (signal) => {
    if (!isThere) return undefined;
    return get<Facet>("/runs/facets", { field: "experiment", limit: 100 }, signal);
  });
  useLive(
    ["run", "runs"],
    () => {
      whole.refresh();
      names.refresh();
      experiments.refresh();
    },
    (event) => event.kind !== "run" || event.change !== "changed",
  );
  const fields = names.data?.fields ?? [];
  const columns = view.columns ?? plusRoot(suited.value.columns, ROOT);
  const facets = view.facets ?? plusRoot(suited.value.facets, "root");
  const setColumns = (next: readonly ColumnSpec[] | undefined, replace = false) =>
    setQuery({ column: next?.map(writeColumn) ?? [] }, replace);
  const groupable = [
    ...RUN_FIELDS.filter((field) => !isTime(field) && !["run", "uri", "tags"].includes(field)),
    ...fieldsOf(fields)
      .map((one) => one.field)
      .filter((field) => !field.startsWith("metrics")),
  ];
  const ask = (what: Asking) => () => {
    asking.value = what;
  };

  // On a phone the facets are hidden by default.
  const mode = query.get("facets");
  const hasFacets = whole.data?.total !== 0 && (isPhone() ? mode === "on" : mode !== "off");
  const switchFacets = () =>
    setQuery({
      facets: hasFacets ? (isPhone() ? undefined : "off") : isPhone() ? "on" : undefined,
    });
  useKeys("Filter and view", [
    { key: "/", label: "Filter", run: () => box.current?.focus() },
    { key: "f", label: "Show or hide the facets", run: switchFacets },
    { key: "o", label: "Choose the columns", run: ask("columns") },
    { key: "g", label: "Group the runs", run: ask("group") },
  ]);
  const only = (where: string) => () => narrow({ selectors: [], where });
  useActions("Runs", [
    { label: "Failed runs", run: only('state == "failed"') },
    { label: "Running now", run: only('state == "running"') },
    ...(isNarrow(filter) ? [{ label: "Clear the filter", run: only("") }] : []),
    { label: "Choose columns", hint: "o", run: ask("columns") },
    { label: "Group runs", hint: "g", run: ask("group") },
    { label: "Export the table as CSV", run: ask("export") },
  ]);
  const parts = { view, columns, setColumns, asking, status };
  return (
    <div class="page runs">
      <h1 class="unseen">Runs</h1>
      <Bar>
        <Button
          kind="bare"
          onClick={switchFacets}
          label={hasFacets ? "Hide the facets" : "Show the facets"}
          title="Facets (f)"
        >
          ☰
        </Button>
        <FilterBox
          filter={filter}
          fields={fields}
          experiments={(experiments.data?.values ?? []).map((one) => String(one.value))}
          input={box}
          onFilter={narrow}
        />
        <span class="soft" role="status">
          {status.value && counted(status.value, isGrouped, filter, whole.data?.total)}
        </span>
        <Button kind="bare" onClick={ask("columns")} title="Choose the columns (o)">
          Columns
        </Button>
        <Button kind="bare" onClick={ask("group")} title="Group the runs (g)">
          {isGrouped ? `By ${view.groupBy.map(titleOf).join(", ")}` : "Group"}
        </Button>
        <ViewsMenu />
      </Bar>
      <div class="split">
        {hasFacets && (
          <Facets
            fields={facets}
            filter={filter}
            all={["experiment", ...groupable]}
            onFilter={(where) => narrow({ ...filter, where })}
            onFields={(next) => setQuery({ facet: next.length > 0 ? next : ["none"] })}
          />
        )}
        <div class="main">
          {isGrouped ? <Groups {...parts} suited={suited} /> : <Rows {...parts} suited={suited} />}
        </div>
      </div>
      {asking.value === "columns" && (
        <ColumnsDialog
          columns={columns}
          fields={fields}
          onChange={setColumns}
          onClose={ask(undefined)}
        />
      )}
      {asking.value === "group" && (
        <GroupDialog
          groupBy={view.groupBy}
          fields={groupable}
          onChange={(next) => setQuery({ group_by: next, selected: [] })}
          onClose={ask(undefined)}
        />
      )}
    </div>
  );
}

function counted(status: Status, isGrouped: boolean, filter: Filter, whole: number | undefined) {
  const { total, unread } = status;
  const some =
    isGrouped || !isNarrow(filter) || whole === undefined
      ? format.plural(total, isGrouped ? "group" : "run")
      : `${format.count(total)} of ${format.plural(whole, "run")}`;
  return unread > 0 ? `${some} · reading ${format.count(unread)}` : some;
}

function useStatus(
  status: Signal<Status | undefined>,
  paged: Pick<Paged<unknown>, "total" | "isLoading">,
  unread: number,
): void {
  const { total, isLoading } = paged;
  useEffect(() => {
    if (!isLoading) status.value = { total, unread };
  }, [total, unread, isLoading]);
}

/** Decide the defaults for the runs of a filter when some of them are loaded. */
function useSuited(suited: Signal<Suited>, filter: Filter, runs: readonly Run[]): void {
  const key = JSON.stringify(filter);
  useEffect(() => {
    const before = suited.peek();
    if (runs.length === 0 || before.key === key) return;
    // A condition does not change the facets, because the next click may add another value.
    const selectors = JSON.stringify(filter.selectors);
    const stay = before.selectors === selectors && before.facets.length > 1;
    const facets = stay ? before.facets : defaultFacets(runs);
    suited.value = { key, selectors, columns: defaultColumns(runs), facets };
  });
  // Records get metrics after a while, plain log directories never: load what the first runs logged.
  const isBare =
    runs.length > 0 &&
    suited.value.key === key &&
    !suited.value.columns.some((one) => one.field.startsWith("metrics"));
  const logged = useLoaded(isBare ? key : "", async (signal) => {
    if (!isBare) return undefined;
    const selector = runs.slice(0, MOST_SAMPLED).map((run) => `id:${run.id}`);
    return get<{ metrics: Logged[] }>("/runs/metrics", { selector }, signal);
  });
  useLive(["run", "runs"], () => isBare && logged.refresh());
  useEffect(() => {
    const names = logged.data?.metrics.filter((one) => one.scalar).map((one) => one.name) ?? [];
    if (!isBare || names.length === 0) return;
    suited.value = { ...suited.peek(), columns: defaultColumns(runs, names) };
  }, [logged.data]);
}

/** The longest fraction of each column so far, so that decimal points stay aligned. */
function useFractions(key: string): (field: string, text: string) => string {
  const kept = useRef({ key, longest: new Map<string, number>() });
  if (kept.current.key !== key) kept.current = { key, longest: new Map() };
  const { longest } = kept.current;
  return (field, text) => {
    const most = Math.max(longest.get(field) ?? 0, format.longestFraction([text]));
    longest.set(field, most);
    return format.aligned(text, most);
  };
}

function Rows(props: TableParts & { suited: Signal<Suited> }) {
  const { view, columns, setColumns, asking, suited } = props;
  const filter = filterOf(view);
  const sort = view.sort.length > 0 ? view.sort : [DEFAULT_SORT];
  const extras = [...new Set(columns.map((one) => one.field).filter(isExtra))];
  const listQuery = { selector: filter.selectors, where: filter.where, sort };
  const unread = useSignal(0);
  const listKey = JSON.stringify([listQuery, extras]);
  const paged = usePaged<Row>(listKey, async (start, limit, signal) => {
    const page = { ...listQuery, limit, cursor: start };
    const [answer, more] = await Promise.all([
      get<RunList>("/runs", page, signal),
      extras.length > 0
        ? get<Extra>("/runs", { ...page, columns: ["uri", ...extras].join(",") }, signal)
        : undefined,
    ]);
    unread.value = Math.max(answer.unread, more?.unread ?? 0);
    const known = new Map(more?.runs.map((one) => [one.uri, one]));
    const rows = answer.runs.map((run) => ({ ...run, more: known.get(run.uri) ?? {} }));
    return { rows, total: answer.total };
  });
  useStatus(props.status, paged, unread.value);
  useEffect(() => {
    if (unread.value === 0) return;
    const timer = setTimeout(paged.refresh, READING_MILLISECONDS);
    return () => clearTimeout(timer);
  }, [unread.value, paged.isLoading]);

  useSuited(suited, filter, paged.isLoading ? [] : loadedRows(paged, 0, 199));

  const shown = useSignal<[number, number]>([0, 0]);
  const inSight = loadedRows(paged, shown.value[0], shown.value[1]);
  const curves = columns.filter((one) => one.isCurve).map((one) => tagOf(one.field));
  useSparklines(inSight, curves);
  useFollowed(curves.length > 0 ? inSight : []);

  const active = useSignal(0);
  const anchor = useRef(0);
  const selection = useSelection(paged, listKey);
  const area = useRef<HTMLDivElement>(null);
  const isBusy = () =>
    selection.size > 0 ||
    (area.current?.matches(":hover") ?? false) ||
    (area.current?.querySelector(".table")?.scrollTop ?? 0) > 0;
  const live = useLiveRows(paged, listQuery, columns, isBusy);

  const move = (step: number, extends_: boolean) => {
    const next = Math.max(0, Math.min(paged.total - 1, active.value + step));
    if (extends_) selection.range(anchor.current, next);
    else anchor.current = next;
    active.value = next;
  };
  const open = (run: Run | undefined) => run && go(`/runs/${encodeURIComponent(run.id)}`);
  const toggle = (index: number) => {
    anchor.current = index;
    selection.toggle(paged.at(index));
  };
  /** Act on the selected runs, or on the row with the keyboard cursor. */
  const target = async (): Promise<Run[]> => {
    if (selection.size > 0) return selection.runs();
    const run = paged.at(active.value);
    return run ? [run] : [];
  };
  const targets = useSignal<readonly Run[]>([]);
  const ask = (what: Asking) => () =>
    attempt(async () => {
      targets.value = await target();
      if (targets.value.length > 0 || what === "export") asking.value = what;
    });
  const board = () =>
    attempt(async () => {
      const runs = await target();
      if (runs.length === 0) return;
      say(`Starting a board of ${format.plural(runs.length, "run")}…`);
      await openBoard(runs);
    });
  const compare = () => {
    const run = paged.at(active.value);
    const ids = selection.size > 0 ? selection.ids : run ? [run.id] : [];
    if (ids.length > 0) go("/compare", { run: ids });
  };
  const close = () => {
    asking.value = undefined;
  };
  const changes = isMember();
  useKeys("Runs", [
    { key: "j", label: "Next run; ⇧ selects", run: (event) => move(1, event.shiftKey) },
    { key: "k", label: "Previous run; ⇧ selects", run: (event) => move(-1, event.shiftKey) },
    { key: "ArrowDown", label: "Next run", run: (event) => move(1, event.shiftKey) },
    { key: "ArrowUp", label: "Previous run", run: (event) => move(-1, event.shiftKey) },
    { key: "x", label: "Select", run: () => toggle(active.value) },
    { key: "Enter", label: "Open the run", run: () => open(paged.at(active.value)) },
    ...(changes ? [{ key: "b", label: "Open a board", run: board }] : []),
    { key: "c", label: "Compare", run: compare },
    ...(changes ? [{ key: "t", label: "Tag", run: ask("tag") }] : []),
    { key: "Escape", label: "Clear the selection", run: selection.clear },
  ]);
  useActions("Selection", [
    { label: "Compare runs", hint: "c", run: compare },
    ...(changes
      ? [
          { label: "Open a board of runs", hint: "b", run: board },
          { label: "Open a board with a name template", run: ask("board") },
          { label: "Tag runs", hint: "t", run: ask("tag") },
          { label: "Write a note", run: ask("note") },
          { label: "Delete runs", run: ask("delete") },
        ]
      : []),
  ]);

  const align = useFractions(listKey);
  const isEmpty = paged.total === 0 && !paged.isLoading && !paged.error;
  const cells = columns.map((spec) => runColumn(spec, firstValue(inSight, spec.field), align));
  const all: Column<Row>[] = [
    {
      key: "select",
      title: (
        <input
          type="checkbox"
          aria-label="Select all runs"
          checked={selection.size > 0 && selection.size >= Math.min(paged.total, MOST_SELECTED)}
          onChange={() => attempt(() => selection.all(listQuery, paged.total))}
        />
      ),
      width: 40,
      isFixed: true,
      cell: (run, index) => (
        <input
          type="checkbox"
          aria-label={`Select ${labelOf(run)}`}
          checked={selection.has(run)}
          onClick={(event) => {
            event.stopPropagation();
            active.value = index;
            if (event.shiftKey) selection.range(anchor.current, index);
            else toggle(index);
          }}
        />
      ),
    },
    ...cells,
  ];
  const fieldsShown = columns.filter((one) => !one.isCurve).map((one) => one.field);
  const dialog = { runs: targets.value, onClose: close };
  return (
    <>
      <ErrorNote error={paged.error} onRetry={paged.refresh} />
      {isEmpty && !isNarrow(filter) && <FirstRun />}
      {isEmpty && isNarrow(filter) && (
        <Empty title="No run matches the filter">
          <p>
            Change it with <kbd>/</kbd>, or{" "}
            <Button onClick={() => narrow({ selectors: [], where: "" })}>clear it</Button>
          </p>
        </Empty>
      )}
      {!isEmpty && (
        <div class="area" ref={area}>
          {live.news && (
            <button type="button" class="pill" onClick={live.show}>
              {live.news}
            </button>
          )}
          <Table
            label="Runs"
            columns={all}
            count={paged.total}
            at={paged.at}
            keyOf={(run) => run.id}
            onShow={(first, last) => {
              shown.value = [first, last];
              paged.show(first, last);
            }}
            sort={sort}
            onSort={(_, field, adds) => setQuery({ sort: sortedBy(sort, field, adds) })}
            active={active.value}
            onActive={(index, event) => {
              if (event.shiftKey) selection.range(anchor.current, index);
              else anchor.current = index;
              active.value = index;
            }}
            onOpen={open}
            isSelected={selection.has}
            onResize={(key, width) =>
              setColumns(
                columns.map((one) => (columnKey(one) === key ? { ...one, width } : one)),
                true,
              )
            }
            onMove={(key, to) => {
              const at = (one: string) => columns.findIndex((spec) => columnKey(spec) === one);
              if (at(key) >= 0 && at(to) >= 0) setColumns(moved(columns, at(key), at(to)));
            }}
            freshOf={live.freshOf}
          />
        </div>
      )}
      {selection.size > 0 && (
        <section class="tray" aria-label="Selected runs">
          <strong>{`${format.count(selection.size)} selected`}</strong>
          {changes && (
            <>
              <Button kind="primary" onClick={board} title="Open a board (b)">
                Open board
              </Button>
              <Button onClick={ask("board")} title="A board with a name template">
                Board…
              </Button>
            </>
          )}
          <Button onClick={compare} title="Compare (c)">
            Compare
          </Button>
          {changes && (
            <>
              <Button onClick={ask("tag")} title="Tag (t)">
                Tag
              </Button>
              <Button onClick={ask("note")}>Note</Button>
            </>
          )}
          <Button onClick={ask("export")}>Export</Button>
          {changes && (
            <Button kind="danger" onClick={ask("delete")}>
              Delete…
            </Button>
          )}
          <Button kind="bare" onClick={selection.clear} title="Clear the selection">
            Esc
          </Button>
        </section>
      )}
      {asking.value === "board" && <BoardDialog {...dialog} />}
      {asking.value === "tag" && <TagDialog {...dialog} onChanged={live.show} />}
      {asking.value === "note" && <NoteDialog {...dialog} onChanged={live.show} />}
      {asking.value === "export" && (
        <ExportDialog
          fields={fieldsShown}
          filter={filter}
          sort={sort}
          runs={selection.size > 0 ? targets.value : undefined}
          onClose={close}
        />
      )}
      {asking.value === "delete" && (
        <DeleteDialog
          {...dialog}
          onDeleted={(ids) => {
            selection.remove(ids);
            live.show();
          }}
        />
      )}
    </>
  );
}

function FirstRun() {
  return (
    <Empty title="No runs yet">
      <p>Log a first run, below one of this hub's roots, and it appears here:</p>
      <Code text={FIRST_RUN} label="Copy the lines that log a first run" />
      <p class="then">
        Then select it and press <kbd>b</kbd> to see it in TensorBoard's pages, or type:
      </p>
      <Code text={FIRST_BOARD} label="Copy the command that opens a board" />
    </Empty>
  );
}

interface Extra {
  runs: Record<string, Value>[];
  unread: number;
}

function loadedRows(paged: Paged<Row>, first: number, last: number): Row[] {
  const found: Row[] = [];
  for (let index = first; index <= Math.min(last, paged.total - 1); index += 1) {
    const row = paged.at(index);
    if (row) found.push(row);
  }
  return found;
}

const tagOf = (field: string) => readField(field)?.name ?? field;

function firstValue(rows: readonly Row[], field: string): unknown {
  for (const row of rows) {
    const value = fieldValue(row, field);
    if (value !== undefined) return value;
  }
  return undefined;
}

function isNumeric(value: unknown): boolean {
  return typeof value === "number" || value === "NaN" || /^-?Infinity$/.test(String(value));
}

function widthOf({ field, isCurve }: ColumnSpec, title: string): number {
  if (isCurve) return 116;
  if (isTime(field)) return 92;
  if (field === "run") return isPhone() ? 152 : 208;
  if (field === "state" && isPhone()) return 60;
  return WIDTHS[field] ?? Math.min(180, Math.max(64, title.length * 7 + 28));
}

/** A column of runs; one of its values determines whether it is numeric. */
function runColumn(
  spec: ColumnSpec,
  example: unknown,
  align: (field: string, text: string) => string,
): Column<Row> {
  const { field, isCurve } = spec;
  const title = titleOf(field);
  const isNumber = !isCurve && (isNumeric(example) || field === "duration");
  return {
    key: columnKey(spec),
    title: <span title={field}>{isCurve ? `${title} ∿` : title}</span>,
    label: field,
    width: spec.width ?? widthOf(spec, title),
    isNumber,
    sort: isCurve ? `${field}` : field,
    cell: (run) => {
      if (isCurve) return <Sparkline run={run} tag={tagOf(field)} />;
      const value = fieldValue(run, field);
      if (field === "run" || field === "name")
        return <RunLink run={run} isWhole={field === "run"} />;
      if (field === "state") {
        const detail = run.exit_code ? String(run.exit_code) : "";
        const title = [run.state, run.reason].filter(Boolean).join(": ");
        return <StateMark state={run.state} detail={detail} title={title} isShort={isPhone()} />;
      }
      if (field === "root") return <RootName uri={run.root} />;
      if (isTime(field)) return <Time at={typeof value === "string" ? value : null} />;
      if (field === "duration" && typeof value === "number") {
        return <span title={`${value} s`}>{format.duration(value)}</span>;
      }
      const text = format.text(value);
      return <ValueText value={value} shown={isNumber ? align(field, text) : text} />;
    },
  };
}

function RunLink(props: { run: Row; isWhole: boolean }) {
  const { run, isWhole } = props;
  return (
    <a href={address(`/runs/${encodeURIComponent(run.id)}`)} title={run.problem || run.uri}>
      {run.problem && <span class="bad-text">⚠ </span>}
      {isWhole && run.experiment && <span class="soft">{run.experiment}/</span>}
      {run.name}
    </a>
  );
}

/** The selected runs. The URL has as many as fit. */
function useSelection(paged: Paged<Row>, key: string) {
  const inAddress = place.value.query.getAll("selected");
  const chosen = useSignal<ReadonlyMap<string, Run | undefined>>(
    new Map(inAddress.map((id) => [id, undefined])),
  );
  const set = (next: ReadonlyMap<string, Run | undefined>) => {
    chosen.value = next;
    const ids = next.size <= MOST_IN_ADDRESS ? [...next.keys()] : [];
    setQuery({ selected: ids }, true);
  };
  const last = useRef(key);
  useEffect(() => {
    // Another filter has another selection, which is in its URL.
    if (last.current === key) return;
    last.current = key;
    const ids = place.value.query.getAll("selected");
    chosen.value = new Map(ids.map((id) => [id, chosen.value.get(id)]));
  }, [key]);
  const select = (runs: readonly Run[]) =>
    set(new Map([...chosen.value, ...runs.map((run) => [run.id, run] as const)]));
  return {
    size: chosen.value.size,
    ids: [...chosen.value.keys()],
    has: (run: Run) => chosen.value.has(run.id),
    toggle: (run: Run | undefined) => {
      if (!run) return;
      const next = new Map(chosen.value);
      if (!next.delete(run.id)) next.set(run.id, run);
      set(next);
    },
    range: (from: number, to: number) =>
      select(loadedRows(paged, Math.min(from, to), Math.max(from, to))),
    clear: () => set(new Map()),
    remove: (ids: readonly string[]) => {
      const gone = new Set(ids);
      set(new Map([...chosen.value].filter(([id]) => !gone.has(id))));
    },
    /** Select all runs of the filter, or the first of very many; or clear the selection. */
    all: async (listQuery: Query, total: number) => {
      const most = Math.min(total, MOST_SELECTED);
      if (chosen.value.size >= most) return set(new Map());
      const answer = await get<RunList>("/runs", { ...listQuery, limit: MOST_SELECTED });
      set(new Map(answer.runs.map((run) => [run.id, run])));
      if (answer.total > MOST_SELECTED) {
        say(`Selected the first ${format.count(MOST_SELECTED)} of ${format.count(answer.total)}.`);
      }
    },
    runs: async (): Promise<Run[]> => {
      // Load them again: a run may have changed since it was selected.
      const loaded = new Map(loadedRows(paged, 0, paged.total - 1).map((run) => [run.id, run]));
      const found = [...chosen.value].map(([id, run]) => {
        return loaded.get(id) ?? run ?? get<Run>(`/runs/${encodeURIComponent(id)}`);
      });
      return Promise.all(found);
    },
  };
}

/** Make the hub read the visible running runs, so that their curves grow. */
function useFollowed(rows: readonly Row[]): void {
  const running = rows.filter((run) => run.state === "running").slice(0, MOST_FOLLOWED);
  const ids = running.map((run) => run.id);
  useEffect(() => {
    if (ids.length === 0) return;
    let stop: (() => void) | undefined;
    const timer = setTimeout(() => {
      stop = follow(ids);
    }, FOLLOW_MILLISECONDS);
    return () => {
      clearTimeout(timer);
      stop?.();
    };
  }, [ids.join("\n")]);
}

/**
 * Follow changes. Values change in place and are highlighted once. A new order or new runs are shown
 * at once only if the user is not using a row; otherwise `news` says what is new.
 */
function useLiveRows(
  paged: Paged<Row>,
  listQuery: Query,
  columns: readonly ColumnSpec[],
  isBusy: () => boolean,
) {
  const news = useSignal("");
  const fresh = useSignal<ReadonlyMap<string, number>>(new Map());
  const serial = useRef(0);
  const timer = useRef<ReturnType<typeof setTimeout> | undefined>(undefined);
  const fading = useRef<ReturnType<typeof setTimeout> | undefined>(undefined);
  const show = () => {
    news.value = "";
    paged.refresh();
  };
  const latest = useRef({ paged, listQuery, isBusy }); // a timer outlives a render
  latest.current = { paged, listQuery, isBusy };
  const recount = async () => {
    timer.current = undefined;
    const { listQuery, isBusy } = latest.current;
    if (!isBusy()) return show();
    const { total } = await get<RunList>("/runs", { ...listQuery, count: true });
    const more = total - latest.current.paged.total;
    news.value =
      more > 0 ? `${format.count(more)} new` : more < 0 ? `${format.count(-more)} gone` : "";
  };
  const patch = (run: Run) => {
    const changed: string[] = [];
    paged.patch((row) => {
      if (row.id !== run.id) return row;
      const next = { ...row, ...run };
      for (const spec of columns) {
        const [before, after] = [fieldValue(row, spec.field), fieldValue(next, spec.field)];
        if (!spec.isCurve && JSON.stringify(before) !== JSON.stringify(after)) {
          changed.push(`${run.id} ${columnKey(spec)}`);
        }
      }
      return next;
    });
    if (changed.length === 0) return;
    serial.current += 1;
    fresh.value = new Map([
      ...fresh.value,
      ...changed.map((key) => [key, serial.current] as const),
    ]);
    clearTimeout(fading.current);
    fading.current = setTimeout(() => {
      fresh.value = new Map();
    }, FRESH_MILLISECONDS);
  };
  useEvents(["run", "runs"], (event) => {
    if (event.kind === "run" && event.change === "changed" && event.run) return patch(event.run);
    timer.current ??= setTimeout(() => recount().catch(() => undefined), AGAIN_MILLISECONDS);
  });
  useEffect(
    () => () => {
      clearTimeout(timer.current);
      clearTimeout(fading.current);
    },
    [],
  );
  return {
    news: news.value,
    show,
    freshOf: (row: Row, key: string) => fresh.value.get(`${row.id} ${key}`),
  };
}

/** Groups of runs, with their number and the means of the columns. */
function Groups(props: TableParts & { suited: Signal<Suited> }) {
  const { view, columns } = props;
  const filter = filterOf(view);
  const first = useLoaded(JSON.stringify(filter), (signal) =>
    get<RunList>("/runs", { selector: filter.selectors, where: filter.where, limit: 100 }, signal),
  );
  useSuited(props.suited, filter, first.isLoading ? [] : (first.data?.runs ?? []));
  const fields = columns
    .filter((one) => !one.isCurve && !view.groupBy.includes(one.field))
    .map((one) => one.field)
    .filter((field) => readField(field)?.group || field === "duration")
    .filter((field) => !field.startsWith("tags"));
  const listQuery = {
    selector: filter.selectors,
    where: filter.where,
    sort: view.sort,
    group_by: view.groupBy,
    columns: fields.join(","),
  };
  const listKey = JSON.stringify(listQuery);
  const unread = useSignal(0);
  const paged = usePaged<RunGroup>(listKey, async (start, limit, signal) => {
    const answer = await get<RunList>("/runs", { ...listQuery, limit, cursor: start }, signal);
    unread.value = answer.unread;
    return { rows: answer.groups ?? [], total: answer.total };
  });
  useStatus(props.status, paged, unread.value);
  useLive(["run", "runs"], paged.refresh);
  const active = useSignal(0);
  const align = useFractions(listKey);
  /** Show the runs of a group by adding its values to the filter. */
  const open = (group: RunGroup | undefined) => {
    if (!group) return;
    const own = view.groupBy.map((field) => `${field} == ${literal(group.values[field])}`);
    const where = conjunction([filter.where, ...own].filter(Boolean));
    setQuery({ where, group_by: [] });
  };
  const move = (step: number) => {
    active.value = Math.max(0, Math.min(paged.total - 1, active.value + step));
  };
  useKeys("Groups", [
    { key: "j", label: "Next group", run: () => move(1) },
    { key: "k", label: "Previous group", run: () => move(-1) },
    { key: "Enter", label: "Show the runs of the group", run: () => open(paged.at(active.value)) },
  ]);
  const means = fields.filter((field) => {
    const rows = [...Array(Math.min(paged.total, 100)).keys()].map((index) => paged.at(index));
    return rows.some((group) => isNumeric(group?.means[field]));
  });
  const cells: Column<RunGroup>[] = [
    ...view.groupBy.map((field, index) => ({
      key: field,
      title: <span title={field}>{titleOf(field)}</span>,
      width: 200,
      sort: field,
      cell: (group: RunGroup) => {
        const value = group.values[field];
        const text =
          value === null || value === undefined ? (
            <span class="soft">none</span>
          ) : field === "state" ? (
            <StateMark state={String(value)} />
          ) : field === "root" ? (
            <RootName uri={String(value)} />
          ) : (
            <ValueText value={value} />
          );
        return index > 0 ? (
          text
        ) : (
          <button type="button" class="link" onClick={() => open(group)}>
            {text}
          </button>
        );
      },
    })),
    {
      key: "count",
      title: "runs",
      width: 80,
      isNumber: true,
      cell: (group) => format.count(group.count),
    },
    ...means.map((field) => ({
      key: `mean ${field}`,
      title: <span title={`the mean of ${field}`}>{`⌀ ${titleOf(field)}`}</span>,
      width: Math.min(180, Math.max(96, titleOf(field).length * 8 + 44)),
      isNumber: true,
      cell: (group: RunGroup) => {
        const value = group.means[field];
        if (field === "duration" && typeof value === "number") return format.duration(value);
        return <ValueText value={value} shown={align(field, format.text(value))} />;
      },
    })),
  ];
  return (
    <>
      <ErrorNote error={paged.error} onRetry={paged.refresh} />
      <Table
        label="Groups of runs"
        columns={cells}
        count={paged.total}
        at={paged.at}
        keyOf={(group) => JSON.stringify(group.values)}
        onShow={paged.show}
        sort={view.sort}
        onSort={(_, field, adds) => setQuery({ sort: sortedBy(view.sort, field, adds) })}
        active={active.value}
        onActive={(index) => {
          active.value = index;
        }}
        onOpen={open}
      />
    </>
  );
}
