// Curves of several runs: charts on the left, the runs and their differences on the right. All
// choices of the page are in its URL.

import { type Signal, useSignal } from "@preact/signals";
import { useEffect, useLayoutEffect, useRef } from "preact/hooks";
import { type ApiError, get, type Logged, type Run, type RunList, series } from "../api";
import { coloursBy, dash, dashesBy, differing } from "../colouring";
import {
  AXES,
  type Choices,
  chartsOf,
  choices,
  csvOfCurves,
  layOut,
  passing,
  writeChart,
  writeZoom,
} from "../comparison";
import {
  Bar,
  Button,
  Empty,
  ErrorNote,
  RunName,
  StateMark,
  Time,
  ValueText,
} from "../components/basics";
import { Chart, type ChartProps, type Pointer, save, savePng, saveSvg } from "../components/chart";
import { Choice } from "../components/choice";
import { Dialog, Menu, type MenuEntry } from "../components/dialog";
import { inputInto } from "../components/form";
import { MEDIA_PLUGINS, MediaRow } from "../components/media";
import { attempt } from "../components/toast";
import { type Curves, samplesFor, useCurves, useSeen } from "../curves";
import { follow } from "../events";
import * as format from "../format";
import { useActions, useKeys } from "../keys";
import { useLive, useLoaded } from "../loading";
import { type AxisKind, axisText, extent, nearest, type PlotCurve, type Range } from "../plot";
import { labelsOf, type RunLabel } from "../roots";
import { address, go, place, setQuery } from "../router";
import type { Curve } from "../series";
import { isDark } from "../theme";
import "./compare.css";

const MOST_RUNS = 500;
const MOST_OFFERED = 6; // recent runs, if none is selected
const MOST_PICTURED = 12; // runs whose images are side by side
const MOST_POINTS = 4_000_000; // in a response of the hub
const MEDIA_ROOM = 0.65; // the share of charts above images
const BELOW_CHARTS = 16;
const BANDS: readonly [string, string][] = [
  ["std", "± deviation"],
  ["sem", "± standard error"],
  ["minmax", "min to max"],
  ["quartiles", "quartiles"],
];
const FIELDS = ["root", "experiment", "state", "host", "user", "job"];

const zoomTo = (range: Range | undefined) => setQuery({ zoom: writeZoom(range) });

export function Compare() {
  const chosen = choices(place.value.query);
  const { ids, where, selectors } = chosen;
  const isAny = ids.length > 0 || where !== "" || selectors.length > 0;
  const selection = { selector: [...ids.map((id) => `id:${id}`), ...selectors], where };
  const key = JSON.stringify(selection);
  const runs = useLoaded(key, async (signal) => {
    if (!isAny) return [];
    const params = { ...selection, limit: MOST_RUNS };
    return (await get<RunList>("/runs", params, signal)).runs;
  });
  const logged = useLoaded(key, async (signal) => {
    if (!isAny) return { metrics: [], unread: 0 };
    return get<{ metrics: Logged[]; unread: number }>("/runs/metrics", selection, signal);
  });
  useLive(["run"], runs.refresh, (event) => {
    return event.kind === "run" && (runs.data?.some((run) => run.id === event.id) ?? false);
  });
  useLive(["points"], logged.refresh);
  const found = runs.data ?? [];
  const known = JSON.stringify(found.map((run) => run.id));
  useEffect(() => follow(found.map((run) => run.id)), [known]);
  // Request again what the hub has not read yet.
  useEffect(() => {
    if (!logged.data?.unread) return;
    const timer = setTimeout(logged.refresh, 500);
    return () => clearTimeout(timer);
  }, [logged.data]);
  useActions("Compare", [
    { label: "Sweep: parallel coordinates of these runs", run: () => go("/sweep", selectionOf()) },
    { label: "Show all of the x-axis", run: () => zoomTo(undefined) },
    { label: "Logarithmic y-axis", run: () => toggleLog(chosen.log, "y") },
  ]);
  if (!isAny) {
    return (
      <div class="page">
        <Bar>
          <h1>Compare</h1>
        </Bar>
        <Offer />
      </div>
    );
  }
  const error = runs.error ?? logged.error;
  if (!runs.data || !logged.data) {
    return (
      <div class="page">
        <Bar>
          <h1>Compare</h1>
        </Bar>
        <ErrorNote
          error={error}
          onRetry={() => {
            runs.refresh();
            logged.refresh();
          }}
        />
      </div>
    );
  }
  return <Comparison chosen={chosen} runs={found} logged={logged.data.metrics} error={error} />;
}

