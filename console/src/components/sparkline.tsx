// Sparklines: small curves of the visible rows, loaded together and cached.

import { signal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { series } from "../api";
import { useEvents } from "../loading";
import { colour, slots } from "../palette";
import { isDark } from "../theme";
import { sparkEnd, sparkPath } from "../view";

const SAMPLES = 32;
const SCROLL_MILLISECONDS = 120; // so that rows are not loaded while scrolling past
const AGAIN_MILLISECONDS = 1000; // while the hub reads, and after new points
const MOST_KEPT = 5000;
const WIDTH = 96;
const HEIGHT = 18;

export interface Drawn {
  id: string;
  uri: string;
  state: string | null;
}

const ENDS: Record<string, string> = { running: "live", failed: "bad", killed: "bad", lost: "bad" };

const paths = new Map<string, string>(); // by run and tag; empty for a run without the metric
const outdated = new Set<string>();
const version = signal(0);
const keyOf = (uri: string, tag: string) => `${uri}\n${tag}`;

/** Load curves; returns the number of runs that the hub is still reading. */
async function load(uris: readonly string[], tags: readonly string[], signal: AbortSignal) {
  const answer = await series({ selectors: uris, tags, samples: SAMPLES }, signal);
  if (paths.size > MOST_KEPT) paths.clear();
  for (const { uri, tag, y } of answer.series) {
    paths.set(keyOf(uri, tag), sparkPath(y, WIDTH, HEIGHT));
  }
  for (const uri of answer.unread === 0 ? uris : []) {
    for (const tag of tags) if (!paths.has(keyOf(uri, tag))) paths.set(keyOf(uri, tag), "");
  }
  version.value += 1;
  return answer.unread;
}

/** Load the curves of the visible rows, and again after new points. */
export function useSparklines(runs: readonly Drawn[], tags: readonly string[]): void {
  const latest = useRef({ runs, tags });
  // A comma would split a URI into two selectors.
  latest.current = { runs: runs.filter((run) => !run.uri.includes(",")), tags };
  const timer = useRef<ReturnType<typeof setTimeout> | undefined>(undefined);
  const controller = useRef(new AbortController());
  const work = async () => {
    timer.current = undefined;
    const { runs, tags } = latest.current;
    const keys = (uri: string) => tags.map((tag) => keyOf(uri, tag));
    const isNeeded = (key: string) => !paths.has(key) || outdated.has(key);
    const uris = runs.map((run) => run.uri).filter((uri) => keys(uri).some(isNeeded));
    if (uris.length === 0) return;
    for (const key of uris.flatMap(keys)) outdated.delete(key);
    // A failure needs no message, because the table shows the hub's error.
    const unread = await load(uris, tags, controller.current.signal).catch(() => 0);
    if (unread > 0) schedule(AGAIN_MILLISECONDS);
  };
  const schedule = (milliseconds: number) => {
    if (controller.current.signal.aborted) return;
    timer.current ??= setTimeout(work, milliseconds);
  };
  useEvents(["points"], (event) => {
    if (event.kind !== "points" || !event.runs) return;
    const changed = new Set(event.runs);
    for (const run of latest.current.runs) {
      if (!changed.has(run.id)) continue;
      for (const tag of latest.current.tags) outdated.add(keyOf(run.uri, tag));
      schedule(AGAIN_MILLISECONDS);
    }
  });
  useEffect(() => {
    clearTimeout(timer.current);
    timer.current = undefined;
    schedule(SCROLL_MILLISECONDS);
  }, [runs.map((run) => run.id).join("\n"), tags.join("\n")]);
  useEffect(() => {
    controller.current = new AbortController();
    return () => {
      controller.current.abort();
      clearTimeout(timer.current);
    };
  }, []);
}

export function Sparkline(props: { run: Drawn; tag: string }) {
  version.value; // subscribes to what was loaded
  const path = paths.get(keyOf(props.run.uri, props.tag));
  if (!path) return null;
  const tone = ENDS[props.run.state ?? ""];
  const end = tone ? sparkEnd(path) : undefined;
  const own = colour(slots([props.run.id]).get(props.run.id) ?? 0, isDark());
  return (
    <svg
      class="spark"
      viewBox={`0 -3 ${WIDTH + 4} ${HEIGHT + 6}`}
      role="img"
      aria-label={props.tag}
    >
      <path d={path} stroke={own} fill="none" stroke-width="1.25" stroke-linejoin="round" />
      {end && <circle class={tone} cx={end[0]} cy={end[1]} r="2.5" />}
    </svg>
  );
}
