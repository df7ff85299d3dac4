// How a metric of many runs depends on hyperparameters: parallel coordinates with brushes, a scatter
// plot of any two values, the importance of each hyperparameter, and the runs.

import { useSignal } from "@preact/signals";
import { useEffect, useLayoutEffect, useRef } from "preact/hooks";
import { get, type RunList } from "../api";
import { ramp } from "../colouring";
import { Bar, Button, Empty, ErrorNote, RunName, StateMark, ValueText } from "../components/basics";
import { Choice } from "../components/choice";
import { inputInto } from "../components/form";
import { type Column, Table } from "../components/table";
import * as format from "../format";
import { useKeys } from "../keys";
import { useLive, useLoaded } from "../loading";
import { labelsOf, type RunLabel } from "../roots";
import { address, go, place, setQuery } from "../router";
import {
  axisOf,
  type Brush,
  importance,
  marks,
  numeric,
  passes,
  placeOn,
  readBrush,
  type ValueAxis,
  valueOn,
  word,
  writeBrush,
} from "../sweep";
import { isDark } from "../theme";
import "./sweep.css";

const MOST_RUNS = 2000;
const MOST_AXES = 10;
const STATISTICS = ["last", "min", "max", "mean"];

type Row = Record<string, unknown>;
type Labels = ReadonlyMap<unknown, RunLabel>; // by run id

/** The field of a hyperparameter or metric with any name, for a question. */
export function fieldOf(group: "hparams" | "metrics", name: string, statistic = ""): string {
  const tail = statistic && statistic !== "last" ? `.${statistic}` : "";
  return `${group}[${JSON.stringify(name)}]${tail}`;
}

