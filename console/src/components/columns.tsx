// Dialogs that choose the columns of the table of runs, and the fields by which it is grouped.

import { useSignal } from "@preact/signals";
import { RUN_FIELDS, readField, writeField } from "../question";
import { type ColumnSpec, columnKey, moved } from "../view";
import { Button } from "./basics";
import { Dialog } from "./dialog";
import { type FieldCount, fieldsOf } from "./filter";
import { matches } from "./find";
import { inputInto } from "./form";

const SHOWN_STATISTICS = ["last", "min", "max", "mean"] as const;
const MOST_LISTED = 200; // per group, until the user types

export function ColumnsDialog(props: {
  columns: readonly ColumnSpec[];
  fields: readonly FieldCount[];
  onChange: (columns: readonly ColumnSpec[] | undefined) => void; // undefined: the default
  onClose: () => void;
}) {
  const typed = useSignal("");
  const on = new Set(props.columns.map(columnKey));
  const toggle = (field: string, isCurve = false) => {
    const spec: ColumnSpec = { field, isCurve, width: undefined };
    const key = columnKey(spec);
    const next = on.has(key)
      ? props.columns.filter((one) => columnKey(one) !== key)
      : [...props.columns, spec];
    if (next.length > 0) props.onChange(next);
  };
  const all = fieldsOf(props.fields).map(({ field }) => field);
  const within = (group: string) =>
    all
      .filter((field) => readField(field)?.group === group && matches(field, typed.value))
      .slice(0, MOST_LISTED);
  const box = (field: string, label: string, isCurve = false) => (
    <label key={label}>
      <input
        type="checkbox"
        checked={on.has((isCurve ? "~" : "") + field)}
        onChange={() => toggle(field, isCurve)}
        aria-label={isCurve ? `${field} curve` : field}
      />{" "}
      <span title={field}>{label}</span>
    </label>
  );
  const fixed = RUN_FIELDS.filter((field) => matches(field, typed.value));
  const metrics = within("metrics");
  const move = (index: number, step: number) => {
    const to = index + step;
    if (to >= 0 && to < props.columns.length) props.onChange(moved(props.columns, index, to));
  };
  return (
    <Dialog title="Columns" onClose={props.onClose} class="columns-dialog">
      <h2>Columns</h2>
      <input
        type="text"
        class="text"
        placeholder="Find a field"
        aria-label="Find a field"
        value={typed.value}
        onInput={inputInto(typed)}
      />
      <div class="two">
        <div class="choices">
          {fixed.length > 0 && <h3>Run</h3>}
          {fixed.map((field) => box(field, field))}
          {(["hparams", "tags"] as const).map((group) => {
            const found = within(group);
            return (
              found.length > 0 && (
                <div key={group}>
                  <h3>{group === "hparams" ? "Hyperparameters" : "Tags"}</h3>
                  {found.map((field) => box(field, readField(field)?.name ?? field))}
                </div>
              )
            );
          })}
          {metrics.length > 0 && <h3>Metrics</h3>}
          {metrics.map((field) => {
            const known = readField(field);
            if (!known) return null;
            return (
              <div key={field} class="metric">
                <span class="name" title={field}>
                  {known.name}
                </span>
                {SHOWN_STATISTICS.map((statistic) =>
                  box(writeField({ ...known, statistic }), statistic),
                )}
                {box(field, "curve", true)}
              </div>
            );
          })}
        </div>
        <ol class="shown" aria-label="Shown, from left to right">
          {props.columns.map((spec, index) => (
            <li key={columnKey(spec)}>
              <span title={spec.field}>
                {spec.field}
                {spec.isCurve && " ∿"}
              </span>
              <Button kind="bare" label={`Move ${spec.field} left`} onClick={() => move(index, -1)}>
                ↑
              </Button>
              <Button kind="bare" label={`Move ${spec.field} right`} onClick={() => move(index, 1)}>
                ↓
              </Button>
              <Button
                kind="bare"
                label={`Remove ${spec.field}`}
                onClick={() => toggle(spec.field, spec.isCurve)}
              >
                ✕
              </Button>
            </li>
          ))}
        </ol>
      </div>
      <div class="buttons">
        <Button onClick={() => props.onChange(undefined)}>Reset</Button>
        <Button kind="primary" onClick={props.onClose}>
          Done
        </Button>
      </div>
    </Dialog>
  );
}

export function GroupDialog(props: {
  groupBy: readonly string[];
  fields: readonly string[];
  onChange: (groupBy: readonly string[]) => void;
  onClose: () => void;
}) {
  const typed = useSignal("");
  const toggle = (field: string) =>
    props.onChange(
      props.groupBy.includes(field)
        ? props.groupBy.filter((one) => one !== field)
        : [...props.groupBy, field],
    );
  const found = props.fields.filter((field) => matches(field, typed.value)).slice(0, MOST_LISTED);
  return (
    <Dialog title="Group runs" onClose={props.onClose} class="columns-dialog">
      <h2>Group runs by</h2>
      <input
        type="text"
        class="text"
        placeholder="Find a field"
        aria-label="Find a field"
        value={typed.value}
        onInput={inputInto(typed)}
      />
      <div class="choices">
        {found.map((field) => (
          <label key={field}>
            <input
              type="checkbox"
              checked={props.groupBy.includes(field)}
              onChange={() => toggle(field)}
            />{" "}
            {field}
          </label>
        ))}
      </div>
      <div class="buttons">
        <Button onClick={() => props.onChange([])} disabled={props.groupBy.length === 0}>
          Ungroup
        </Button>
        <Button kind="primary" onClick={props.onClose}>
          Done
        </Button>
      </div>
    </Dialog>
  );
}
