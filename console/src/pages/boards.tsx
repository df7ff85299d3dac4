// The boards that the user may see: a table, with a panel for one board or the form of a new one.

import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { type Board, get } from "../api";
import { isLive, NEW_BOARD_FIELDS, reasonOf } from "../boards";
import { Bar, Button, Empty, ErrorNote, StateMark, Time } from "../components/basics";
import { type Column, filled, Table } from "../components/table";
import * as format from "../format";
import { useActions, useKeys } from "../keys";
import { useLive, useLoaded } from "../loading";
import { address, place, setQuery } from "../router";
import { isMember, me } from "../session";
import { BoardPanel } from "./board";
import { NewBoardPanel } from "./new-board";

const MOST_BOARDS = 1000;

const COLUMNS: readonly Column<Board>[] = [
  {
    key: "name",
    title: "board",
    width: 200,
    cell: (board) =>
      isLive(board) ? (
        <a href={address(`/b/${board.id}/`)} title={`Open ${board.id}`}>
          {board.title || board.name}
        </a>
      ) : (
        board.title || board.name
      ),
  },
  {
    key: "state",
    title: "state",
    width: 96,
    cell: (board) => <StateMark state={board.state} title={board.reason} />,
  },
  {
    key: "runs",
    title: "runs",
    width: 64,
    isNumber: true,
    cell: (board) => (board.runs === null ? "" : format.count(board.runs)),
  },
  {
    key: "shows",
    title: "shows",
    width: 240,
    grows: true,
    cell: (board) => <span title={shows(board)}>{shows(board)}</span>,
  },
  {
    key: "reason",
    title: "reason",
    width: 168,
    hasValue: (board) => reasonOf(board) !== "",
    cell: (board) => (
      <span class={board.condition ? "bad-text" : "soft"} title={reasonOf(board)}>
        {reasonOf(board)}
      </span>
    ),
  },
  { key: "owner", title: "owner", width: 88, cell: (board) => board.owner },
  { key: "on", title: "engine", width: 104, cell: (board) => board.on },
  {
    key: "last",
    title: "last viewed",
    width: 96,
    cell: (board) => <Time at={board.last_request} empty="never" />,
  },
  {
    key: "expires",
    title: "expires",
    width: 96,
    cell: (board) => (isLive(board) ? <Time at={board.expires} empty="—" /> : "ended"),
  },
];

/** The selection of a board as text. */
export function shows(board: Pick<Board, "selectors" | "where">): string {
  const selectors = board.selectors.join(", ");
  return board.where ? `${selectors} where ${board.where}` : selectors;
}

export function openBoard(board: Board): void {
  window.location.assign(address(`/b/${board.id}/`));
}

export function Boards() {
  const { query } = place.value;
  const all = query.get("all") === "1";
  const mine = query.get("mine") === "1";
  const shown = query.get("board") ?? "";
  const isNew = query.has("new");
  const owner = mine ? me.value?.user : undefined;
  const boards = useLoaded(`${all} ${owner}`, (signal) =>
    get<{ boards: Board[] }>("/boards", { all, owner, limit: MOST_BOARDS }, signal),
  );
  useLive(["board"], boards.refresh);
  const rows = boards.data?.boards ?? [];
  const active = useSignal(-1);
  const at = rows.findIndex((board) => board.id === shown);
  useEffect(() => {
    if (at >= 0) active.value = at;
  }, [at]);

  const show = (id: string | undefined) => setQuery({ ...closed(), board: id });
  const start = () => setQuery({ board: undefined, new: "1" });
  const move = (step: number) => {
    const next = Math.max(0, Math.min(rows.length - 1, active.value + step));
    active.value = next;
    if (shown) setQuery({ board: rows[next]?.id }, true);
  };
  const current = () => rows[active.value];
  useKeys("Boards", [
    { key: "j", label: "Next board", run: () => move(1) },
    { key: "k", label: "Previous board", run: () => move(-1) },
    {
      key: "Enter",
      label: "Open the board",
      run: () => {
        const board = current();
        if (board && isLive(board)) openBoard(board);
      },
    },
    { key: "i", label: "About the board", run: () => show(current()?.id) },
    { key: "n", label: "Start a board", run: () => isMember() && start() },
  ]);
  useActions("Boards", [
    ...(isMember() ? [{ label: "Start a board", hint: "n", run: start }] : []),
    {
      label: all ? "Show only live boards" : "Show ended boards",
      run: () => setQuery({ all: !all }),
    },
  ]);
  const count = format.plural(rows.length, all ? "board" : "live board");
  return (
    <div class="page">
      <Bar>
        <h1>Boards</h1>
        <span class="soft" role="status">
          {boards.data && count}
        </span>
        <div class="end">
          <label class="check">
            <input
              type="checkbox"
              checked={mine}
              onChange={() => setQuery({ mine: mine ? undefined : "1" })}
            />
            Mine
          </label>
          <label class="check">
            <input
              type="checkbox"
              checked={all}
              onChange={() => setQuery({ all: all ? undefined : "1" })}
            />
            Show ended
          </label>
          {isMember() && (
            <Button kind="primary" onClick={start} title="Start a board (n)">
              New board
            </Button>
          )}
        </div>
      </Bar>
      <ErrorNote error={boards.error} onRetry={boards.refresh} />
      <div class="split">
        <div class="main">
          {boards.data && rows.length === 0 ? (
            <Empty
              title={all ? "No boards yet" : "No live boards"}
              code="aboard start cifar10 --name baseline"
            >
              <p>
                A board shows runs in TensorBoard's pages, at its own address.{" "}
                {isMember() ? "Start one with New board, or in a terminal:" : "In a terminal:"}
              </p>
            </Empty>
          ) : (
            <Table
              label="Boards"
              columns={filled(COLUMNS, rows)}
              count={rows.length}
              at={(index) => rows[index]}
              keyOf={(board) => board.id}
              active={active.value}
              onActive={(index) => {
                active.value = index;
                show(rows[index]?.id);
              }}
              onOpen={(board) => isLive(board) && openBoard(board)}
            />
          )}
        </div>
        {isNew && <NewBoardPanel onClose={() => show(undefined)} onStarted={show} />}
        {shown && !isNew && (
          <BoardPanel
            key={shown}
            id={shown}
            onClose={() => show(undefined)}
            onChange={boards.refresh}
          />
        )}
      </div>
    </div>
  );
}

/** The URL without the form of a new board. */
function closed(): Record<string, undefined> {
  return Object.fromEntries(NEW_BOARD_FIELDS.map((name) => [name, undefined]));
}
