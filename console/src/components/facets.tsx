// Facets: the values of some fields with the number of runs; a click narrows the filter.

import type { ComponentChildren } from "preact";
import { type Facet, get } from "../api";
import * as format from "../format";
import { useLive, useLoaded } from "../loading";
import { choice, type Filter, literal, toggled } from "../question";
import { isTime, titleOf } from "../view";
import { Button, RootName, StateMark } from "./basics";

const MOST_VALUES = 12;

export function Facets(props: {
  fields: readonly string[];
  filter: Filter;
  all: readonly string[]; // fields that can be added
  onFilter: (where: string) => void;
  onFields: (fields: readonly string[]) => void;
}) {
  const others = props.all.filter((field) => !props.fields.includes(field));
  return (
    <aside class="facets" aria-label="Facets">
      {props.fields.map((field) => (
        <OneFacet
          key={field}
          field={field}
          filter={props.filter}
          onFilter={props.onFilter}
          onRemove={() => props.onFields(props.fields.filter((one) => one !== field))}
        />
      ))}
      {others.length > 0 && (
        <select
          aria-label="Add a facet"
          value=""
          onChange={(event) => {
            const field = event.currentTarget.value;
            if (field) props.onFields([...props.fields, field]);
            event.currentTarget.value = "";
          }}
        >
          <option value="">+ facet</option>
          {others.map((field) => (
            <option key={field} value={field}>
              {field}
            </option>
          ))}
        </select>
      )}
    </aside>
  );
}

function OneFacet(props: {
  field: string;
  filter: Filter;
  onFilter: (where: string) => void;
  onRemove: () => void;
}) {
  const { field, filter } = props;
  // Counted with the other conditions only, so that another value can be added.
  const { values: on, rest } = choice(filter.where, field);
  const key = JSON.stringify([field, filter.selectors, rest]);
  const facet = useLoaded(key, (signal) => {
    const query = { field, selector: filter.selectors, where: rest, limit: MOST_VALUES };
    return get<Facet>("/runs/facets", query, signal);
  });
  useLive(["run", "runs"], facet.refresh);
  const found = facet.data;
  const lines = (found?.values ?? []).map(({ value, count }) => ({
    text: literal(value),
    label: shown(field, value),
    title: String(value),
    count,
    // NaN and infinities are counted by name, but queries have no literals for them.
    disabled: field.startsWith("metrics") && typeof value === "string",
  }));
  if (found && found.missing > 0 && found.missing < found.runs) {
    lines.push({
      text: "none",
      label: "—",
      title: "no value",
      count: found.missing,
      disabled: false,
    });
  }
  const runs = Math.max(1, found?.runs ?? 0);
  return (
    <section aria-label={field}>
      <h3 title={field}>
        <span>{titleOf(field)}</span>
        <Button kind="bare" label={`Remove the facet ${field}`} onClick={props.onRemove}>
          ✕
        </Button>
      </h3>
      {facet.error && <p class="soft">{facet.error.message}</p>}
      <ul>
        {lines.map((line) => (
          <li key={line.text}>
            <button
              type="button"
              title={line.title}
              disabled={line.disabled}
              aria-pressed={on.includes(line.text)}
              onClick={() => props.onFilter(toggled(filter.where, field, line.text))}
            >
              <span class="value">{line.label}</span>
              <span class="number">{format.count(line.count)}</span>
              <span class="share" style={{ width: `${(100 * line.count) / runs}%` }} />
            </button>
          </li>
        ))}
        {(found?.bins ?? []).map(({ low, high, count }) => {
          const condition = `${low} <= ${field} <= ${high}`;
          return (
            <li key={condition}>
              <button
                type="button"
                title={`${low} to ${high}`}
                disabled={count === 0}
                onClick={() => props.onFilter([rest, condition].filter(Boolean).join(" and "))}
              >
                <span class="value">
                  {format.number(low)} – {format.number(high)}
                </span>
                <span class="number">{format.count(count)}</span>
              </button>
            </li>
          );
        })}
      </ul>
      {found && found.distinct > lines.length && found.bins?.length === 0 && (
        <p class="soft">{format.count(found.distinct - found.values.length)} more values</p>
      )}
      {found && lines.length === 0 && found.bins?.length === 0 && <p class="soft">no values</p>}
    </section>
  );
}

function shown(field: string, value: unknown): ComponentChildren {
  if (field === "state") return <StateMark state={String(value)} />;
  if (field === "root") return <RootName uri={String(value)} />;
  return isTime(field) ? format.relative(String(value)) : format.text(value);
}