/** The page without a selection: how to select runs, and the most recent ones. */
function Offer() {
  const recent = useLoaded("", async (signal) => {
    const params = { sort: ["-created"], limit: MOST_OFFERED };
    return (await get<RunList>("/runs", params, signal)).runs;
  });
  const left = useSignal<ReadonlySet<string>>(new Set());
  const runs = recent.data ?? [];
  const labels = labelsOf(runs, true);
  const ids = runs.map((run) => run.id).filter((id) => !left.value.has(id));
  const toggle = (id: string) => {
    const next = new Set(left.value);
    if (!next.delete(id)) next.add(id);
    left.value = next;
  };
  return (
    <Empty title="Nothing to compare yet">
      <p>
        Compare draws the curves of several runs in the same charts and lists what differs between
        them. Select runs in <a href={address("/runs")}>Runs</a>: move with <kbd>j</kbd> and{" "}
        <kbd>k</kbd>, select with <kbd>x</kbd>, then press <kbd>c</kbd>.
      </p>
      <ErrorNote error={recent.error} onRetry={recent.refresh} />
      {recent.data?.length === 0 && <p>This hub has no runs yet. Runs shows how to log one.</p>}
      {runs.length > 0 && (
        <>
          <h3>Or start with recent runs</h3>
          <ul class="picks offer">
            {runs.map((run) => (
              <li key={run.id}>
                <label title={run.uri}>
                  <input
                    type="checkbox"
                    checked={!left.value.has(run.id)}
                    onChange={() => toggle(run.id)}
                  />
                  <span class="name">
                    <RunName label={labels.get(run.id)} />
                  </span>
                  <StateMark state={run.state} />
                  <span class="soft">
                    <Time at={run.created} />
                  </span>
                </label>
              </li>
            ))}
          </ul>
          <Button
            kind="primary"
            disabled={ids.length === 0}
            onClick={() => go("/compare", { run: ids })}
          >
            Compare {format.plural(ids.length, "run")}
          </Button>
        </>
      )}
    </Empty>
  );
}

/** The selection of the page, for links to other pages. */
function selectionOf() {
  const { query } = place.value;
  return {
    run: query.getAll("run"),
    selector: query.getAll("selector"),
    where: query.get("where") ?? undefined,
  };
}

function toggleLog(now: string, axis: "x" | "y"): void {
  const next = now.includes(axis) ? now.replace(axis, "") : [...now, axis].sort().join("");
  setQuery({ log: next || undefined });
}

