// The change stream: one connection per page, shared by all listeners.
//
// A hidden page closes its connection, because browsers allow six per host for all tabs. A new
// connection begins with `hello`, which listeners get as `reset`, so that they load everything again.

import { signal } from "@preact/signals";
import { address } from "./address";
import { type Board, get, type Job, type Me, type Run } from "./api";

type Change = "new" | "changed" | "gone";

export type HubEvent =
  | { kind: "reset" }
  | { kind: "run"; change: Change; id: string; run?: Run }
  | { kind: "runs"; new: number; changed: number; gone: number }
  | { kind: "board"; change: Change; id: string; board?: Board }
  | { kind: "points"; runs?: string[]; source?: string }
  | { kind: "job"; change: Change; id: string; root: string; job?: Job }
  | { kind: "jobs" };

export type Kind = HubEvent["kind"];
export type Connection = "connecting" | "live" | "reconnecting";

/** The state of the connection, for the mark in the header. */
export const connection = signal<Connection>("connecting");

const KINDS: readonly Kind[] = ["run", "runs", "board", "points", "job", "jobs"];
const CALM_MILLISECONDS = 3000; // shorter interruptions are not shown
const FIRST_RETRY = 1000;
const LONGEST_RETRY = 30_000;

const listeners = new Map<(event: HubEvent) => void, ReadonlySet<Kind>>();
const followed = new Map<string, number>();
let source: EventSource | undefined;
let retry = FIRST_RETRY;
let pending: ReturnType<typeof setTimeout> | undefined;
let worried: ReturnType<typeof setTimeout> | undefined;

/** Call `handle` for events of some kinds, and always for `reset`; returns a function that stops it. */
export function listen(kinds: readonly Kind[], handle: (event: HubEvent) => void): () => void {
  listeners.set(handle, new Set<Kind>([...kinds, "reset"]));
  return () => listeners.delete(handle);
}

/** Make the hub read these runs and report new points; returns a function that stops it. */
export function follow(ids: readonly string[]): () => void {
  const count = (step: number) => {
    const before = followed.size;
    for (const id of ids) {
      const users = (followed.get(id) ?? 0) + step;
      if (users > 0) followed.set(id, users);
      else followed.delete(id);
    }
    if (followed.size !== before) schedule(50);
  };
  count(1);
  return () => count(-1);
}

function hand(event: HubEvent): void {
  for (const [handle, kinds] of listeners) if (kinds.has(event.kind)) handle(event);
}

function schedule(milliseconds: number): void {
  clearTimeout(pending);
  pending = setTimeout(open, milliseconds);
}

function open(): void {
  source?.close();
  source = undefined;
  if (document.hidden) return;
  const url = address("/api/v1/events", { follow: [...followed.keys()] });
  const opened = new EventSource(url);
  source = opened;
  const welcome = () => {
    clearTimeout(worried);
    worried = undefined;
    retry = FIRST_RETRY;
    connection.value = "live";
    hand({ kind: "reset" });
  };
  opened.addEventListener("hello", welcome);
  opened.addEventListener("reset", welcome);
  for (const kind of KINDS) {
    opened.addEventListener(kind, (message) => {
      hand({ kind, ...JSON.parse(message.data) });
    });
  }
  opened.onerror = () => {
    worried ??= setTimeout(() => {
      connection.value = "reconnecting";
    }, CALM_MILLISECONDS);
    if (opened.readyState !== EventSource.CLOSED || source !== opened) return;
    // Refused, and the browser does not retry; `get` detects a session that has ended.
    get<Me>("/me").catch(() => undefined);
    schedule(retry);
    retry = Math.min(retry * 2, LONGEST_RETRY);
  };
}

/** Connect, and keep the connection while the page is visible. */
export function startEvents(): void {
  open();
  document.addEventListener("visibilitychange", () => {
    if (document.hidden || !source) schedule(document.hidden ? 10_000 : 0);
  });
}
