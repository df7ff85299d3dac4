// Exports the shown columns of runs as comma-separated values, loaded page by page.

import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { type ApiError, get, type Run, type Value } from "../api";
import * as format from "../format";
import { asError } from "../loading";
import type { Filter } from "../question";
import { csv } from "../view";
import { Button, ErrorNote } from "./basics";
import { Dialog } from "./dialog";

const PAGE = 1000;
const MOST_SELECTORS = 25; // per URL

type Line = Record<string, Value>;

interface Page {
  runs: Line[];
  total: number;
  unread: number;
  next: string | null;
}

/** Load fields of all runs of a filter, or of some runs, page by page. */
async function* lines(
  fields: readonly string[],
  request: Filter & { sort: readonly string[]; runs: readonly Run[] | undefined },
  signal: AbortSignal,
): AsyncGenerator<Page> {
  const columns = [...new Set(["uri", ...fields])].join(",");
  if (!request.runs) {
    const listQuery = { selector: request.selectors, where: request.where, sort: request.sort };
    for (let cursor: string | null = "0"; cursor !== null; ) {
      const page: Page = await get<Page>(
        "/runs",
        { ...listQuery, columns, limit: PAGE, cursor },
        signal,
      );
      yield page;
      cursor = page.next;
    }
    return;
  }
  for (let at = 0; at < request.runs.length; at += MOST_SELECTORS) {
    const some = request.runs.slice(at, at + MOST_SELECTORS).map((run) => run.uri);
    const page = await get<Page>("/runs", { selector: some, columns, limit: PAGE }, signal);
    const known = new Map(page.runs.map((line) => [line.uri, line]));
    const ordered = some.map((uri) => known.get(uri)).filter((one) => one !== undefined);
    yield { ...page, runs: ordered, total: request.runs.length };
  }
}

export function ExportDialog(props: {
  fields: readonly string[];
  filter: Filter;
  sort: readonly string[];
  runs: readonly Run[] | undefined; // undefined: all that match the filter
  onClose: () => void;
}) {
  const progress = useSignal({ done: 0, total: props.runs?.length ?? 0, unread: 0 });
  const url = useSignal("");
  const error = useSignal<ApiError | undefined>(undefined);
  useEffect(() => {
    const controller = new AbortController();
    const { fields, filter, sort, runs } = props;
    const columns = [...new Set([...fields, "uri"])];
    const make = async () => {
      const parts = [csv([columns])];
      let done = 0;
      for await (const page of lines(fields, { ...filter, sort, runs }, controller.signal)) {
        parts.push(csv(page.runs.map((line) => columns.map((field) => line[field]))));
        done += page.runs.length;
        progress.value = { done, total: page.total, unread: page.unread };
      }
      url.value = URL.createObjectURL(new Blob(parts, { type: "text/csv" }));
    };
    make().catch((thrown) => {
      if (!controller.signal.aborted) error.value = asError(thrown);
    });
    return () => {
      controller.abort();
      if (url.value) URL.revokeObjectURL(url.value);
    };
  }, []);
  const { done, total, unread } = progress.value;
  return (
    <Dialog title="Export" onClose={props.onClose} class="form">
      <h2>Export {total > 0 ? format.plural(total, "run") : "runs"}</h2>
      <p class="soft">
        The shown columns as comma-separated values, with full values and the URI of each run.
      </p>
      <p class="progress" role="status">
        <progress value={done} max={Math.max(total, 1)} aria-label="Progress" />{" "}
        {format.count(done)} of {format.count(total)}
      </p>
      {unread > 0 && (
        <p class="soft">
          The hub is still reading {format.plural(unread, "run")}: some of their values are missing.
        </p>
      )}
      <ErrorNote error={error.value} />
      <div class="buttons">
        <Button onClick={props.onClose}>{url.value ? "Close" : "Cancel"}</Button>
        {url.value && (
          <a class="button primary" href={url.value} download="runs.csv">
            Save runs.csv
          </a>
        )}
      </div>
    </Dialog>
  );
}