function Comparison(props: {
  chosen: Choices;
  runs: readonly Run[];
  logged: readonly Logged[];
  error: ApiError | undefined;
}) {
  const { chosen, runs } = props;
  const pointer = useSignal<Pointer | undefined>(undefined);
  const hovered = useSignal<string | undefined>(undefined);
  const adding = useSignal<string[] | undefined>(undefined);
  const [seen, watch] = useSeen();
  const scalars = props.logged.filter((one) => one.scalar).map((one) => one.name);
  const charts = chartsOf(chosen, scalars);
  const isGrouped = chosen.group.length > 0;
  const shownRuns = runs.filter((run) => !chosen.hidden.has(run.id));
  const options = {
    selectors: runs.map((run) => `id:${run.id}`),
    x: chosen.x,
    ...(chosen.metric ? { metric: chosen.metric } : {}),
    smoothing: chosen.smoothing,
    samples: samplesFor(runs.length),
    ...(isGrouped ? { group_by: chosen.group, band: chosen.band } : {}),
  };
  const inSight = charts.filter((tags) => seen.has(writeChart(tags)));
  const tags = [...new Set(inSight.flat())].filter((tag) => scalars.includes(tag));
  const curves = useCurves(
    runs.map((run) => run.id),
    options,
    tags,
    chosen.zoom,
  );
  const dark = isDark();
  const labels = new Set(
    tags.flatMap((tag) => curves.of(tag).flatMap((one) => (one.line ? [one.run] : []))),
  );
  const names = labelsOf(runs);
  const looks = looksOf(runs, chosen, [...labels], dark);
  const looksKey = JSON.stringify([
    [chosen.colour, chosen.dash, chosen.group],
    [...chosen.hidden],
    [...labels],
    [...names.values()],
  ]);
  const cache = useRef(new Map<string, { from: unknown[]; made: PlotCurve[] }>());
  const drawn = (tags: readonly string[]): PlotCurve[] => {
    // The same array for the same curves, so that only changes are drawn again.
    const from: unknown[] = [...tags.map(curves.of), looksKey, dark, runs];
    const name = writeChart(tags);
    const before = cache.current.get(name);
    const isSame = before?.from.every((one, at) => one === from[at]) ?? false;
    if (before && isSame && before.from.length === from.length) return before.made;
    const made = tags.flatMap((tag, at) =>
      plotted(curves.of(tag), runs, names, chosen.hidden, looks, tags.length > 1 ? at : undefined),
    );
    cache.current.set(name, { from, made });
    return made;
  };
  const xKind: AxisKind =
    chosen.x === "wall_time" ? "time" : chosen.x === "relative_time" ? "duration" : "number";
  const pan = (by: number, factor: number) => {
    const whole = extent(
      tags.flatMap((tag) => curves.of(tag).map((one) => one.x)),
      false,
    );
    const range = chosen.zoom ?? whole;
    if (!range) return;
    const wide = range[1] - range[0];
    const middle = (range[0] + range[1]) / 2 + by * wide;
    zoomTo([middle - (wide * factor) / 2, middle + (wide * factor) / 2]);
  };
  const filter = useRef<HTMLInputElement>(null);
  useKeys("Compare", [
    { key: "/", label: "Filter metrics", run: () => filter.current?.focus() },
    { key: "+", label: "Zoom in", run: () => pan(0, 0.5) },
    { key: "-", label: "Zoom out", run: () => pan(0, 2) },
    { key: "ArrowLeft", label: "Pan left", run: () => pan(-0.25, 1) },
    { key: "ArrowRight", label: "Pan right", run: () => pan(0.25, 1) },
    { key: "0", label: "Show all of the x-axis", run: () => zoomTo(undefined) },
    { key: "l", label: "Logarithmic y-axis", run: () => toggleLog(chosen.log, "y") },
    { key: "Escape", label: "Clear the focus", run: () => setQuery({ focus: undefined }) },
  ]);
  const passes = passing(chosen.filter);
  const media = props.logged.filter((one) => MEDIA_PLUGINS.has(one.plugin) && passes(one.name));
  const room = useRoom();
  const share = media.length > 0 ? MEDIA_ROOM : 1;
  const fitting = layOut(charts.length, { ...room.size, height: room.size.height * share });
  const per = chosen.per || fitting.per;
  const height = chosen.height ?? fitting.height;
  const pick = (key: string) => setQuery({ focus: chosen.focus === key ? undefined : key });
  return (
    <div class="page">
      <Toolbar chosen={chosen} runs={runs} scalars={scalars} filter={filter} />
      <ErrorNote error={props.error ?? curves.error} onRetry={curves.refresh} />
      <div class="columns compare">
        <section class="scroll" aria-label="Curves">
          <div
            class="charts"
            ref={room.box}
            style={per ? { gridTemplateColumns: `repeat(${per}, minmax(0, 1fr))` } : {}}
          >
            {charts.map((tags) => {
              const name = writeChart(tags);
              const chart: ChartProps = {
                title: tags.join(", "),
                curves: seen.has(name) ? drawn(tags) : [],
                height,
                xKind,
                xLog: chosen.log.includes("x"),
                yLog: chosen.log.includes("y"),
                range: chosen.zoom,
              };
              return (
                <div key={name} ref={watch} data-see={name}>
                  <Chart
                    {...chart}
                    isLoading={seen.has(name) && tags.some(curves.isLoading)}
                    onZoom={zoomTo}
                    pointer={pointer}
                    hovered={hovered}
                    emphasis={chosen.focus}
                    onPick={pick}
                  >
                    <ChartMenu
                      tags={tags}
                      chosen={chosen}
                      chart={chart}
                      options={options}
                      onAdd={() => {
                        adding.value = tags;
                      }}
                    />
                  </Chart>
                  <Grip height={height} />
                </div>
              );
            })}
            {scalars.length === 0 && (
              <Empty title="These runs have logged no scalars yet">
                <p>Curves appear here as they are logged.</p>
              </Empty>
            )}
            {scalars.length > 0 && charts.length === 0 && (
              <Empty title="No metric matches the filter" />
            )}
          </div>
          {media.length > 0 && (
            <Media
              chosen={chosen}
              media={media}
              runs={shownRuns}
              names={names}
              looks={looks}
              seen={seen}
              watch={watch}
            />
          )}
        </section>
        <Legend
          runs={runs}
          names={names}
          chosen={chosen}
          looks={looks}
          curves={curves}
          pointer={pointer}
          hovered={hovered}
          charts={charts}
          xKind={xKind}
          onPick={pick}
        />
      </div>
      {adding.value && (
        <TagDialog
          tags={adding.value}
          scalars={scalars}
          onClose={() => {
            adding.value = undefined;
          }}
          onChoose={(next) => replaceChart(chosen, adding.value ?? [], next)}
        />
      )}
    </div>
  );
}

