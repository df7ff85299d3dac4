// The ⌘K palette: finds runs, boards, pages and actions of the page while typing.

import { useSignal } from "@preact/signals";
import { type Board, get, type RunList } from "../api";
import { type Action, actionGroups } from "../keys";
import { useLoaded } from "../loading";
import { hasSeveralRoots, rootName } from "../roots";
import { address, go } from "../router";
import { ErrorNote } from "./basics";
import { Dialog } from "./dialog";

const MOST_RUNS = 8;

interface Entry extends Action {
  kind: string;
  id?: string; // if several have the same label
}

/** Whether `label` has all letters of `typed` in this order; case does not matter. */
export function matches(label: string, typed: string): boolean {
  let at = 0;
  const text = label.toLowerCase();
  for (const letter of typed.toLowerCase().replace(/\s/g, "")) {
    at = text.indexOf(letter, at) + 1;
    if (at === 0) return false;
  }
  return true;
}

async function search(typed: string, signal: AbortSignal): Promise<Entry[]> {
  if (!typed) return [];
  await new Promise((resolve) => setTimeout(resolve, 120));
  if (signal.aborted) return [];
  const where = `${JSON.stringify(typed)} in run`;
  const [runs, boards] = await Promise.all([
    get<RunList>("/runs", { where, limit: MOST_RUNS }, signal),
    get<{ boards: Board[] }>("/boards", { limit: 200 }, signal),
  ]);
  const found = boards.boards.filter((board) => matches(`${board.name} ${board.title}`, typed));
  return [
    ...runs.runs.map((run) => ({
      kind: "run",
      id: run.id,
      hint: hasSeveralRoots() ? rootName(run.root) : "run",
      label: run.experiment ? `${run.experiment}/${run.name}` : run.name,
      run: () => go(`/runs/${encodeURIComponent(run.id)}`),
    })),
    ...found.slice(0, MOST_RUNS).map((board) => ({
      kind: "board",
      label: board.title || board.name,
      run: () => window.location.assign(address(`/b/${board.id}/`)),
    })),
  ];
}

export function Find(props: { onClose: () => void }) {
  const typed = useSignal("");
  const chosen = useSignal(0);
  const found = useLoaded(typed.value, (signal) => search(typed.value.trim(), signal));
  const actions = actionGroups.value.flatMap((group) =>
    group.entries().map((action): Entry => ({ kind: group.name.toLowerCase(), ...action })),
  );
  const fitting = actions.filter((action) => matches(action.label, typed.value));
  const entries = [...fitting, ...(found.data ?? [])];
  const at = Math.min(chosen.value, entries.length - 1);
  const run = (entry: Entry | undefined) => {
    if (!entry) return;
    props.onClose();
    entry.run();
  };
  const onKeyDown = (event: KeyboardEvent) => {
    if (event.key === "ArrowDown") chosen.value = Math.min(at + 1, entries.length - 1);
    else if (event.key === "ArrowUp") chosen.value = Math.max(at - 1, 0);
    else if (event.key === "Enter") run(entries[at]);
    else return;
    event.preventDefault();
  };
  return (
    <Dialog title="Find" onClose={props.onClose} class="finder">
      <input
        type="text"
        role="combobox"
        aria-expanded="true"
        aria-controls="found"
        aria-activedescendant={entries[at] ? `found-${at}` : undefined}
        placeholder="Find runs, boards, pages, actions"
        aria-label="Find"
        value={typed.value}
        onInput={(event) => {
          typed.value = event.currentTarget.value;
          chosen.value = 0;
        }}
        onKeyDown={onKeyDown}
      />
      <ErrorNote error={found.error} />
      <div id="found" role="listbox" aria-label="Found">
        {entries.map((entry, index) => (
          <div
            key={entry.id ?? `${entry.kind} ${entry.label}`}
            id={`found-${index}`}
            role="option"
            tabIndex={-1}
            aria-selected={index === at}
            onClick={() => run(entry)}
            onKeyDown={() => undefined}
          >
            <span class="label">{entry.label}</span>{" "}
            <span class="soft">{entry.hint ?? entry.kind}</span>
          </div>
        ))}
      </div>
      {entries.length === 0 && !found.isLoading && <p class="soft">No results.</p>}
    </Dialog>
  );
}
