// The client of the REST API: requests, errors, documents. See docs/reference/api.md.

import { signal } from "@preact/signals";
import { address, type Query } from "./address";
import { decodeSeries, type SeriesAnswer } from "./series";

const API = "/api/v1";

/** The error of a failed request: what is wrong and what to do. */
export class ApiError extends Error {
  constructor(
    readonly status: number,
    readonly code: string,
    message: string,
    readonly hint = "",
    readonly picture = "",
    readonly boards: readonly string[] = [],
  ) {
    super(message);
  }
}

/** Whether the session has ended; then all requests fail until the user logs in again. */
export const sessionEnded = signal(false);

export interface RequestOptions {
  query?: Query;
  body?: unknown;
  signal?: AbortSignal | undefined;
  headers?: Record<string, string>;
}

type Method = "GET" | "POST" | "PATCH" | "PUT" | "DELETE";

/** Send a request; failures throw `ApiError`, an abort throws the browser's own error. */
export async function send(method: Method, path: string, options: RequestOptions = {}) {
  const headers: Record<string, string> = { accept: "application/json", ...options.headers };
  if (method !== "GET") headers["x-aboard-csrf"] = "1";
  const init: RequestInit = { method, headers, credentials: "same-origin" };
  if (options.signal) init.signal = options.signal;
  if (options.body !== undefined) {
    headers["content-type"] = "application/json";
    init.body = JSON.stringify(options.body);
  }
  let response: Response;
  try {
    response = await fetch(address(API + path, options.query), init);
  } catch (error) {
    if (options.signal?.aborted) throw error;
    throw new ApiError(0, "unreachable", "The hub does not answer.", "Trying again.");
  }
  if (!response.ok) throw await errorOf(response);
  return response;
}

async function errorOf(response: Response): Promise<ApiError> {
  const { status } = response;
  if (status === 401) sessionEnded.value = true;
  try {
    const { code, message, hint, picture, boards } = (await response.json()).error;
    const sentence = String(message).charAt(0).toUpperCase() + String(message).slice(1);
    return new ApiError(status, code, sentence, hint ?? "", picture ?? "", boards ?? []);
  } catch {
    return new ApiError(status, "refused", `The hub responded with status ${status}.`);
  }
}

export async function get<T>(path: string, query?: Query, signal?: AbortSignal): Promise<T> {
  return (await send("GET", path, { query: query ?? {}, signal })).json();
}

/** Send a change; responses without content are undefined. */
export async function change<T = void>(
  method: Exclude<Method, "GET">,
  path: string,
  body?: unknown,
  options: Omit<RequestOptions, "body"> = {},
): Promise<T> {
  const response = await send(method, path, { ...options, body });
  return (response.status === 204 ? undefined : response.json()) as Promise<T>;
}

/** Read text as it arrives, for example while following a log. */
export async function readText(
  path: string,
  query: Query,
  onText: (text: string) => void,
  signal: AbortSignal,
): Promise<void> {
  const response = await send("GET", path, { query, signal, headers: { accept: "text/plain" } });
  const reader = response.body?.pipeThrough(new TextDecoderStream()).getReader();
  for (let part = await reader?.read(); part && !part.done; part = await reader?.read()) {
    onText(part.value);
  }
}

export interface SeriesRequest {
  selectors: readonly string[];
  tags: readonly string[];
  x?: "step" | "wall_time" | "relative_time" | "metric";
  metric?: string;
  start?: number;
  stop?: number;
  samples?: number;
  smoothing?: number;
  window?: number;
  group_by?: readonly string[];
  band?: string;
}

export async function series(request: SeriesRequest, signal?: AbortSignal): Promise<SeriesAnswer> {
  const body = { ...request, format: "binary" };
  const headers = { accept: "application/vnd.aboard.series, application/json" };
  const response = await send("POST", "/series", { body, signal, headers });
  return decodeSeries(await response.arrayBuffer());
}

// Documents. Times are RFC 3339; NaN, Infinity and -Infinity are strings.

export type Value = string | number | boolean | null;
export type Role = "viewer" | "member" | "admin";
export type RunState = "running" | "completed" | "failed" | "killed" | "lost";
export type BoardState =
  | "pending"
  | "starting"
  | "running"
  | "stopping"
  | "stopped"
  | "failed"
  | "lost";
export type JobState = "pending" | "running" | "completed" | "failed" | "stopped" | "unknown";
export type MemberState = RunState | "pending" | "unknown";

export interface Me {
  user: string;
  role: Role;
  personal: boolean;
}