/** The room for charts: from the top of their box to the bottom of the window. */
function useRoom() {
  const box = useRef<HTMLDivElement>(null);
  const size = useSignal({ width: 0, height: 0 });
  useLayoutEffect(() => {
    const look = () => {
      const found = box.current?.getBoundingClientRect();
      const scrolled = box.current?.parentElement?.scrollTop ?? 0;
      if (!found) return;
      size.value = {
        width: found.width,
        height: window.innerHeight - found.top - scrolled - BELOW_CHARTS,
      };
    };
    look();
    window.addEventListener("resize", look);
    return () => window.removeEventListener("resize", look);
  }, []);
  return { box, size: size.value };
}

function replaceChart(chosen: Choices, before: readonly string[], after: readonly string[]): void {
  const name = writeChart(before);
  const kept = chosen.charts.map(writeChart);
  const at = kept.indexOf(name);
  const next = after.length > 0 ? [writeChart(after)] : [];
  if (at >= 0) kept.splice(at, 1, ...next);
  else kept.unshift(...next);
  setQuery({ chart: kept });
}

interface Looks {
  colours: ReadonlyMap<string, string>;
  dashes: ReadonlyMap<string, readonly number[]>;
  groupColour: (label: string) => string;
}

function looksOf(
  runs: readonly Run[],
  chosen: Choices,
  labels: readonly string[],
  dark: boolean,
): Looks {
  const described = runs.map((run) => ({ id: run.id, values: valuesOf(run) }));
  const groups = coloursBy(
    labels.map((label) => ({ id: label, values: { label } })),
    "label",
    dark,
  );
  const groupOf = (run: { values: Record<string, unknown> }) =>
    JSON.stringify(chosen.group.map((field) => run.values[field] ?? null));
  const byGroup = chosen.colour === "group" && chosen.group.length > 0;
  const colours = byGroup
    ? coloursBy(
        described.map((run) => ({ id: run.id, values: { group: groupOf(run) } })),
        "group",
        dark,
      )
    : coloursBy(described, chosen.colour === "group" ? "" : chosen.colour, dark);
  return {
    colours,
    dashes: dashesBy(described, chosen.dash),
    groupColour: (label) => groups.get(label) ?? "",
  };
}

/** The values of a run by field. */
function valuesOf(run: Run): Record<string, unknown> {
  const { root, experiment, state, host, user, job } = run;
  const found: Record<string, unknown> = { root, experiment, state, host, user, job };
  for (const [name, value] of Object.entries(run.hparams)) found[`hparams.${name}`] = value;
  return found;
}

function textOf(names: ReadonlyMap<string, RunLabel>, run: Run): string {
  return (names.get(run.id)?.before ?? "") + run.name;
}

/** The mark at the last point of a run's curves, which shows its state. */
function endOf({ state }: Run): Pick<PlotCurve, "end"> {
  if (state === "running") return { end: "live" };
  return state === "failed" || state === "killed" || state === "lost" ? { end: "broken" } : {};
}

/** The curves of a tag: of runs, or of groups with their bands. */
function plotted(
  curves: readonly Curve[],
  runs: readonly Run[],
  names: ReadonlyMap<string, RunLabel>,
  hidden: ReadonlySet<string>,
  looks: Looks,
  place: number | undefined,
): PlotCurve[] {
  const byUri = new Map(runs.map((run) => [run.uri, run]));
  const tagged = (label: string, tag: string) =>
    place === undefined ? label : `${label} · ${tag}`;
  return curves.flatMap((curve): PlotCurve[] => {
    const { x, y, tag } = curve;
    if (curve.line === "middle") {
      if (hidden.has(curve.run)) return [];
      const ends = curves.filter((one) => one.run === curve.run && one.line !== "middle");
      const [lower, upper] = ["lower", "upper"].map((line) =>
        ends.find((one) => one.line === line),
      );
      return [
        {
          key: curve.run,
          label: tagged(curve.run, tag),
          colour: looks.groupColour(curve.run),
          dash: dash(place ?? 0),
          x,
          y,
          ...(lower && upper ? { band: { lower, upper } } : {}),
        },
      ];
    }
    const run = byUri.get(curve.uri);
    if (!run || curve.line || hidden.has(run.id)) return [];
    const own = looks.dashes.get(run.id) ?? [];
    return [
      {
        key: run.id,
        label: tagged(textOf(names, run), tag),
        colour: looks.colours.get(run.id) ?? "",
        dash: place ? dash(place) : own,
        x,
        y,
        ...endOf(run),
      },
    ];
  });
}