export function Sweep() {
  const { query } = place.value;
  const where = query.get("where") ?? "";
  const selector = [...query.getAll("run").map((id) => `id:${id}`), ...query.getAll("selector")];
  const selection = { selector, where };
  const key = JSON.stringify(selection);
  const fields = useLoaded(key, async (signal) => {
    const found = await get<{ fields: { name: string; runs: number }[] }>(
      "/runs/fields",
      selection,
      signal,
    );
    return found.fields;
  });
  const names = (group: string) =>
    (fields.data ?? [])
      .filter((one) => one.name.startsWith(`${group}.`))
      .sort((one, other) => other.runs - one.runs)
      .map((one) => one.name.slice(group.length + 1));
  const hparams = names("hparams").slice(0, 100);
  const metrics = names("metrics");
  const metric = query.get("metric") ?? metrics[0] ?? "";
  const statistic = query.get("of") ?? "last";
  const result = metric ? fieldOf("metrics", metric, statistic) : "";
  const rows = useLoaded(JSON.stringify([key, result, !fields.data]), async (signal) => {
    if (!fields.data) return undefined;
    const params = { ...selection, limit: MOST_RUNS };
    // The statistic of the metric over all points; the document of a run has its other values.
    const [runs, values] = await Promise.all([
      get<RunList>("/runs", params, signal),
      result
        ? get<{ runs: Row[]; unread: number }>(
            "/runs",
            { ...params, columns: `uri,${result}` },
            signal,
          )
        : undefined,
    ]);
    const byUri = new Map(values?.runs.map((row) => [row.uri, row[result]]));
    const flat = runs.runs.map((run): Row => {
      const row: Row = { id: run.id, state: run.state };
      for (const [name, value] of Object.entries(run.hparams))
        row[fieldOf("hparams", name)] = value;
      if (result) row[result] = byUri.get(run.uri);
      return row;
    });
    return { all: runs.runs, runs: flat, total: runs.total, unread: values?.unread ?? 0 };
  });
  useLive(["run", "runs"], rows.refresh);
  useEffect(() => {
    if (!rows.data?.unread) return;
    const timer = setTimeout(rows.refresh, 1000);
    return () => clearTimeout(timer);
  }, [rows.data]);
  const all = rows.data?.runs ?? [];
  const labels = labelsOf(rows.data?.all ?? []);
  const varied = hparams.filter((name) => {
    const field = fieldOf("hparams", name);
    return new Set(all.map((row) => word(row[field]))).size > 1;
  });
  const shownAxes = query.getAll("axis");
  const axes = [
    ...(shownAxes.length > 0 ? shownAxes : varied.slice(0, MOST_AXES)).map((name) => ({
      field: fieldOf("hparams", name),
      label: name,
    })),
    ...(result
      ? [{ field: result, label: statistic === "last" ? metric : `${metric} ${statistic}` }]
      : []),
  ];
  const brushes = new Map(query.getAll("brush").flatMap((text) => readBrush(text)));
  const scaled = axes.map((one) =>
    axisOf(
      one.label,
      all.map((row) => row[one.field]),
    ),
  );
  const isChosen = (row: Row) =>
    axes.every((one, at) => {
      const axis = scaled[at];
      const brush = brushes.get(one.label);
      return !brush || (axis !== undefined && passes(placeOn(axis, row[one.field]), brush));
    });
  const chosen = all.filter(isChosen);
  const setBrush = (label: string, brush: Brush | undefined) => {
    const next = new Map(brushes);
    if (brush) next.set(label, brush);
    else next.delete(label);
    setQuery({ brush: [...next].map(([name, one]) => writeBrush(name, one)) });
  };
  const compare = () => go("/compare", { run: chosen.slice(0, 100).map((row) => String(row.id)) });
  useKeys("Sweep", [
    { key: "c", label: "Compare the chosen runs", run: compare },
    { key: "Escape", label: "Choose all runs", run: () => setQuery({ brush: undefined }) },
  ]);
  const strengths = result
    ? importance(
        all,
        varied.map((name) => fieldOf("hparams", name)),
        result,
      )
    : [];
  const labelOf = (field: string) =>
    varied.find((name) => fieldOf("hparams", name) === field) ?? field;
  const dark = isDark();
  const last = scaled.at(-1);
  const colourOf = (row: Row): string => {
    const at = result && last ? placeOn(last, row[result]) : undefined;
    return at === undefined ? (dark ? "#6c7686" : "#8b94a3") : ramp(at, dark);
  };
  const error = fields.error ?? rows.error;
  const isEmpty = rows.data !== undefined && all.length === 0;
  return (
    <div class="page">
      <Bar>
        <h1>Sweep</h1>
        <Where where={where} />
        <Choice
          label="metric"
          value={metric}
          groups={[["", metrics.map((name) => [name, name])]]}
          onChange={(next) => setQuery({ metric: next, brush: undefined })}
        />
        <Choice
          label="value"
          value={statistic}
          groups={[["", STATISTICS.map((name) => [name, name])]]}
          onChange={(next) =>
            setQuery({ of: next === "last" ? undefined : next, brush: undefined })
          }
        />
        <span class="soft" role="status">
          {format.count(chosen.length)} of {format.plural(all.length, "run")}
          {(rows.data?.total ?? 0) > all.length && ` (of ${format.count(rows.data?.total ?? 0)})`}
          {(rows.data?.unread ?? 0) > 0 && ` · reading ${format.count(rows.data?.unread ?? 0)}`}
        </span>
        {brushes.size > 0 && (
          <Button onClick={() => setQuery({ brush: undefined })}>Choose all</Button>
        )}
        <Button onClick={compare} disabled={chosen.length === 0}>
          Compare
        </Button>
      </Bar>
      <ErrorNote error={error} onRetry={rows.refresh} />
      {isEmpty ? (
        <Empty title={where ? "No run matches the filter" : "No runs yet"}>
          <p>
            A sweep is many runs with different hyperparameters, such as{" "}
            <code>aboard submit --sweep lr=0.1,0.01 -- python train.py --lr {"{lr}"}</code>
          </p>
        </Empty>
      ) : (
        <div class="sweep">
          <section class="parallel" aria-label="Parallel coordinates">
            <Parallel
              axes={scaled}
              fields={axes.map((one) => one.field)}
              rows={all}
              isChosen={isChosen}
              colourOf={colourOf}
              brushes={brushes}
              onBrush={setBrush}
              hasResult={result !== ""}
            />
          </section>
          <div class="row">
            <section aria-label="Importance">
              <h2>Importance for {metric || "a metric"}</h2>
              {strengths.length === 0 && (
                <p class="soft">This needs three runs with different hyperparameters.</p>
              )}
              <ul class="strengths">
                {strengths.slice(0, 12).map((one) => (
                  <li key={one.name}>
                    <button
                      type="button"
                      title={`Rank correlation over ${format.plural(one.runs, "run")}: show it in the scatter`}
                      onClick={() => setQuery({ sx: one.name })}
                    >
                      <span class="name">{labelOf(one.name)}</span>
                      <span class="measure">
                        <span
                          class={one.sign < 0 ? "falls" : one.sign > 0 ? "rises" : "parts"}
                          style={{ width: `${Math.round(one.strength * 50)}%` }}
                        />
                      </span>
                      <span class="number">
                        {one.sign < 0 ? "−" : one.sign > 0 ? "+" : ""}
                        {one.strength.toFixed(2)}
                      </span>
                    </button>
                  </li>
                ))}
              </ul>
            </section>
            <ScatterSection
              fields={[
                ...varied.map((name) => [fieldOf("hparams", name), name] as const),
                ...(result ? [[result, metric] as const] : []),
              ]}
              first={strengths[0]?.name ?? fieldOf("hparams", varied[0] ?? "")}
              result={result}
              rows={all}
              labels={labels}
              isChosen={isChosen}
              colourOf={colourOf}
            />
          </div>
          <Runs rows={chosen} labels={labels} axes={axes} colourOf={colourOf} />
        </div>
      )}
    </div>
  );
}