export interface Run {
  id: string;
  experiment: string;
  name: string;
  uri: string;
  root: string;
  state: RunState | null;
  workspace: string;
  job: string;
  user: string;
  host: string;
  reason: string;
  exit_code: number | null;
  created: string | null;
  started: string | null;
  ended: string | null;
  hparams: Record<string, unknown>;
  tags: Record<string, unknown>;
  metrics: Record<string, Value>;
  problem: string;
}

export interface Attempt {
  number: number;
  state: RunState | null;
  host: string;
  pid: number | null;
  job: string;
  started: string | null;
  ended: string | null;
  exit_code: number | null;
  reason: string;
}

export interface RunInFull extends Run {
  note: string;
  command: string[];
  git_commit: string;
  heartbeat: string | null;
  duration: number | null;
  attempts: Attempt[];
  stages: { name: string; files: number; bytes: number }[];
  files: number;
  bytes: number;
  complete: boolean;
  problems: string[];
}

export interface Metric {
  name: string;
  stage: string;
  tag: string;
  plugin: string;
  scalar: boolean;
  count: number;
  first_step: number | null;
  last_step: number | null;
  last_time: string | null;
  last: Value;
  min?: Value;
  min_step?: number | null;
  max?: Value;
  max_step?: number | null;
  mean?: Value;
  nans?: number;
  infinities?: number;
}

export interface RunGroup {
  values: Record<string, Value>;
  count: number;
  means: Record<string, Value>;
}

export interface Logged {
  name: string;
  plugin: string;
  scalar: boolean;
  runs: number;
  first_step: number;
  last_step: number;
  ids: string[];
}

export interface Medium {
  tag: string;
  kind: "image" | "audio" | "text" | "histogram";
  steps: number[];
  step: number;
  time: string | null;
  blobs: string[];
  texts: string[];
  buckets: [number, number, number][];
}

export interface Finding {
  code: string;
  severity: "error" | "warning" | "info";
  what: string;
  where: string[];
  advice: string;
}

export interface RunList {
  runs: Run[];
  groups?: RunGroup[];
  total: number;
  unread: number;
  next: string | null;
}

export interface SavedView {
  name: string;
  owner: string;
  query: string;
  visibility: "private" | "team";
  changed: string;
}

export interface Facet {
  field: string;
  values: { value: Value; count: number }[];
  bins: { low: number; high: number; count: number }[] | null;
  distinct: number;
  missing: number;
  runs: number;
}

export interface Board {
  id: string;
  name: string;
  title: string;
  owner: string;
  state: BoardState;
  reason: string;
  exit_code: number | null;
  condition: string;
  problems: string[];
  missing_fields: string[] | null;
  selectors: string[];
  where: string;
  sort: string[];
  limit: number;
  sources: string[];
  template: string;
  group_by: string[];
  band: string;
  show: string;
  on: string;
  unit: string;
  engine: string;
  url: string;
  created: string;
  started: string | null;
  ended: string | null;
  expires: string | null;
  last_request: string | null;
  timeout: number | null;
  idle_timeout: number | null;
  memory: number | null;
  cpus: number | null;
  visibility: "private" | "team";
  runs: number | null;
  version: number;
}

export interface Job {
  id: string;
  state: JobState;
  reason: string;
  experiment: string;
  on: string;
  command: string[];
  selector: string;
  root: string;
  user: string;
  host: string;
  created: string;
  attempts: number;
  exit_code: number | null;
  count: number;
  states: Partial<Record<MemberState, number>>;
}

export interface Member {
  number: number;
  run: string;
  hparams: Record<string, unknown>;
  state: MemberState;
  exit_code: number | null;
  reason: string;
  unit: string;
}

export interface Engine {
  name: string;
  answers: boolean | null;
  version: string;
  resources: Record<string, string>;
  problem: string;
  hint: string;
}

export interface Root {
  uri: string;
  name: string;
  looked: string | null;
  lag: number | null;
  problem: string;
  problems: { where: string; what: string; advice: string }[];
  runs: number;
  damaged_files: number;
  damaged_bytes: number;
  requests: { kind: string; requests: number; bytes: number }[];
}

export interface User {
  name: string;
  role: Role;
  created: string;
}

export interface Token {
  id: string;
  user: string;
  name: string;
  prefix: string;
  created: string;
  expires: string | null;
  revoked: string | null;
  last_used: string | null;
  token: string | null;
}

export interface Session {
  id: string;
  user: string;
  created: string;
  expires: string;
  current: boolean;
}

export interface Limits {
  isolated: number | null;
  instant: number | null;
  memory: number;
  cpus: number;
  timeout: number;
  idle_timeout: number;
}
