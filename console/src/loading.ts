// Loads the data of a page; old data stays until new data arrives, and errors are shown beside it.

import { useSignal } from "@preact/signals";
import { useCallback, useEffect, useRef } from "preact/hooks";
import { ApiError } from "./api";
import { type HubEvent, type Kind, listen } from "./events";

export interface Loaded<T> {
  data: T | undefined;
  error: ApiError | undefined;
  isLoading: boolean;
  refresh: () => void;
}

const AGAIN_MILLISECONDS = 1000; // between requests that follow events
const RETRY_MILLISECONDS = 5000;
const SCROLL_MILLISECONDS = 60; // so that rows are not loaded while scrolling past

export function asError(error: unknown): ApiError {
  if (error instanceof ApiError) return error;
  const message = error instanceof Error ? error.message : String(error);
  return new ApiError(0, "console", message, "This is a bug in the console. Please report it.");
}

/**
 * Load data, and again when `key` changes. A request that is superseded is aborted; one that the hub
 * could not answer, because it restarts or is busy, is retried.
 */
export function useLoaded<T>(key: string, load: (signal: AbortSignal) => Promise<T>): Loaded<T> {
  const state = useSignal<Omit<Loaded<T>, "refresh">>({
    data: undefined,
    error: undefined,
    isLoading: true,
  });
  const latest = useRef(load);
  latest.current = load;
  const running = useRef<AbortController | undefined>(undefined);
  const timer = useRef<ReturnType<typeof setTimeout> | undefined>(undefined);

  const refresh = useCallback(() => {
    running.current?.abort();
    clearTimeout(timer.current);
    const controller = new AbortController();
    running.current = controller;
    state.value = { ...state.peek(), isLoading: true };
    latest
      .current(controller.signal)
      .then((data) => {
        if (!controller.signal.aborted) state.value = { data, error: undefined, isLoading: false };
      })
      .catch((thrown: unknown) => {
        if (controller.signal.aborted) return;
        const error = asError(thrown);
        state.value = { data: state.peek().data, error, isLoading: false };
        if (error.status === 0 || error.status === 503) {
          timer.current = setTimeout(refresh, RETRY_MILLISECONDS);
        }
      });
  }, []);

  useEffect(() => {
    refresh();
    return () => {
      running.current?.abort();
      clearTimeout(timer.current);
    };
  }, [key]);
  return { ...state.value, refresh };
}

/** Call `handle` for events while the component is shown. */
export function useEvents(kinds: readonly Kind[], handle: (event: HubEvent) => void): void {
  const latest = useRef(handle);
  latest.current = handle;
  useEffect(() => listen(kinds, (event) => latest.current(event)), []);
}

/** Call `refresh` soon after events of some kinds, at most once a second. */
export function useLive(
  kinds: readonly Kind[],
  refresh: () => void,
  concerns: (event: HubEvent) => boolean = () => true,
): void {
  const timer = useRef<ReturnType<typeof setTimeout> | undefined>(undefined);
  const last = useRef(0);
  const latest = useRef(refresh);
  latest.current = refresh;
  useEvents(kinds, (event) => {
    if (timer.current !== undefined || (event.kind !== "reset" && !concerns(event))) return;
    const wait = Math.max(0, last.current + AGAIN_MILLISECONDS - Date.now());
    timer.current = setTimeout(() => {
      timer.current = undefined;
      last.current = Date.now();
      latest.current();
    }, wait);
  });
  useEffect(() => () => clearTimeout(timer.current), []);
}

export interface Paged<T> {
  total: number;
  at: (index: number) => T | undefined;
  show: (first: number, last: number) => void;
  patch: (change: (row: T) => T) => void; // changes loaded rows in place
  error: ApiError | undefined;
  isLoading: boolean;
  refresh: () => void;
}

interface Answer<T> {
  rows: T[];
  total: number;
}

/**
 * A long list whose visible part is loaded in pages. `key` identifies the list; rows of the previous
 * list stay until those of the new one arrive.
 */
export function usePaged<T>(
  key: string,
  load: (start: number, limit: number, signal: AbortSignal) => Promise<Answer<T>>,
  size = 200,
): Paged<T> {
  const pages = useRef(new Map<number, T[]>());
  const range = useRef<[number, number]>([0, 0]);
  const shown = useRef(key);
  const total = useSignal(0);
  const version = useSignal(0);
  const extra = useSignal(0);
  const more = useRef(0);
  const loaded = useLoaded(`${key} ${extra.value}`, async (signal) => {
    // If only the visible rows changed, loaded rows are kept; otherwise all are loaded again.
    const isMore = shown.current === key && more.current !== extra.peek();
    more.current = extra.peek();
    if (isMore) await new Promise((resolve) => setTimeout(resolve, SCROLL_MILLISECONDS));
    if (signal.aborted) return;
    const [first, last] = range.current;
    const found = new Map(isMore ? pages.current : []);
    let count = isMore ? total.peek() : 0;
    for (let page = first; page <= last; page += 1) {
      if (found.has(page)) continue;
      const answer = await load(page * size, size, signal);
      found.set(page, answer.rows);
      count = answer.total;
    }
    for (const page of found.keys()) if (page < first - 8 || page > last + 8) found.delete(page);
    pages.current = found;
    shown.current = key;
    total.value = count;
    version.value += 1;
  });
  const show = useCallback((first: number, last: number) => {
    range.current = [Math.floor(first / size), Math.floor(Math.max(first, last) / size)];
    for (let page = range.current[0]; page <= range.current[1]; page += 1) {
      if (!pages.current.has(page)) {
        extra.value += 1;
        return;
      }
    }
  }, []);
  const patch = useCallback((change: (row: T) => T) => {
    for (const [page, rows] of pages.current) pages.current.set(page, rows.map(change));
    version.value += 1;
  }, []);
  version.value; // subscribes to changes of the pages
  return {
    total: total.value,
    at: (index) => pages.current.get(Math.floor(index / size))?.[index % size],
    show,
    patch,
    error: loaded.error,
    isLoading: loaded.isLoading,
    refresh: loaded.refresh,
  };
}
