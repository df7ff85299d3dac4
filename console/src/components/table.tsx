// A table of any length: rows have the same height, and only visible ones are in the document.

import { useSignal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { useEffect, useLayoutEffect, useRef } from "preact/hooks";

export const ROW_HEIGHT = 28;
const SPARE_ROWS = 8;
const FIRST_ROWS = 40; // before the height is known
const MIN_WIDTH = 48;
const STEP = 16; // pixels by which a key changes a width

export interface Column<Row> {
  key: string;
  title: ComponentChildren;
  label?: string; // the title as text, if the column can be moved or resized
  width: number;
  isNumber?: boolean;
  isFixed?: boolean; // cannot be moved or resized
  grows?: boolean; // takes the remaining width
  sort?: string; // the field to sort by; without one, the column cannot be sorted
  hasValue?: (row: Row) => boolean; // by default every row has a value
  cell: (row: Row, index: number) => ComponentChildren;
}

/** The columns in which some row has a value. */
export function filled<Row>(
  columns: readonly Column<Row>[],
  rows: readonly Row[],
): readonly Column<Row>[] {
  return columns.filter(({ hasValue }) => !hasValue || rows.some(hasValue));
}

export interface TableProps<Row> {
  label: string;
  columns: readonly Column<Row>[];
  count: number;
  at: (index: number) => Row | undefined; // undefined: not loaded yet
  keyOf: (row: Row) => string;
  onShow?: (first: number, last: number) => void;
  sort?: string | readonly string[]; // fields, with "-" for descending order
  // Sort by the field of a heading, or with `adds` also by it.
  onSort?: (sort: string, field: string, adds: boolean) => void;
  active?: number; // the row with the keyboard cursor
  onActive?: (index: number, event: MouseEvent) => void;
  onOpen?: (row: Row) => void;
  isSelected?: (row: Row) => boolean;
  onResize?: (key: string, width: number) => void;
  onMove?: (key: string, before: string) => void; // to the position of another column
  freshOf?: (row: Row, key: string) => number | undefined; // changes when the value does
}

/** The rows that are visible in a scrolled box, with some to spare. */
export function visible(top: number, height: number, count: number): [number, number] {
  const first = Math.max(0, Math.floor(top / ROW_HEIGHT) - SPARE_ROWS);
  const last = Math.min(count - 1, Math.ceil((top + height) / ROW_HEIGHT) + SPARE_ROWS);
  return [Math.min(first, Math.max(0, last)), last];
}

export function Table<Row>(props: TableProps<Row>) {
  const { columns, count, at, active } = props;
  const box = useRef<HTMLDivElement>(null);
  const scroll = useSignal({ top: 0, height: FIRST_ROWS * ROW_HEIGHT });
  const resized = useSignal<{ key: string; width: number } | undefined>(undefined);
  const look = () => {
    const element = box.current;
    if (!element) return;
    const { scrollTop: top, clientHeight: height } = element;
    const before = scroll.peek();
    if (before.top !== top || before.height !== height) scroll.value = { top, height };
  };
  useLayoutEffect(() => {
    look();
    const observer = new ResizeObserver(look);
    if (box.current) observer.observe(box.current);
    return () => observer.disconnect();
  }, []);
  const [first, last] = visible(scroll.value.top, scroll.value.height, count);
  useEffect(() => props.onShow?.(first, Math.max(first, last)), [first, last, count]);

  useEffect(() => {
    const element = box.current;
    if (!element || active === undefined || active < 0) return;
    const top = active * ROW_HEIGHT;
    const inSight = element.clientHeight - 2 * ROW_HEIGHT; // without the header
    if (top < element.scrollTop) element.scrollTop = top;
    else if (top > element.scrollTop + inSight) element.scrollTop = top - inSight;
  }, [active]);

  const rows = [];
  for (let index = first; index <= last; index += 1) {
    const row = at(index);
    rows.push(
      <tr
        key={row ? props.keyOf(row) : `empty-${index}`}
        aria-rowindex={index + 2}
        aria-selected={row && props.isSelected ? props.isSelected(row) : undefined}
        class={index === active ? "active" : ""}
        onClick={(event) => props.onActive?.(index, event)}
        onDblClick={() => row && props.onOpen?.(row)}
      >
        {columns.map((column) => {
          const fresh = row && props.freshOf?.(row, column.key);
          return (
            <td
              key={fresh === undefined ? column.key : `${column.key} ${fresh}`}
              class={`${column.isNumber ? "number" : ""}${fresh === undefined ? "" : " fresh"}`}
            >
              {row ? column.cell(row, index) : <span class="skeleton" />}
            </td>
          );
        })}
        <td />
      </tr>,
    );
  }
  const below = Math.max(0, count - 1 - last) * ROW_HEIGHT;
  const widthOf = (column: Column<Row>) =>
    resized.value?.key === column.key ? resized.value.width : column.width;
  // The remaining width goes to the column that grows, or to an empty last column.
  const grows = columns.some((column) => column.grows);
  const least = columns.reduce((sum, column) => sum + widthOf(column), 0);
  return (
    // biome-ignore lint/a11y/noNoninteractiveTabindex: a box that scrolls must take the focus
    <section class="table" ref={box} onScroll={look} tabIndex={0} aria-label={props.label}>
      <table aria-rowcount={count + 1} style={{ minWidth: `${least}px` }}>
        <colgroup>
          {columns.map((column) => (
            <col key={column.key} style={column.grows ? {} : { width: `${widthOf(column)}px` }} />
          ))}
          <col style={grows ? { width: "1px" } : {}} />
        </colgroup>
        <thead>
          <tr aria-rowindex={1}>
            {columns.map((column, index) => (
              <Heading
                key={column.key}
                column={column}
                table={props}
                before={columns[index - 1]}
                after={columns[index + 1]}
                onWidth={(width) => {
                  resized.value = width === undefined ? undefined : { key: column.key, width };
                }}
              />
            ))}
            <td />
          </tr>
        </thead>
        <tbody>
          <Space height={first * ROW_HEIGHT} />
          {rows}
          <Space height={below} />
        </tbody>
      </table>
    </section>
  );
}

function Space(props: { height: number }) {
  return props.height > 0 ? <tr class="space" style={{ height: `${props.height}px` }} /> : null;
}

const DRAGGED = "application/x-aboard-column";

function Heading<Row>(props: {
  column: Column<Row>;
  table: TableProps<Row>;
  before: Column<Row> | undefined;
  after: Column<Row> | undefined;
  onWidth: (width: number | undefined) => void; // while it is dragged
}) {
  const { column, before, after } = props;
  const { onSort, onMove, onResize } = props.table;
  const isOver = useSignal(false);
  const field = column.sort;
  const sort = [props.table.sort ?? []].flat();
  const at = sort.findIndex((one) => one.replace(/^-/, "") === field);
  const isDown = at >= 0 && sort[at]?.startsWith("-");
  const order = at < 0 ? undefined : isDown ? "descending" : "ascending";
  const next = isDown ? (field ?? "") : at < 0 ? `-${field}` : "";
  const sign = at < 0 ? "" : isDown ? "▾" : "▴";
  const canMove = onMove && !column.isFixed;
  const canResize = onResize && !column.isFixed;
  const onKeyDown = (event: KeyboardEvent) => {
    const step = event.key === "ArrowLeft" ? -1 : event.key === "ArrowRight" ? 1 : 0;
    if (step === 0 || !event.altKey) return;
    event.preventDefault();
    if (event.shiftKey) onResize?.(column.key, Math.max(MIN_WIDTH, column.width + step * STEP));
    else if (canMove) {
      const other = step < 0 ? before : after;
      if (other && !other.isFixed) onMove(column.key, other.key);
    }
  };
  const onDrop = (event: DragEvent) => {
    isOver.value = false;
    const moved = event.dataTransfer?.getData(DRAGGED);
    if (!moved || moved === column.key || !canMove) return;
    event.preventDefault();
    onMove(moved, column.key);
  };
  const drag = (event: PointerEvent) => {
    event.preventDefault();
    const grip = event.currentTarget as HTMLElement;
    const from = event.clientX;
    const width = (next: PointerEvent) =>
      Math.max(MIN_WIDTH, Math.round(column.width + next.clientX - from));
    const onMoved = (next: PointerEvent) => props.onWidth(width(next));
    grip.setPointerCapture(event.pointerId);
    grip.addEventListener("pointermove", onMoved);
    const onEnd = (next: PointerEvent) => {
      grip.removeEventListener("pointermove", onMoved);
      props.onWidth(undefined);
      if (width(next) !== column.width) onResize?.(column.key, width(next));
    };
    grip.addEventListener("pointerup", onEnd, { once: true });
  };
  const keys = canMove ? `${column.label ?? ""} — Alt+←→ moves it, Alt+Shift+←→ its width` : "";
  return (
    <th
      scope="col"
      class={`${column.isNumber ? "number" : ""}${isOver.value ? " over" : ""}`}
      aria-sort={order}
      draggable={canMove ? true : undefined}
      onDragStart={(event) => event.dataTransfer?.setData(DRAGGED, column.key)}
      onDragOver={(event) => {
        if (!canMove || !event.dataTransfer?.types.includes(DRAGGED)) return;
        event.preventDefault();
        isOver.value = true;
      }}
      onDragLeave={() => {
        isOver.value = false;
      }}
      onDrop={onDrop}
    >
      {field && onSort ? (
        <button
          type="button"
          title={keys || undefined}
          onClick={(event) => onSort(next, field, event.shiftKey)}
          onKeyDown={onKeyDown}
        >
          {column.title}{" "}
          <span aria-hidden="true">
            {sign}
            {sort.length > 1 && at >= 0 && <sub>{at + 1}</sub>}
          </span>
        </button>
      ) : (
        column.title
      )}
      {canResize && (
        <span
          class="grip"
          aria-hidden="true"
          draggable={true}
          onDragStart={(event) => {
            event.preventDefault();
            event.stopPropagation();
          }}
          onPointerDown={drag}
        />
      )}
    </th>
  );
}
