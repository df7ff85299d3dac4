// The filter of runs: selectors and a condition, with completions and the hub's errors.

import { useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { type ApiError, type Facet, get, type RunList } from "../api";
import * as format from "../format";
import { asError, useLoaded } from "../loading";
import {
  type Expected,
  expected,
  type Filter,
  literal,
  RUN_FIELDS,
  readField,
  readFilter,
  TIMES,
  writeField,
  writeFilter,
} from "../question";

const PAUSE_MILLISECONDS = 150; // between a key and the request to the hub
const MOST_SHOWN = 12;
const MOST_VALUES = 20;
const SIGNS = ["==", "!=", "<", "<=", ">", ">=", "~", "in"];
const SIGN_HINTS: Record<string, string> = {
  "~": "a pattern such as cifar*",
  in: "one of several",
};
const SPANS = ['"1h ago"', '"1d ago"', '"7d ago"', '"30d ago"'];
const SELECTOR_HINTS: Record<string, string> = {
  "tag:": "runs with a tag",
  "state:": "runs in a state",
  "job:": "runs of a job",
  "not:": "all but these",
};

interface Choice {
  text: string;
  hint: string;
}

export interface FieldCount {
  name: string;
  runs: number;
}

/** The names of hyperparameters, metrics and tags, written as fields. */
export function fieldsOf(counts: readonly FieldCount[]): { field: string; runs: number }[] {
  const written = counts.flatMap(({ name, runs }) => {
    const found = /^(hparams|metrics|tags)\.(.*)$/s.exec(name);
    if (!found) return [];
    const group = found[1] as "hparams" | "metrics" | "tags";
    return [{ field: writeField({ group, name: found[2] ?? "", statistic: "" }), runs }];
  });
  return written.sort((one, other) => other.runs - one.runs);
}

/** Split what is typed at `where`: names before it, the condition after it. */
function parts(text: string): { head: string; condition: string } {
  const found = /^((?:[^"'\s]+\s+)*?where\s+|\s*)/.exec(text);
  const head = found?.[0] ?? "";
  return { head, condition: text.slice(head.length) };
}

async function choicesFor(
  next: Expected,
  fields: readonly FieldCount[],
  selectors: readonly string[],
  signal: AbortSignal,
): Promise<Choice[]> {
  if (next.kind === "field") {
    const own = RUN_FIELDS.map((text) => ({ text: text as string, hint: "" }));
    const named = fieldsOf(fields).map(({ field, runs }) => ({
      text: field,
      hint: format.plural(runs, "run"),
    }));
    return [...own, ...named];
  }
  if (next.kind === "sign") return SIGNS.map((text) => ({ text, hint: SIGN_HINTS[text] ?? "" }));
  if (next.kind === "join") return ["and", "or"].map((text) => ({ text, hint: "" }));
  const field = readField(next.field);
  if (!field) return [];
  if (TIMES.includes(field.name) && !field.group) return SPANS.map((text) => ({ text, hint: "" }));
  const query = { field: writeField(field), selector: selectors, limit: MOST_VALUES };
  const facet = await get<Facet>("/runs/facets", query, signal);
  return facet.values.map(({ value, count }) => ({
    text: literal(value),
    hint: format.plural(count, "run"),
  }));
}

/** Those that begin with what was typed, then those that contain it. */
export function fitting(choices: readonly Choice[], typed: string): Choice[] {
  const needle = typed.toLowerCase().replace(/^["']/, "");
  const rank = ({ text }: Choice) => {
    const low = text.toLowerCase().replace(/^["']/, "");
    if (low.startsWith(needle)) return 0;
    return low.includes(needle) ? 1 : 2;
  };
  const found = choices.filter((one) => rank(one) < 2 && one.text !== typed);
  return found.sort((one, other) => rank(one) - rank(other)).slice(0, MOST_SHOWN);
}

export function FilterBox(props: {
  filter: Filter;
  fields: readonly FieldCount[];
  experiments: readonly string[];
  input: { current: HTMLInputElement | null };
  onFilter: (filter: Filter) => void;
}) {
  const shown = writeFilter(props.filter);
  const typed = useSignal(shown);
  const caret = useSignal(shown.length);
  const isOpen = useSignal(false);
  const chosen = useSignal(-1);
  const choices = useSignal<readonly Choice[]>([]);
  const from = useRef(0);
  useEffect(() => {
    typed.value = shown;
  }, [shown]);

  const text = typed.value;
  const typedFilter = readFilter(text);
  const checked = useLoaded(text, async (signal): Promise<Checked | undefined> => {
    // Do not send half a name to the hub; the list below has its completions.
    if (text === shown || !typedFilter.where) return undefined;
    await new Promise((resolve) => setTimeout(resolve, PAUSE_MILLISECONDS));
    if (signal.aborted) return undefined;
    try {
      const query = { selector: typedFilter.selectors, where: typedFilter.where, count: true };
      const answer = await get<RunList>("/runs", query, signal);
      return { total: answer.total, error: undefined };
    } catch (error) {
      if (signal.aborted) return undefined;
      return { total: 0, error: asError(error) };
    }
  });

  const before = text.slice(0, caret.value);
  useEffect(() => {
    if (!isOpen.value) return;
    const controller = new AbortController();
    const { head, condition } = parts(before);
    const isNames = !head.trim() && readFilter(before).where === "";
    const next = expected(condition);
    from.current = head.length + next.start;
    const find = async () => {
      const found = await choicesFor(next, props.fields, typedFilter.selectors, controller.signal);
      const names = isNames
        ? [
            ...props.experiments.map((one) => ({ text: one, hint: "experiment" })),
            ...Object.entries(SELECTOR_HINTS).map(([one, hint]) => ({ text: one, hint })),
          ]
        : [];
      if (controller.signal.aborted) return;
      choices.value = fitting([...found, ...names], next.typed);
      chosen.value = -1;
    };
    const timer = setTimeout(() => find().catch(() => undefined), 60);
    return () => {
      controller.abort();
      clearTimeout(timer);
    };
  }, [before, isOpen.value, props.fields]);

  const note = (input: HTMLInputElement) => {
    typed.value = input.value;
    caret.value = input.selectionStart ?? input.value.length;
  };
  const accept = (choice: Choice) => {
    const space = /[:(]$/.test(choice.text) ? "" : " ";
    const next = text.slice(0, from.current) + choice.text + space;
    const whole = next + text.slice(caret.value).replace(/^\s+/, "");
    typed.value = whole;
    caret.value = next.length;
    chosen.value = -1;
    const { input } = props;
    requestAnimationFrame(() => {
      input.current?.focus();
      // Keep the caret if the user has typed more since.
      if (input.current?.value === whole) input.current.setSelectionRange(next.length, next.length);
    });
  };
  const submit = () => {
    isOpen.value = false;
    props.onFilter(readFilter(text));
    props.input.current?.blur();
  };
  const onKeyDown = (event: KeyboardEvent) => {
    const list = isOpen.value ? choices.value : [];
    const choice = list[chosen.value];
    if (event.key === "ArrowDown" && list.length > 0) {
      chosen.value = Math.min(chosen.value + 1, list.length - 1);
    } else if (event.key === "ArrowUp" && list.length > 0) {
      chosen.value = Math.max(chosen.value - 1, -1);
    } else if (event.key === "Tab" && !event.shiftKey && list.length > 0) {
      accept(choice ?? (list[0] as Choice));
    } else if (event.key === "Enter") {
      if (choice) accept(choice);
      else submit();
    } else if (event.key === "Escape") {
      if (chosen.value >= 0) chosen.value = -1;
      else {
        typed.value = shown;
        props.input.current?.blur();
      }
    } else return;
    event.preventDefault();
  };
  const hubError = text === shown ? undefined : checked.data?.error;
  // An unfinished condition is not an error while there are completions.
  const isUnfinished =
    (hubError?.picture.split("\n")[1]?.indexOf("^") ?? -1) >= typedFilter.where.length - 1;
  const error: ApiError | undefined =
    isUnfinished && choices.value.length > 0 ? undefined : hubError;
  const list = isOpen.value ? choices.value : [];
  return (
    <form
      class="filter"
      onSubmit={(event) => {
        event.preventDefault();
        submit();
      }}
    >
      <input
        ref={props.input}
        type="text"
        role="combobox"
        aria-label="Filter"
        aria-autocomplete="list"
        aria-expanded={list.length > 0}
        aria-controls="choices"
        aria-activedescendant={list[chosen.value] ? `choice-${chosen.value}` : undefined}
        aria-invalid={error !== undefined}
        aria-describedby={error ? "filter-error" : undefined}
        placeholder="Filter runs by name or condition, such as hparams.lr < 0.1"
        spellcheck={false}
        autocomplete="off"
        value={text}
        onInput={(event) => {
          note(event.currentTarget);
          isOpen.value = true;
        }}
        onSelect={(event) => note(event.currentTarget)}
        onFocus={() => {
          isOpen.value = true;
        }}
        onBlur={() => {
          isOpen.value = false;
        }}
        onKeyDown={onKeyDown}
      />
      {text && (
        <button
          type="button"
          class="clear"
          aria-label="Clear the filter"
          onClick={() => props.onFilter({ selectors: [], where: "" })}
        >
          ✕
        </button>
      )}
      {isOpen.value && (list.length > 0 || error || checked.data) && (
        <div class="below">
          {error && (
            <div class="wrong" id="filter-error" role="alert">
              {error.picture && <pre>{error.picture}</pre>}
              {error.message} <span class="soft">{error.hint}</span>
            </div>
          )}
          {!hubError && checked.data && text !== shown && (
            <div class="soft count">
              {format.plural(checked.data.total, "run")} — Enter shows them
            </div>
          )}
          <div id="choices" role="listbox" aria-label="Completions">
            {list.map((choice, index) => (
              <div
                key={choice.text}
                id={`choice-${index}`}
                role="option"
                tabIndex={-1}
                aria-selected={index === chosen.value}
                onPointerDown={(event) => {
                  event.preventDefault(); // the focus stays in the box
                  accept(choice);
                }}
              >
                <code>{choice.text}</code> <span class="soft">{choice.hint}</span>
              </div>
            ))}
          </div>
        </div>
      )}
    </form>
  );
}

interface Checked {
  total: number;
  error: ApiError | undefined;
}
