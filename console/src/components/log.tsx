// The output of a program as it grows, with terminal colours and a search. It stays scrolled to the
// end unless the user has scrolled up; only visible lines are in the document.

import { useSignal } from "@preact/signals";
import { useEffect, useLayoutEffect, useRef } from "preact/hooks";
import { address, type Query } from "../address";
import { type Line, marked, Output, type Style } from "../ansi";
import { type ApiError, readText } from "../api";
import * as format from "../format";
import { asError } from "../loading";
import { Button, ErrorNote } from "./basics";
import "./log.css";

const TAIL_LINES = 1000;
const LINE_HEIGHT = 18;
const SPARE_LINES = 20;
const NEAR_END = 24; // pixels

export function Log(props: { path: string; query?: Query; label: string }) {
  const output = useRef(new Output());
  const version = useSignal(0);
  const error = useSignal<ApiError | undefined>(undefined);
  const follows = useSignal(true);
  const isDone = useSignal(false);
  const tail = useSignal(TAIL_LINES);
  const sought = useSignal("");
  const found = useSignal(0); // the index among the matching lines
  const scroll = useSignal({ top: 0, height: 400 });
  const box = useRef<HTMLElement>(null);
  const atEnd = useRef(true);
  const key = JSON.stringify([props.path, props.query, follows.value, tail.value]);
  useEffect(() => {
    const controller = new AbortController();
    const fresh = new Output();
    let frame = 0;
    isDone.value = false;
    error.value = undefined;
    const show = () => {
      frame = 0;
      output.current = fresh;
      version.value += 1;
    };
    const query = { ...props.query, tail: tail.value, follow: follows.value };
    const onText = (part: string) => {
      fresh.add(part);
      frame ||= requestAnimationFrame(show);
    };
    readText(props.path, query, onText, controller.signal)
      .then(() => {
        isDone.value = true;
        show();
      })
      .catch((thrown: unknown) => {
        if (!controller.signal.aborted) error.value = asError(thrown);
      });
    return () => {
      controller.abort();
      cancelAnimationFrame(frame);
    };
  }, [key]);
  version.value; // subscribes to changes of the lines
  const lines = output.current.all;
  useLayoutEffect(() => {
    const element = box.current;
    if (element && atEnd.current) element.scrollTop = element.scrollHeight;
  }, [version.value]);
  useLayoutEffect(() => {
    const element = box.current;
    if (!element) return;
    const observer = new ResizeObserver(look);
    observer.observe(element);
    return () => observer.disconnect();
  }, []);
  const look = () => {
    const element = box.current;
    if (!element) return;
    const { scrollTop: top, scrollHeight, clientHeight: height } = element;
    atEnd.current = top + height >= scrollHeight - NEAR_END;
    const before = scroll.peek();
    if (before.top !== top || before.height !== height) scroll.value = { top, height };
  };
  const text = sought.value.trim().toLowerCase();
  const hits: number[] = [];
  if (text) {
    for (const [at, line] of lines.entries()) {
      if (line.plain.toLowerCase().includes(text)) hits.push(at);
    }
  }
  const current = hits.length > 0 ? ((found.value % hits.length) + hits.length) % hits.length : -1;
  const jump = (step: number) => {
    if (hits.length === 0) return;
    found.value = current + step;
    const line = hits[(current + step + hits.length) % hits.length] ?? 0;
    atEnd.current = false;
    if (box.current) box.current.scrollTop = line * LINE_HEIGHT - scroll.peek().height / 2;
  };
  const first = Math.max(0, Math.floor(scroll.value.top / LINE_HEIGHT) - SPARE_LINES);
  const last = Math.min(
    lines.length,
    Math.ceil((scroll.value.top + scroll.value.height) / LINE_HEIGHT) + SPARE_LINES,
  );
  const widest = lines.reduce((most, line) => Math.max(most, line.plain.length), 0);
  const isEmpty = lines.length === 0;
  const isMute = isEmpty && isDone.value && follows.value; // and none will follow
  return (
    <div class="log">
      <div class="tools" hidden={isMute}>
        <label class="check">
          <input
            type="checkbox"
            checked={follows.value}
            onChange={(event) => {
              follows.value = event.currentTarget.checked;
            }}
          />
          Follow
        </label>
        <input
          type="search"
          placeholder="Search"
          aria-label={`Search in ${props.label.toLowerCase()}`}
          value={sought.value}
          onInput={(event) => {
            sought.value = event.currentTarget.value;
            found.value = -1;
          }}
          onKeyDown={(event) => {
            if (event.key === "Enter") jump(event.shiftKey ? -1 : 1);
          }}
        />
        {text && (
          <>
            <Button kind="bare" label="Previous" onClick={() => jump(-1)}>
              ↑
            </Button>
            <Button kind="bare" label="Next" onClick={() => jump(1)}>
              ↓
            </Button>
            <span class="soft" role="status">
              {hits.length === 0 ? "nothing found" : format.plural(hits.length, "line")}
            </span>
          </>
        )}
        <span class="more">
          {lines.length >= tail.value && (
            <Button
              kind="bare"
              onClick={() => {
                tail.value *= 10;
              }}
            >
              Show earlier lines
            </Button>
          )}
          <a
            class="soft"
            href={address(`/api/v1${props.path}`, props.query)}
            target="_blank"
            rel="noreferrer"
          >
            Full log as text
          </a>
        </span>
      </div>
      <ErrorNote error={error.value} />
      <section
        class={isEmpty ? "box quiet" : "box"}
        ref={box}
        aria-label={props.label}
        // biome-ignore lint/a11y/noNoninteractiveTabindex: a box that scrolls must take the focus
        tabIndex={0}
        onScroll={look}
      >
        {isEmpty && <p class="soft">{isDone.value ? "No output." : "Waiting for output…"}</p>}
        <pre style={{ height: `${lines.length * LINE_HEIGHT}px`, minWidth: `${widest}ch` }}>
          <div style={{ transform: `translateY(${first * LINE_HEIGHT}px)` }}>
            {lines.slice(first, last).map((line, at) => (
              <LineView
                key={first + at + output.current.dropped}
                line={line}
                sought={text}
                isCurrent={hits[current] === first + at}
              />
            ))}
          </div>
        </pre>
      </section>
    </div>
  );
}