function Toolbar(props: {
  chosen: Choices;
  runs: readonly Run[];
  scalars: readonly string[];
  filter: { current: HTMLInputElement | null };
}) {
  const { chosen, runs, scalars } = props;
  const smooth = useSignal(chosen.smoothing);
  const timer = useRef<ReturnType<typeof setTimeout> | undefined>(undefined);
  useEffect(() => {
    smooth.value = chosen.smoothing;
  }, [chosen.smoothing]);
  const different = differing(runs).map((name) => `hparams.${name}`);
  const fields: [string, string][] = [
    ...different.map((name): [string, string] => [name, name.slice("hparams.".length)]),
    ...FIELDS.filter((name) => new Set(runs.map((run) => valuesOf(run)[name])).size > 1).map(
      (name): [string, string] => [name, name],
    ),
  ];
  const metrics = scalars.map((name): [string, string] => [name, name]);
  return (
    <Bar class="compare-bar">
      <h1>Compare {format.plural(runs.length, "run")}</h1>
      <input
        class="tags"
        ref={props.filter}
        type="search"
        aria-label="Filter metrics"
        placeholder={`Filter ${format.plural(scalars.length, "metric")}`}
        value={chosen.filter}
        onInput={(event) => setQuery({ tags: event.currentTarget.value || undefined }, true)}
      />
      <Choice
        label="x"
        value={chosen.metric || chosen.x}
        groups={[
          ["", AXES],
          ["Metrics", metrics],
        ]}
        onChange={(x) => setQuery({ x: x === "step" ? undefined : x, zoom: undefined })}
      />
      <label class="tool" title="The weight of the average over all points">
        smooth{" "}
        <input
          type="range"
          min="0"
          max="0.99"
          step="0.01"
          value={smooth.value}
          onInput={(event) => {
            const value = Number(event.currentTarget.value);
            smooth.value = value;
            clearTimeout(timer.current);
            timer.current = setTimeout(() => setQuery({ smooth: value || undefined }, true), 120);
          }}
        />{" "}
        <span class="soft figure">{smooth.value.toFixed(2)}</span>
      </label>
      <span class="tool">
        log{" "}
        {(["x", "y"] as const).map((axis) => (
          <button
            key={axis}
            type="button"
            class="button toggle"
            aria-pressed={chosen.log.includes(axis)}
            aria-label={`Logarithmic ${axis}-axis`}
            onClick={() => toggleLog(chosen.log, axis)}
          >
            {axis}
          </button>
        ))}
      </span>
      <Choice
        label="group"
        value={chosen.group.length > 1 ? chosen.group.join(", ") : (chosen.group[0] ?? "")}
        groups={[
          [
            "",
            [
              ["", "none"],
              ...(chosen.group.length > 1
                ? [[chosen.group.join(", "), chosen.group.join(", ")] as [string, string]]
                : []),
              ...fields,
            ],
          ],
        ]}
        onChange={(group) => setQuery({ group: group ? [group] : undefined, hide: undefined })}
      />
      {chosen.group.length > 0 && (
        <Choice
          label="band"
          value={chosen.band}
          groups={[["", BANDS]]}
          onChange={(band) => setQuery({ band: band === "std" ? undefined : band })}
        />
      )}
      <Choice
        label="colour"
        value={chosen.colour}
        groups={[
          [
            "",
            [
              ["", "run"],
              ...(chosen.group.length > 0 ? [["group", "group"] as [string, string]] : []),
              ...fields,
            ],
          ],
        ]}
        onChange={(colour) => setQuery({ colour: colour || undefined })}
      />
      {chosen.group.length === 0 && (
        <Choice
          label="dash"
          value={chosen.dash}
          groups={[["", [["", "none"], ...fields]]]}
          onChange={(next) => setQuery({ dash: next || undefined })}
        />
      )}
      <Choice
        label="per row"
        value={chosen.per ? String(chosen.per) : ""}
        groups={[
          [
            "",
            [
              ["", "auto"],
              ["1", "1"],
              ["2", "2"],
              ["3", "3"],
              ["4", "4"],
            ],
          ],
        ]}
        onChange={(per) => setQuery({ per: per || undefined })}
      />
      {chosen.zoom && <Button onClick={() => zoomTo(undefined)}>Show all</Button>}
      <a class="button" href={address("/sweep", selectionOf())}>
        Sweep
      </a>
    </Bar>
  );
}