function Where(props: { where: string }) {
  const typed = useSignal(props.where);
  useEffect(() => {
    typed.value = props.where;
  }, [props.where]);
  return (
    <form
      class="filter"
      onSubmit={(event) => {
        event.preventDefault();
        setQuery({ where: typed.value.trim() || undefined, brush: undefined });
      }}
    >
      <input
        type="text"
        aria-label="Which runs"
        placeholder="Filter runs by a condition, such as hparams.lr < 0.1"
        spellcheck={false}
        autocomplete="off"
        value={typed.value}
        onInput={inputInto(typed)}
      />
    </form>
  );
}

/** A canvas that has the size of its box and is redrawn after changes. */
function useCanvas(paint: (pen: CanvasRenderingContext2D, width: number, height: number) => void) {
  const canvas = useRef<HTMLCanvasElement>(null);
  const size = useSignal({ width: 0, height: 0 });
  useLayoutEffect(() => {
    const element = canvas.current?.parentElement;
    if (!element) return;
    const look = () => {
      const { clientWidth: width, clientHeight: height } = element;
      const before = size.peek();
      if (before.width !== width || before.height !== height) size.value = { width, height };
    };
    look();
    const observer = new ResizeObserver(look);
    observer.observe(element);
    return () => observer.disconnect();
  }, []);
  const { width, height } = size.value;
  useLayoutEffect(() => {
    const element = canvas.current;
    const pen = element?.getContext("2d");
    if (!element || !pen || width === 0) return;
    const ratio = window.devicePixelRatio || 1;
    [element.width, element.height] = [Math.round(width * ratio), Math.round(height * ratio)];
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    paint(pen, width, height);
  });
  return { canvas, width, height };
}

const TOP = 28;
const BOTTOM = 12;
const SIDE = 56;

