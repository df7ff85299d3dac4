// The curves of a page, by tag. They are loaded when they become visible, in full resolution after
// a zoom, and again for runs with new points. Old curves stay until new ones have arrived.

import { useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { type ApiError, type SeriesRequest, series } from "./api";
import { asError, useEvents } from "./loading";
import { ascends, type Range, refined } from "./plot";
import type { Curve } from "./series";

export type CurveOptions = Omit<SeriesRequest, "tags" | "start" | "stop">;

interface Held {
  key: string; // of the options with which it was loaded
  whole: Curve[];
  window?: { range: Range; curves: Curve[] } | undefined;
}

export interface Curves {
  of: (tag: string) => Curve[];
  isLoading: (tag: string) => boolean;
  error: ApiError | undefined;
  unread: number;
  refresh: () => void;
}

const GATHER_MILLISECONDS = 20; // charts that become visible together are one request
const LIVE_MILLISECONDS = 500;
const UNREAD_MILLISECONDS = 500;
const MOST_TAGS = 12; // per request
const SPARE = 0.02; // of a window, on both sides

/** How many points each curve needs, by the number of curves. */
export function samplesFor(runs: number): number {
  return runs <= 10 ? 1000 : runs <= 50 ? 500 : 300;
}

function identity(curve: Curve): string {
  return JSON.stringify([curve.uri, curve.run, curve.line, curve.tag]);
}

/** Curves with the points of a window replaced by more detailed ones. */
export function composed(held: Held | undefined, range: Range | undefined): Curve[] {
  if (!held?.window || !range) return held?.whole ?? [];
  const { window } = held;
  const details = new Map(window.curves.map((curve) => [identity(curve), curve]));
  return held.whole.map((curve) => {
    const detail = details.get(identity(curve));
    if (!detail || detail.x.length === 0) return curve;
    if (ascends(curve.x) && ascends(detail.x)) {
      return { ...curve, ...refined(curve, detail, window.range) };
    }
    return range[0] >= window.range[0] && range[1] <= window.range[1] ? detail : curve;
  });
}

/** Curves with those of some runs replaced. */
export function replaced(before: readonly Curve[], newer: readonly Curve[]): Curve[] {
  const found = new Map(newer.map((curve) => [identity(curve), curve]));
  const kept = before.map((curve) => {
    const id = identity(curve);
    const now = found.get(id) ?? curve;
    found.delete(id);
    return now;
  });
  return [...kept, ...found.values()];
}

/**
 * Load the curves of the visible tags. `ids` are the runs, by `selectors` of the options; `range` is
 * the window to load in full resolution.
 */
export function useCurves(
  ids: readonly string[],
  options: CurveOptions,
  tags: readonly string[],
  range: Range | undefined,
): Curves {
  const held = useRef(new Map<string, Held>());
  const cache = useRef(new Map<string, { from: Held; range: string; curves: Curve[] }>());
  const version = useSignal(0);
  const error = useSignal<ApiError | undefined>(undefined);
  const unread = useSignal(0);
  const again = useSignal(0);
  const changed = useRef(new Set<string>());
  const key = JSON.stringify(options);
  const loadKey = JSON.stringify([key, range ?? null, tags, again.value]);
  const latest = useRef({ ids, options, tags, range, key });
  latest.current = { ids, options, tags, range, key };

  const put = (tag: string, next: Held) => {
    held.current.set(tag, next);
    version.value += 1;
  };

  // Load visible curves that are missing, or missing for this window.
  useEffect(() => {
    const controller = new AbortController();
    const { signal } = controller;
    const load = async () => {
      const missing = tags.filter((tag) => held.current.get(tag)?.key !== key);
      await Promise.all(parts(missing).map(loadWhole));
      if (!range) return;
      const blurred = tags.filter((tag) => !covers(held.current.get(tag), key, range));
      await Promise.all(parts(blurred).map((part) => loadWindow(part, range)));
    };
    const loadWhole = async (part: string[]) => {
      const answer = await series({ ...options, tags: part }, signal);
      for (const tag of part) {
        const own = answer.series.filter((curve) => curve.tag === tag);
        put(tag, { key, whole: own });
      }
      unread.value = answer.unread;
    };
    const loadWindow = async (part: string[], range: Range) => {
      const spare = (range[1] - range[0]) * SPARE;
      const window = { start: range[0] - spare, stop: range[1] + spare };
      const answer = await series({ ...options, tags: part, ...window }, signal);
      for (const tag of part) {
        const before = held.current.get(tag);
        if (before?.key !== key) continue;
        const curves = answer.series.filter((curve) => curve.tag === tag);
        put(tag, { ...before, window: { range: [window.start, window.stop], curves } });
      }
    };
    const timer = setTimeout(() => {
      load()
        .then(() => {
          error.value = undefined;
        })
        .catch((thrown: unknown) => {
          if (!signal.aborted) error.value = asError(thrown);
        });
    }, GATHER_MILLISECONDS);
    return () => {
      clearTimeout(timer);
      controller.abort();
    };
  }, [loadKey]);

  // Request again what the hub has not read yet.
  useEffect(() => {
    if (unread.value === 0) return;
    const timer = setTimeout(() => {
      for (const one of held.current.values()) one.key = "";
      again.value += 1;
    }, UNREAD_MILLISECONDS);
    return () => clearTimeout(timer);
  }, [unread.value, version.value]);

  // After new points, load only the runs that have them, unless groups are drawn.
  const timer = useRef<ReturnType<typeof setTimeout> | undefined>(undefined);
  const running = useRef<AbortController | undefined>(undefined);
  const refreshChanged = async () => {
    timer.current = undefined;
    const now = latest.current;
    const own = [...changed.current].filter((id) => now.ids.includes(id));
    changed.current.clear();
    const shown = now.tags.filter((tag) => held.current.get(tag)?.key === now.key);
    if (own.length === 0 || shown.length === 0) return;
    const isGrouped = (now.options.group_by?.length ?? 0) > 0;
    const selectors = isGrouped ? now.options.selectors : own.map((id) => `id:${id}`);
    const controller = new AbortController();
    running.current = controller;
    try {
      for (const part of parts(shown)) {
        const request = { ...now.options, selectors, tags: part };
        const answer = await series(request, controller.signal);
        for (const tag of part) {
          const before = held.current.get(tag);
          if (before?.key !== now.key) continue;
          const newer = answer.series.filter((curve) => curve.tag === tag);
          put(tag, { ...before, whole: replaced(before.whole, newer) });
        }
        // A window at the end of a curve grows with it.
        const { range } = now;
        if (!range) continue;
        const detail = await series(
          { ...request, start: range[0], stop: range[1] },
          controller.signal,
        );
        for (const tag of part) {
          const before = held.current.get(tag);
          if (before?.key !== now.key || !before.window) continue;
          const newer = detail.series.filter((curve) => curve.tag === tag);
          const curves = replaced(before.window.curves, newer);
          put(tag, { ...before, window: { ...before.window, curves } });
        }
      }
    } catch (thrown) {
      if (!controller.signal.aborted) error.value = asError(thrown);
    }
  };
  useEvents(["points"], (event) => {
    if (event.kind === "reset") for (const id of latest.current.ids) changed.current.add(id);
    if (event.kind === "points") {
      for (const id of event.runs ?? latest.current.ids) changed.current.add(id);
    }
    timer.current ??= setTimeout(refreshChanged, LIVE_MILLISECONDS);
  });
  useEffect(
    () => () => {
      clearTimeout(timer.current);
      running.current?.abort();
    },
    [],
  );

  version.value; // subscribes to changes
  return {
    of: (tag) => {
      const from = held.current.get(tag);
      if (!from) return [];
      const place = JSON.stringify(range ?? null);
      const before = cache.current.get(tag);
      if (before && before.from === from && before.range === place) return before.curves;
      const curves = composed(from, range);
      cache.current.set(tag, { from, range: place, curves });
      return curves;
    },
    isLoading: (tag) => {
      const one = held.current.get(tag);
      return one?.key !== key || (range !== undefined && !covers(one, key, range));
    },
    error: error.value,
    unread: unread.value,
    refresh: () => {
      for (const one of held.current.values()) one.key = "";
      again.value += 1;
    },
  };
}

function covers(held: Held | undefined, key: string, range: Range): boolean {
  const window = held?.window;
  if (!window || held.key !== key) return false;
  const wide = range[1] - range[0];
  const isInside = window.range[0] <= range[0] && window.range[1] >= range[1];
  // A much wider window would have too few points.
  return isInside && window.range[1] - window.range[0] <= wide * (1 + 4 * SPARE);
}

function parts(tags: readonly string[]): string[][] {
  const found: string[][] = [];
  for (let at = 0; at < tags.length; at += MOST_TAGS) found.push(tags.slice(at, at + MOST_TAGS));
  return found;
}

// Visibility.

/** The keys of the elements that are visible; each element has its key in `data-see`. */
export function useSeen(): [ReadonlySet<string>, (element: HTMLElement | null) => void] {
  const seen = useSignal<ReadonlySet<string>>(new Set());
  const observer = useRef<IntersectionObserver | undefined>(undefined);
  observer.current ??= new IntersectionObserver(
    (entries) => {
      const next = new Set(seen.peek());
      for (const { target, isIntersecting } of entries) {
        const name = (target as HTMLElement).dataset.see ?? "";
        if (isIntersecting && target.isConnected) next.add(name);
        else next.delete(name);
      }
      const before = seen.peek();
      if (next.size !== before.size || [...next].some((one) => !before.has(one))) seen.value = next;
    },
    { rootMargin: "200px" },
  );
  useEffect(() => () => observer.current?.disconnect(), []);
  const watch = useRef((element: HTMLElement | null) => {
    if (element) observer.current?.observe(element);
  });
  return [seen.value, watch.current];
}