function ChartMenu(props: {
  tags: readonly string[];
  chosen: Choices;
  chart: ChartProps;
  options: { selectors: readonly string[] } & Record<string, unknown>;
  onAdd: () => void;
}) {
  const { tags, chosen, chart } = props;
  const isPinned = chosen.charts.some((one) => writeChart(one) === writeChart(tags));
  const entries: MenuEntry[] = [
    { label: "Metrics on this chart…", run: props.onAdd },
    { label: "Save as PNG", run: () => savePng(chart) },
    { label: "Save as SVG", run: () => saveSvg(chart) },
    {
      label: "Save all points as CSV",
      run: () => attempt(() => saveCsv(chart.title, tags, props.options, chosen.zoom)),
    },
  ];
  return (
    <>
      <Button
        kind="bare"
        title={isPinned ? "Unpin" : "Pin to the top"}
        label={`${isPinned ? "Unpin" : "Pin"} ${chart.title}`}
        onClick={() => replaceChart(chosen, tags, isPinned ? [] : tags)}
      >
        {isPinned ? "★" : "☆"}
      </Button>
      <Menu title={`Chart ${chart.title}`} label="" entries={entries} />
    </>
  );
}

/** Save all points of a chart, or as many as the hub sends at once. */
async function saveCsv(
  title: string,
  tags: readonly string[],
  options: { selectors: readonly string[] } & Record<string, unknown>,
  zoom: Range | undefined,
): Promise<void> {
  const curves = Math.max(1, options.selectors.length * tags.length * 3);
  const samples = Math.floor(MOST_POINTS / curves);
  const window = zoom ? { start: zoom[0], stop: zoom[1] } : {};
  const answer = await series({ ...options, tags, samples, ...window });
  save(new Blob([csvOfCurves(answer.series)], { type: "text/csv" }), title, "csv");
}

/** The lower edge of a chart, which changes the height of all charts. */
function Grip(props: { height: number }) {
  const set = (height: number) =>
    setQuery({ height: Math.round(Math.min(1000, Math.max(120, height))) }, true);
  return (
    // biome-ignore lint/a11y/useSemanticElements: an <hr> cannot be dragged
    <div
      class="grip"
      role="separator"
      aria-orientation="horizontal"
      aria-label="Height of the charts"
      aria-valuenow={props.height}
      aria-valuemin={120}
      aria-valuemax={1000}
      tabIndex={0}
      onKeyDown={(event) => {
        const step = { ArrowUp: -20, ArrowDown: 20 }[event.key];
        if (step === undefined) return;
        event.preventDefault();
        set(props.height + step);
      }}
      onPointerDown={(event) => {
        const element = event.currentTarget;
        const start = event.clientY - props.height;
        element.setPointerCapture(event.pointerId);
        element.onpointermove = (next) => set(next.clientY - start);
        element.onpointerup = () => {
          element.onpointermove = null;
        };
      }}
    />
  );
}

function TagDialog(props: {
  tags: readonly string[];
  scalars: readonly string[];
  onChoose: (tags: readonly string[]) => void;
  onClose: () => void;
}) {
  const typed = useSignal("");
  const chosen = useSignal<readonly string[]>(props.tags);
  const shown = props.scalars.filter(passing(typed.value)).slice(0, 200);
  return (
    <Dialog title="Metrics on this chart" onClose={props.onClose}>
      <h2>Metrics on this chart</h2>
      <input
        class="wide"
        type="search"
        aria-label="Find a metric"
        placeholder="Find a metric"
        value={typed.value}
        onInput={inputInto(typed)}
      />
      <ul class="picks">
        {shown.map((tag) => (
          <li key={tag}>
            <label>
              <input
                type="checkbox"
                checked={chosen.value.includes(tag)}
                onChange={() => {
                  const has = chosen.value.includes(tag);
                  chosen.value = has
                    ? chosen.value.filter((one) => one !== tag)
                    : [...chosen.value, tag];
                }}
              />{" "}
              {tag}
            </label>
          </li>
        ))}
      </ul>
      <Button
        kind="primary"
        disabled={chosen.value.length === 0}
        onClick={() => {
          props.onChoose(chosen.value);
          props.onClose();
        }}
      >
        Show {format.plural(chosen.value.length, "metric")}
      </Button>
    </Dialog>
  );
}