function Parallel(props: {
  axes: readonly ValueAxis[];
  fields: readonly string[];
  rows: readonly Row[];
  isChosen: (row: Row) => boolean;
  colourOf: (row: Row) => string;
  brushes: ReadonlyMap<string, Brush>;
  onBrush: (label: string, brush: Brush | undefined) => void;
  hasResult: boolean; // whether the last axis is the metric
}) {
  const { axes, fields, rows } = props;
  const drawing = useSignal<{ at: number; brush: Brush } | undefined>(undefined);
  const across = (at: number, width: number) =>
    axes.length < 2 ? width / 2 : SIDE + (at * (width - 2 * SIDE)) / (axes.length - 1);
  const { canvas, width, height } = useCanvas((pen, width, height) => {
    pen.clearRect(0, 0, width, height);
    pen.lineWidth = 1.25;
    const inner = height - TOP - BOTTOM;
    const line = (row: Row) => {
      pen.beginPath();
      let isOpen = false;
      let before = 0;
      for (const [at, axis] of axes.entries()) {
        const part = placeOn(axis, row[fields[at] ?? ""]);
        if (part === undefined) {
          isOpen = false;
          continue;
        }
        const [x, y] = [across(at, width), TOP + (1 - part) * inner];
        // Curved lines that share a point of an axis are easier to follow than straight ones.
        const bend = isOpen ? (x - across(at - 1, width)) / 2 : 0;
        if (isOpen) pen.bezierCurveTo(x - bend, before, x - bend, y, x, y);
        else pen.moveTo(x, y);
        before = y;
        isOpen = true;
      }
      pen.stroke();
    };
    const style = getComputedStyle(pen.canvas);
    pen.strokeStyle = style.getPropertyValue("--line");
    for (const row of rows) if (!props.isChosen(row)) line(row);
    pen.globalAlpha = rows.length > 300 ? 0.5 : 0.85;
    for (const row of rows) {
      if (!props.isChosen(row)) continue;
      pen.strokeStyle = props.colourOf(row);
      line(row);
    }
    pen.globalAlpha = 1;
    // The colour scale of the metric.
    const scale = pen.createLinearGradient(0, TOP + inner, 0, TOP);
    for (const part of [0, 0.25, 0.5, 0.75, 1]) scale.addColorStop(part, ramp(part, isDark()));
    pen.fillStyle = scale;
    pen.fillRect(across(axes.length - 1, width) - 2, TOP, 5, props.hasResult ? inner : 0);
  });
  const inner = Math.max(1, height - TOP - BOTTOM);
  // Near an end, snap to the end, where runs are.
  const partOf = (event: PointerEvent) => {
    const top = canvas.current?.getBoundingClientRect().top ?? 0;
    const part = 1 - (event.clientY - top - TOP) / inner;
    return part < 0.03 ? 0 : part > 0.97 ? 1 : part;
  };
  return (
    <div class="box" data-lines={rows.filter(props.isChosen).length}>
      <canvas
        ref={canvas}
        role="img"
        aria-label={`${format.plural(rows.length, "run")} over ${format.plural(axes.length, "axis").replace("axiss", "axes")}`}
      />
      {width > 0 &&
        axes.map((axis, at) => {
          const now = drawing.value?.at === at ? drawing.value.brush : props.brushes.get(axis.name);
          const place = across(at, width);
          return (
            <div class="axis" key={axis.name} style={{ left: `${place}px` }}>
              <span class="title" title={axis.name}>
                {axis.name}
              </span>
              {marks(axis).map(([part, text]) => (
                <span
                  key={text}
                  class={`mark ${at === axes.length - 1 ? "right" : ""}`}
                  style={{ top: `${TOP + (1 - part) * inner}px` }}
                  title={text}
                >
                  {text}
                </span>
              ))}
              <div
                class="strip"
                role="slider"
                tabIndex={0}
                aria-label={`Choose runs by ${axis.name}`}
                aria-valuemin={0}
                aria-valuemax={1}
                aria-valuenow={now?.[0] ?? 0}
                aria-valuetext={
                  now ? `${textOn(axis, now[0])} to ${textOn(axis, now[1])}` : "all values"
                }
                style={{ top: `${TOP}px`, height: `${inner}px` }}
                onKeyDown={(event) => {
                  const [low, high] = now ?? [0, 1];
                  const step = event.shiftKey ? [0, 0.1] : [0.1, 0];
                  const sign = { ArrowUp: 1, ArrowDown: -1 }[event.key];
                  if (event.key === "Delete" || event.key === "Backspace") {
                    props.onBrush(axis.name, undefined);
                  } else if (sign) {
                    event.preventDefault();
                    const next = [
                      Math.max(0, Math.min(1, low + sign * (step[0] ?? 0))),
                      Math.max(0, Math.min(1, high + sign * (step[1] ?? 0))),
                    ] as const;
                    if (next[0] < next[1]) props.onBrush(axis.name, next);
                  }
                }}
                onPointerDown={(event) => {
                  const element = event.currentTarget;
                  const from = partOf(event);
                  element.setPointerCapture(event.pointerId);
                  element.onpointermove = (next) => {
                    const to = partOf(next);
                    drawing.value = { at, brush: [Math.min(from, to), Math.max(from, to)] };
                  };
                  element.onpointerup = (next) => {
                    element.onpointermove = null;
                    element.onpointerup = null;
                    const to = partOf(next);
                    drawing.value = undefined;
                    const isClick = Math.abs(to - from) < 0.01;
                    props.onBrush(
                      axis.name,
                      isClick ? undefined : [Math.min(from, to), Math.max(from, to)],
                    );
                  };
                }}
              >
                {now && (
                  <div
                    class="brush"
                    style={{
                      top: `${(1 - now[1]) * 100}%`,
                      height: `${(now[1] - now[0]) * 100}%`,
                    }}
                  />
                )}
              </div>
            </div>
          );
        })}
    </div>
  );
}

