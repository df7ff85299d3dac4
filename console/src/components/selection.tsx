// Actions on selected runs: open a board, tag, write a note, delete.

import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { type ApiError, type Board, change, get, type Run, type RunInFull } from "../api";
import * as format from "../format";
import { asError } from "../loading";
import { labelsOf } from "../roots";
import { address } from "../router";
import { Button, ErrorNote, RunName } from "./basics";
import { Dialog } from "./dialog";
import { inputInto } from "./form";
import { say } from "./toast";

export function labelOf(run: Pick<Run, "experiment" | "name">): string {
  return run.experiment ? `${run.experiment}/${run.name}` : run.name;
}

const PLAIN = /^[^\s,/:*?[~.=][^,/:*?[=]*$/;
const RANGE = /^\D*\d+-\D*\d+$/;

/**
 * The selectors of runs: their names, which a board then shows, if they are unambiguous; otherwise
 * their URIs.
 */
export function selectorsOf(runs: readonly Pick<Run, "experiment" | "name" | "uri" | "root">[]) {
  const isOneRoot = new Set(runs.map((run) => run.root)).size === 1;
  return runs.map((run) => {
    const parts = [run.experiment, run.name];
    const isPlain = parts.every((part) => PLAIN.test(part) && part === part.trim());
    return isOneRoot && isPlain && !RANGE.test(run.name) ? labelOf(run) : run.uri;
  });
}

const pathOf = (run: Run) => `/runs/${encodeURIComponent(run.id)}`;

/** Start a board of some runs, or find the board that shows them, and go there. */
export async function openBoard(runs: readonly Run[], options: Record<string, unknown> = {}) {
  const body = { selectors: selectorsOf(runs), ...options };
  const board = await change<Board>("POST", "/boards", body);
  window.location.assign(address(`/b/${board.id}/`));
}

interface DialogProps {
  runs: readonly Run[];
  onClose: () => void;
}

interface Failure {
  run: string;
  error: ApiError;
}

/** Process runs one after another, with progress and errors. */
function useWork(runs: readonly Run[]) {
  const done = useSignal<number | undefined>(undefined);
  const failures = useSignal<readonly Failure[]>([]);
  const start = async (work: (run: Run) => Promise<unknown>) => {
    failures.value = [];
    done.value = 0;
    for (const run of runs) {
      try {
        await work(run);
      } catch (thrown) {
        failures.value = [...failures.value, { run: labelOf(run), error: asError(thrown) }];
      }
      done.value += 1;
    }
    done.value = undefined;
    return failures.value.length === 0;
  };
  return { done: done.value, failures: failures.value, start };
}

function Progress(props: {
  done: number | undefined;
  count: number;
  failures: readonly Failure[];
}) {
  const { done, count, failures } = props;
  return (
    <>
      {done !== undefined && count > 1 && (
        <p class="progress" role="status">
          <progress value={done} max={count} aria-label="Progress" /> {format.count(done)} of{" "}
          {format.count(count)}
        </p>
      )}
      {failures.map(({ run, error }) => (
        <div key={run} class="failure">
          <strong>{run}</strong>
          <ErrorNote error={error} />
        </div>
      ))}
    </>
  );
}

export function BoardDialog(props: DialogProps) {
  const name = useSignal("");
  const template = useSignal("");
  const error = useSignal<ApiError | undefined>(undefined);
  const isBusy = useSignal(false);
  const submit = async () => {
    isBusy.value = true;
    try {
      const options = { name: name.value || undefined, template: template.value || undefined };
      await openBoard(props.runs, options);
    } catch (thrown) {
      error.value = asError(thrown);
      isBusy.value = false;
    }
  };
  return (
    <Dialog title="Open a board" onClose={props.onClose} class="form">
      <h2>Open a board of {format.plural(props.runs.length, "run")}</h2>
      <form
        onSubmit={(event) => {
          event.preventDefault();
          submit();
        }}
      >
        <label>
          Run names
          <input
            type="text"
            class="text"
            placeholder="{experiment}/{run} lr={hparams.lr}"
            value={template.value}
            onInput={inputInto(template)}
          />
        </label>
        <p class="soft">
          A template with fields of the run in braces. Without one, runs keep their names.
        </p>
        <label>
          Board name
          <input
            type="text"
            class="text"
            placeholder="generated"
            value={name.value}
            onInput={inputInto(name)}
          />
        </label>
        <ErrorNote error={error.value} />
        <div class="buttons">
          <Button onClick={props.onClose}>Cancel</Button>
          <button type="submit" class="button primary" disabled={isBusy.value}>
            Open
          </button>
        </div>
      </form>
    </Dialog>
  );
}

/** Parse `name` or `name=value`; `true` and numbers are typed values. */
export function readTag(text: string): [string, string | number | boolean] {
  const at = text.indexOf("=");
  if (at < 0) return [text.trim(), true];
  const value = text.slice(at + 1).trim();
  const isNumber = value !== "" && Number.isFinite(Number(value)) && !/^0[xob]/i.test(value);
  return [text.slice(0, at).trim(), isNumber ? Number(value) : value];
}

export function TagDialog(props: DialogProps & { onChanged: () => void }) {
  const { runs } = props;
  const typed = useSignal("");
  const work = useWork(runs);
  const counts = new Map<string, number>();
  for (const run of runs) {
    for (const name of Object.keys(run.tags)) counts.set(name, (counts.get(name) ?? 0) + 1);
  }
  const apply = async (tags: Record<string, unknown>, message: string) => {
    const isGood = await work.start((run) => change("PATCH", pathOf(run), { tags }));
    props.onChanged();
    if (!isGood) return;
    say(message);
    props.onClose();
  };
  const what = format.plural(runs.length, "run");
  return (
    <Dialog title="Tag" onClose={props.onClose} class="form">
      <h2>Tag {what}</h2>
      <form
        onSubmit={(event) => {
          event.preventDefault();
          const [name, value] = readTag(typed.value);
          if (name) apply({ [name]: value }, `Tagged ${what} with ${name}.`);
        }}
      >
        <label>
          Tag, or tag=value
          <input type="text" class="text" value={typed.value} onInput={inputInto(typed)} />
        </label>
        {counts.size > 0 && (
          <ul class="tags" aria-label="Tags of these runs">
            {[...counts].map(([name, count]) => (
              <li key={name}>
                {name} <span class="soft">{count < runs.length ? format.count(count) : ""}</span>
                <Button
                  kind="bare"
                  label={`Remove the tag ${name}`}
                  onClick={() => apply({ [name]: null }, `Removed the tag ${name}.`)}
                >
                  ✕
                </Button>
              </li>
            ))}
          </ul>
        )}
        <Progress done={work.done} count={runs.length} failures={work.failures} />
        <div class="buttons">
          <Button onClick={props.onClose}>Cancel</Button>
          <button
            type="submit"
            class="button primary"
            disabled={!typed.value.trim() || work.done !== undefined}
          >
            Tag
          </button>
        </div>
      </form>
    </Dialog>
  );
}

export function NoteDialog(props: DialogProps & { onChanged: () => void }) {
  const { runs } = props;
  const note = useSignal("");
  const error = useSignal<ApiError | undefined>(undefined);
  const work = useWork(runs);
  const [only] = runs;
  useEffect(() => {
    if (!only || runs.length > 1) return;
    get<RunInFull>(pathOf(only)).then(
      (run) => {
        note.value ||= run.note; // unless the user has typed in the meantime
      },
      (thrown) => {
        error.value = asError(thrown);
      },
    );
  }, []);
  const submit = async () => {
    const isGood = await work.start((run) => change("PATCH", pathOf(run), { note: note.value }));
    props.onChanged();
    if (!isGood) return;
    say(`Saved the note of ${format.plural(runs.length, "run")}.`);
    props.onClose();
  };
  return (
    <Dialog title="Note" onClose={props.onClose} class="form">
      <h2>
        Note of {only && runs.length === 1 ? labelOf(only) : format.plural(runs.length, "run")}
      </h2>
      <form
        onSubmit={(event) => {
          event.preventDefault();
          submit();
        }}
      >
        <label>
          {runs.length > 1 ? "Replaces the note of each run" : "Note"}
          <textarea
            class="text"
            rows={6}
            maxLength={10_000}
            value={note.value}
            onInput={inputInto(note)}
          />
        </label>
        <ErrorNote error={error.value} />
        <Progress done={work.done} count={runs.length} failures={work.failures} />
        <div class="buttons">
          <Button onClick={props.onClose}>Cancel</Button>
          <button type="submit" class="button primary" disabled={work.done !== undefined}>
            Write
          </button>
        </div>
      </form>
    </Dialog>
  );
}

interface Deletion {
  run: string;
  deleted: boolean;
  files: number;
  bytes: number;
  confirm: string | null;
  problems: string[];
}

interface Doomed {
  run: Run;
  loss: Deletion;
}

const MOST_LISTED = 100;

export function DeleteDialog(props: DialogProps & { onDeleted: (ids: string[]) => void }) {
  const { runs } = props;
  const doomed = useSignal<readonly Doomed[] | undefined>(undefined);
  const refused = useSignal<readonly Failure[]>([]);
  const force = useSignal(false);
  const looked = useSignal(0);
  useEffect(() => {
    const controller = new AbortController();
    const look = async () => {
      const found: Doomed[] = [];
      const failed: Failure[] = [];
      doomed.value = undefined;
      looked.value = 0;
      for (const run of runs) {
        try {
          const query = force.value ? { force: true } : {};
          const options = { query, signal: controller.signal };
          const loss = await change<Deletion>("DELETE", pathOf(run), undefined, options);
          found.push({ run, loss });
        } catch (thrown) {
          if (controller.signal.aborted) return;
          failed.push({ run: labelOf(run), error: asError(thrown) });
        }
        looked.value += 1;
      }
      doomed.value = found;
      refused.value = failed;
    };
    look();
    return () => controller.abort();
  }, [force.value]);
  const found = doomed.value ?? [];
  const work = useWork(found.map((one) => one.run));
  const total = (pick: (loss: Deletion) => number) =>
    found.reduce((sum, one) => sum + pick(one.loss), 0);
  const files = total((loss) => loss.files);
  const bytes = total((loss) => loss.bytes);
  const losses = new Map(found.map((one) => [one.run.id, one.loss]));
  const remove = async () => {
    const gone: string[] = [];
    const isGood = await work.start(async (run) => {
      const confirm = losses.get(run.id)?.confirm ?? "";
      const query = force.value ? { confirm, force: true } : { confirm };
      const answer = await change<Deletion>("DELETE", pathOf(run), undefined, { query });
      if (answer.problems.length > 0) throw new Error(answer.problems.join(" "));
      gone.push(run.id);
    });
    props.onDeleted(gone);
    if (!isGood) return;
    say(`Deleted ${format.plural(gone.length, "run")}.`);
    props.onClose();
  };
  const labels = labelsOf(runs, true);
  const isRunning = refused.value.some(({ error }) => error.code === "conflict");
  return (
    <Dialog title="Delete runs" onClose={props.onClose} class="form">
      <h2>Delete {format.plural(runs.length, "run")}?</h2>
      {doomed.value === undefined ? (
        <p class="soft" role="status">
          Counting files: {format.count(looked.value)} of {format.count(runs.length)}
        </p>
      ) : (
        <>
          {found.length > 0 && (
            <p>
              {format.plural(files, "file")}, {format.bytes(bytes)}, will be deleted permanently:
              the curves, logs and records of
            </p>
          )}
          <ul class="list">
            {found.slice(0, MOST_LISTED).map(({ run, loss }) => (
              <li key={run.id}>
                <span title={run.uri}>
                  <RunName label={labels.get(run.id)} />
                </span>
                <span class="soft">
                  {format.plural(loss.files, "file")}, {format.bytes(loss.bytes)}
                </span>
              </li>
            ))}
          </ul>
          {found.length > MOST_LISTED && (
            <p class="soft">and {format.count(found.length - MOST_LISTED)} more</p>
          )}
          {refused.value.map(({ run, error }) => (
            <div key={run} class="failure">
              <strong>{run}</strong>
              <ErrorNote error={error} />
            </div>
          ))}
          {(isRunning || force.value) && (
            <label class="check">
              <input
                type="checkbox"
                checked={force.value}
                onChange={(event) => {
                  force.value = event.currentTarget.checked;
                }}
              />{" "}
              Include runs that are still running
            </label>
          )}
        </>
      )}
      <Progress done={work.done} count={found.length} failures={work.failures} />
      <div class="buttons">
        <Button onClick={props.onClose}>Cancel</Button>
        <Button
          kind="danger"
          disabled={found.length === 0 || work.done !== undefined}
          onClick={remove}
        >
          Delete {format.plural(found.length, "run")}
        </Button>
      </div>
    </Dialog>
  );
}