interface Entry {
  key: string;
  name: string;
  about: string;
  colour: string;
  run: Run | undefined;
  count: number;
}

function Legend(props: {
  runs: readonly Run[];
  names: ReadonlyMap<string, RunLabel>;
  chosen: Choices;
  looks: Looks;
  curves: Curves;
  pointer: Signal<Pointer | undefined>;
  hovered: Signal<string | undefined>;
  charts: readonly string[][];
  xKind: AxisKind;
  onPick: (key: string) => void;
}) {
  const { runs, chosen, looks, curves, charts } = props;
  const at = props.pointer.value;
  const chart = charts.find((tags) => tags.join(", ") === at?.chart) ?? charts[0];
  const tag = chart?.[0];
  const names = differing(runs);
  const own = tag ? curves.of(tag) : [];
  const byUri = new Map(runs.map((run) => [run.uri, run.id]));
  const values = new Map<string, number>();
  for (const curve of own) {
    if (curve.line === "lower" || curve.line === "upper") continue;
    const key = curve.line ? curve.run : (byUri.get(curve.uri) ?? "");
    const value = at ? nearest(curve, at.x) : curve.y.at(-1);
    if (value !== undefined) values.set(key, value);
  }
  const isGrouped = chosen.group.length > 0;
  const entries: Entry[] = isGrouped
    ? own
        .filter((curve) => curve.line === "middle")
        .map((curve) => ({
          key: curve.run,
          name: curve.run,
          about: format.plural(curve.members?.length ?? 0, "run"),
          colour: looks.groupColour(curve.run),
          run: undefined,
          count: curve.members?.length ?? 0,
        }))
    : runs.map((run) => ({
        key: run.id,
        name: textOf(props.names, run),
        about: run.uri,
        colour: looks.colours.get(run.id) ?? "",
        run,
        count: 1,
      }));
  // With a cursor the highest value comes first; without one the order does not change.
  if (at) {
    const height = (one: Entry) => {
      const value = values.get(one.key);
      return value === undefined || Number.isNaN(value) ? Number.NEGATIVE_INFINITY : value;
    };
    entries.sort((one, other) => height(other) - height(one));
  }
  const toggle = (key: string) => {
    const next = new Set(chosen.hidden);
    if (!next.delete(key)) next.add(key);
    setQuery({ hide: [...next] });
  };
  return (
    <section class="about runs-beside" aria-label="Runs">
      <p class="at">
        {tag ? (
          <>
            <strong title={tag}>{tag}</strong>{" "}
            <span class="soft">
              {at ? `at ${axisText(at.x, props.xKind)}` : "at the end"}
              {curves.unread > 0 && ` · reading ${format.plural(curves.unread, "run")}`}
            </span>
          </>
        ) : (
          <span class="soft">{format.plural(runs.length, "run")}</span>
        )}
      </p>
      <table>
        <thead>
          <tr>
            <th scope="col">
              <span class="unseen">Shown</span>
            </th>
            <th scope="col">{isGrouped ? "group" : "run"}</th>
            <th scope="col" class="number">
              value
            </th>
            {!isGrouped &&
              names.map((name) => (
                <th key={name} scope="col" title={name} class="hparam">
                  {name}
                </th>
              ))}
          </tr>
        </thead>
        <tbody>
          {entries.map((one) => (
            <tr
              key={one.key}
              class={
                props.hovered.value === one.key ? "hot" : chosen.focus === one.key ? "focus" : ""
              }
              onPointerEnter={() => {
                props.hovered.value = one.key;
              }}
              onPointerLeave={() => {
                props.hovered.value = undefined;
              }}
            >
              <td>
                <button
                  type="button"
                  class="swatch-button"
                  aria-pressed={!chosen.hidden.has(one.key)}
                  aria-label={`Show ${one.name}`}
                  title={chosen.hidden.has(one.key) ? "Show" : "Hide"}
                  onClick={() => toggle(one.key)}
                >
                  <svg class="sample" viewBox="0 0 20 8" aria-hidden="true">
                    {chosen.hidden.has(one.key) ? (
                      <circle cx="10" cy="4" r="3" fill="none" stroke={one.colour} />
                    ) : (
                      <line
                        x2="20"
                        y1="4"
                        y2="4"
                        stroke={one.colour}
                        stroke-width="3"
                        stroke-dasharray={looks.dashes.get(one.key)?.join(" ")}
                      />
                    )}
                  </svg>
                </button>
              </td>
              <td class="who">
                {one.run ? (
                  <>
                    <StateMark state={one.run.state} title={one.run.reason} isShort />
                    <a href={address(`/runs/${encodeURIComponent(one.key)}`)} title={one.about}>
                      <RunName label={props.names.get(one.key)} />
                    </a>
                  </>
                ) : (
                  <span title={one.name}>
                    {one.name} <span class="soft">{one.about}</span>
                  </span>
                )}
                <button
                  type="button"
                  class="button bare focus-button"
                  aria-pressed={chosen.focus === one.key}
                  aria-label={`Focus ${one.name}`}
                  title="Focus: dims the others"
                  onClick={() => props.onPick(one.key)}
                >
                  ◎
                </button>
              </td>
              <td class="number">
                {values.has(one.key) && <ValueText value={values.get(one.key)} />}
              </td>
              {one.run &&
                names.map((name) => (
                  <td key={name} class="hparam">
                    <ValueText value={one.run?.hparams[name]} />
                  </td>
                ))}
            </tr>
          ))}
        </tbody>
      </table>
    </section>
  );
}