function textOn(axis: ValueAxis, part: number): string {
  const value = valueOn(axis, part);
  return typeof value === "number" ? format.number(value) : value;
}

function ScatterSection(props: {
  fields: readonly (readonly [string, string])[];
  first: string;
  result: string;
  rows: readonly Row[];
  labels: Labels;
  isChosen: (row: Row) => boolean;
  colourOf: (row: Row) => string;
}) {
  const { query } = place.value;
  const x = query.get("sx") ?? props.first;
  const y = query.get("sy") ?? props.result;
  return (
    <section aria-label="Scatter">
      <div class="scatter-tools">
        <Choice
          label="x"
          value={x}
          groups={[["", props.fields]]}
          onChange={(next) => setQuery({ sx: next })}
        />
        <Choice
          label="y"
          value={y}
          groups={[["", props.fields]]}
          onChange={(next) => setQuery({ sy: next })}
        />
      </div>
      <Scatter
        x={axisOf(
          x,
          props.rows.map((row) => row[x]),
        )}
        y={axisOf(
          y,
          props.rows.map((row) => row[y]),
        )}
        rows={props.rows}
        labels={props.labels}
        isChosen={props.isChosen}
        colourOf={props.colourOf}
      />
    </section>
  );
}

const NEAR = 12;

function Scatter(props: {
  x: ValueAxis;
  y: ValueAxis;
  rows: readonly Row[];
  labels: Labels;
  isChosen: (row: Row) => boolean;
  colourOf: (row: Row) => string;
}) {
  const hovered = useSignal<Row | undefined>(undefined);
  const left = 56;
  const [top, bottom, right] = [12, 24, 16];
  const spotOf = (row: Row, width: number, height: number) => {
    const across = placeOn(props.x, row[props.x.name]);
    const up = placeOn(props.y, row[props.y.name]);
    if (across === undefined || up === undefined) return undefined;
    return [
      left + (0.03 + 0.94 * across) * (width - left - right),
      top + (0.97 - 0.94 * up) * (height - top - bottom),
    ] as const;
  };
  const { canvas, width, height } = useCanvas((pen, width, height) => {
    pen.clearRect(0, 0, width, height);
    const style = getComputedStyle(pen.canvas);
    const faint = style.getPropertyValue("--line");
    pen.font = "11px system-ui, sans-serif";
    pen.fillStyle = style.getPropertyValue("--soft");
    pen.strokeStyle = faint;
    pen.lineWidth = 1;
    pen.beginPath();
    for (const [part, text] of marks(props.y)) {
      const y = Math.round(top + (0.97 - 0.94 * part) * (height - top - bottom)) + 0.5;
      pen.moveTo(left, y);
      pen.lineTo(width - right, y);
      pen.textAlign = "right";
      pen.textBaseline = "middle";
      pen.fillText(text.slice(0, 9), left - 6, y);
    }
    for (const [part, text] of marks(props.x)) {
      const x = Math.round(left + (0.03 + 0.94 * part) * (width - left - right)) + 0.5;
      pen.moveTo(x, height - bottom);
      pen.lineTo(x, height - bottom + 4);
      pen.textAlign = "center";
      pen.textBaseline = "top";
      pen.fillText(text.slice(0, 12), x, height - bottom + 7);
    }
    pen.stroke();
    for (const row of props.rows) {
      const spot = spotOf(row, width, height);
      if (!spot) continue;
      const isChosen = props.isChosen(row);
      pen.beginPath();
      pen.arc(spot[0], spot[1], row === hovered.value ? 6 : 4, 0, 2 * Math.PI);
      pen.fillStyle = isChosen ? props.colourOf(row) : faint;
      pen.globalAlpha = isChosen ? 0.85 : 1;
      pen.fill();
      pen.globalAlpha = 1;
    }
  });
  const rowAt = (event: MouseEvent) => {
    const box = canvas.current?.getBoundingClientRect();
    let best: Row | undefined;
    let distance = NEAR;
    for (const row of props.rows) {
      const spot = spotOf(row, width, height);
      if (!box || !spot) continue;
      const away = Math.hypot(
        event.clientX - box.left - spot[0],
        event.clientY - box.top - spot[1],
      );
      if (away < distance) [best, distance] = [row, away];
    }
    return best;
  };
  const found = hovered.value;
  return (
    <div class="box scatter" data-points={props.rows.length}>
      <canvas
        ref={canvas}
        role="img"
        aria-label={`${props.y.name} over ${props.x.name}`}
        onPointerMove={(event) => {
          hovered.value = rowAt(event);
        }}
        onPointerLeave={() => {
          hovered.value = undefined;
        }}
        onClick={(event) => {
          const row = rowAt(event);
          if (row) go(`/runs/${encodeURIComponent(String(row.id))}`);
        }}
      />
      {found && (
        <div class="tip" aria-hidden="true">
          <RunName label={props.labels.get(found.id)} />{" "}
          <span class="soft">
            {format.text(found[props.x.name])} · {format.text(found[props.y.name])}
          </span>
        </div>
      )}
    </div>
  );
}

