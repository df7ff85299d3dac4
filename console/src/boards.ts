// Boards apart from their page: permissions, and the request that creates one.

import type { Query } from "./address";
import type { Board, BoardState, Me } from "./api";

const LIVE: ReadonlySet<BoardState> = new Set(["pending", "starting", "running", "stopping"]);

export function isLive(board: Pick<Board, "state">): boolean {
  return LIVE.has(board.state);
}

/** Whether a board has its own process. */
export function isIsolated(board: Pick<Board, "on">): boolean {
  return board.on !== "instant";
}

/** The reason for a board's state, from its engine or its sources. */
export function reasonOf(board: Pick<Board, "state" | "reason" | "condition">): string {
  if (board.condition) return board.condition;
  return board.state === "running" ? "" : board.reason;
}

export interface Rights {
  change: boolean; // including restart and share
  end: boolean; // stop and delete
  logs: boolean;
}

/** The actions that the hub allows. */
export function rightsOn(board: Pick<Board, "owner">, me: Me | undefined): Rights {
  const isAdmin = me?.role === "admin";
  const isOwn = me !== undefined && board.owner === me.user;
  const isMember = me !== undefined && me.role !== "viewer";
  return {
    change: isAdmin || (isOwn && isMember),
    end: isAdmin || isOwn,
    logs: isMember || isOwn,
  };
}

const TEXTS = [
  "where",
  "name",
  "template",
  "on",
  "engine",
  "memory",
  "timeout",
  "idle_timeout",
  "visibility",
  "band",
  "show",
] as const;

export type NewBoardField = (typeof TEXTS)[number] | "sort" | "limit" | "group_by" | "cpus" | "new";
/** All parameters that the form of a new board writes into the URL. */
export const NEW_BOARD_FIELDS: readonly (NewBoardField | "selector")[] = [
  ...TEXTS,
  "sort",
  "limit",
  "group_by",
  "cpus",
  "new",
  "selector",
];

/** Split fields at commas outside brackets and quotes: `hparams.lr, metrics["a,b"].max`. */
export function splitFields(text: string): string[] {
  const found = text.match(/(?:"(?:\\.|[^"\\])*"|[^,"])+/g) ?? [];
  return found.map((one) => one.trim()).filter(Boolean);
}

/** The body of a request for a new board, from the form's URL. */
export function newBoard(query: URLSearchParams): Record<string, unknown> {
  const body: Record<string, unknown> = {};
  const selectors = query.getAll("selector");
  // A condition without selectors applies to all runs.
  body.selectors = selectors.length > 0 ? selectors : ["*"];
  for (const name of TEXTS) {
    const text = query.get(name)?.trim();
    if (text) body[name] = text;
  }
  for (const name of ["sort", "group_by"]) {
    const fields = splitFields(query.get(name) ?? "");
    if (fields.length > 0) body[name] = fields;
  }
  for (const name of ["limit", "cpus"]) {
    const text = query.get(name)?.trim();
    // A value that is not a number is sent unchanged, so that the hub reports the error.
    if (text) body[name] = Number.isFinite(Number(text)) ? Number(text) : text;
  }
  if (query.get("new") === "again") body.new = true;
  return body;
}

/** The parameters that count the runs of a new board, or undefined if nothing is selected. */
export function preview(query: URLSearchParams): Query | undefined {
  const selector = query.getAll("selector");
  const where = query.get("where")?.trim() ?? "";
  const sort = splitFields(query.get("sort") ?? "");
  if (selector.length === 0 && !where && sort.length === 0) return undefined;
  return { selector, where, sort, count: true };
}

/** A sentence for the user about what the deletion of a board deletes. */
export function lostWith(board: Board): string {
  const parts = ["its address", "its history", "its shared links"];
  if (isIsolated(board)) parts.push("its log");
  const last = parts.pop();
  return `This deletes ${parts.join(", ")} and ${last}. Its runs are kept.`;
}