function Media(props: {
  chosen: Choices;
  media: readonly Logged[];
  runs: readonly Run[];
  names: ReadonlyMap<string, RunLabel>;
  looks: Looks;
  seen: ReadonlySet<string>;
  watch: (element: HTMLElement | null) => void;
}) {
  const { chosen, media, looks } = props;
  const low = Math.min(...media.map((one) => one.first_step));
  const high = Math.max(...media.map((one) => one.last_step));
  const steps = useSignal<readonly number[]>([]);
  const step = useSignal(chosen.step);
  const timer = useRef<ReturnType<typeof setTimeout> | undefined>(undefined);
  useEffect(() => {
    step.value = chosen.step;
  }, [chosen.step]);
  const having = new Set(media.flatMap((one) => one.ids));
  const pictured = props.runs.filter((run) => having.has(run.id));
  const runs = pictured.slice(0, MOST_PICTURED).map((run) => ({
    id: run.id,
    label: textOf(props.names, run),
    colour: looks.colours.get(run.id) ?? "",
  }));
  const all = [...new Set(steps.value)].sort((one, other) => one - other);
  const moveTo = (value: number) => {
    step.value = value;
    clearTimeout(timer.current);
    timer.current = setTimeout(
      () => setQuery({ step: value >= high ? undefined : value }, true),
      120,
    );
  };
  return (
    <section class="media-all" aria-label="Images, text and histograms">
      <div class="slider">
        <h2>Images, text and histograms</h2>
        <label class="tool">
          step{" "}
          <input
            type="range"
            aria-label="Step of images and histograms"
            min={low}
            max={high}
            step={1}
            list="media-steps"
            value={step.value ?? high}
            onInput={(event) => moveTo(Number(event.currentTarget.value))}
          />{" "}
          <span class="figure">{format.count(step.value ?? high)}</span>
        </label>
        <datalist id="media-steps">
          {all.slice(0, 100).map((one) => (
            <option key={one} value={one} />
          ))}
        </datalist>
        {pictured.length > MOST_PICTURED && (
          <span class="soft">
            the first {MOST_PICTURED} of {format.count(pictured.length)} runs
          </span>
        )}
      </div>
      {media.map((one) => {
        const name = `media ${one.name}`;
        return (
          <div key={one.name} ref={props.watch} data-see={name}>
            {props.seen.has(name) ? (
              <MediaRow
                tag={one.name}
                runs={runs.filter((run) => one.ids.includes(run.id))}
                step={chosen.step}
                onSteps={(found) => {
                  if (found.some((value) => !steps.peek().includes(value))) {
                    steps.value = [...new Set([...steps.peek(), ...found])];
                  }
                }}
              />
            ) : (
              <div class="placeholder" />
            )}
          </div>
        );
      })}
    </section>
  );
}