function Runs(props: {
  rows: readonly Row[];
  labels: Labels;
  axes: readonly { field: string; label: string }[];
  colourOf: (row: Row) => string;
}) {
  const sort = place.value.query.get("sort") ?? "";
  const field = sort.replace(/^-/, "");
  const rows = [...props.rows];
  if (field) {
    const sign = sort.startsWith("-") ? -1 : 1;
    const sortValue = (row: Row) => {
      const label = field === "run" ? props.labels.get(row.id) : undefined;
      return label ? label.before + label.name : row[field];
    };
    rows.sort((one, other) => sign * ordered(sortValue(one), sortValue(other)));
  }
  const columns: Column<Row>[] = [
    {
      key: "run",
      title: "run",
      width: 240,
      sort: "run",
      cell: (row) => (
        <>
          <span class="swatch dot" style={{ background: props.colourOf(row) }} />
          <a href={address(`/runs/${encodeURIComponent(String(row.id))}`)}>
            <RunName label={props.labels.get(row.id)} />
          </a>
        </>
      ),
    },
    {
      key: "state",
      title: "state",
      width: 104,
      cell: (row) => <StateMark state={row.state === null ? null : String(row.state)} />,
    },
    ...props.axes.map((axis): Column<Row> => {
      const texts = rows.slice(0, 200).map((row) => format.text(row[axis.field]));
      const longest = format.longestFraction(texts);
      return {
        key: axis.field,
        title: <span title={axis.label}>{axis.label}</span>,
        width: Math.min(160, Math.max(88, axis.label.length * 8 + 24)),
        isNumber: rows.some((row) => numeric(row[axis.field]) !== undefined),
        sort: axis.field,
        cell: (row) => (
          <ValueText
            value={row[axis.field]}
            shown={format.aligned(format.text(row[axis.field]), longest)}
          />
        ),
      };
    }),
  ];
  return (
    <Table
      label="Chosen runs"
      columns={columns}
      count={rows.length}
      at={(index) => rows[index]}
      keyOf={(row) => String(row.id)}
      sort={sort}
      onSort={(next) => setQuery({ sort: next || undefined })}
      onOpen={(row) => go(`/runs/${encodeURIComponent(String(row.id))}`)}
    />
  );
}

/** Compare numbers by size, then texts; missing values come last. */
function ordered(one: unknown, other: unknown): number {
  const [a, b] = [numeric(one), numeric(other)];
  if (a !== undefined && b !== undefined) return a - b;
  if (a !== undefined) return -1;
  if (b !== undefined) return 1;
  return word(one).localeCompare(word(other), "en", { numeric: true });
}