function LineView(props: { line: Line; sought: string; isCurrent: boolean }) {
  const pieces = marked(props.line.pieces, props.sought);
  return (
    <div class={`line ${props.isCurrent ? "current" : ""}`}>
      {pieces.map((piece, at) => {
        const { names, style } = looks(piece.style);
        const name = `${names}${piece.isFound ? " found" : ""}`;
        return name || style ? (
          <span key={at} class={name} style={style}>
            {piece.text}
          </span>
        ) : (
          piece.text
        );
      })}
    </div>
  );
}

/** The classes and colours of a style; the theme defines the sixteen colours. */
function looks(style: Style): { names: string; style?: Record<string, string> } {
  const names: string[] = [];
  const own: Record<string, string> = {};
  if (style.isBold) names.push("bold");
  if (style.isDim) names.push("dim");
  if (style.isItalic) names.push("italic");
  if (style.isUnderlined) names.push("underlined");
  const named = (colour: string) => `var(--ansi-${colour.replace("bright-", "")})`;
  const isOwn = (colour: string) => colour.startsWith("#");
  const { colour, ground } = style;
  if (colour) own.color = isOwn(colour) ? colour : named(colour);
  if (ground)
    own.backgroundColor = isOwn(ground)
      ? ground
      : `color-mix(in srgb, ${named(ground)} 22%, transparent)`;
  return Object.keys(own).length > 0
    ? { names: names.join(" "), style: own }
    : { names: names.join(" ") };
}
