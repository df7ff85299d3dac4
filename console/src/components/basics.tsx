// Small parts of all pages: buttons, marks, times, notes.

import { useSignal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { useEffect } from "preact/hooks";
import type { ApiError } from "../api";
import * as format from "../format";
import { type RunLabel, rootName } from "../roots";

export function Button(props: {
  children: ComponentChildren;
  onClick: () => void;
  kind?: "plain" | "primary" | "danger" | "bare";
  disabled?: boolean;
  title?: string;
  label?: string; // for screen readers, if the children are a symbol
}) {
  const { kind = "plain", children, label, ...rest } = props;
  return (
    <button type="button" class={`button ${kind}`} aria-label={label} {...rest}>
      {children}
    </button>
  );
}

const MARKS: Record<string, [string, string, string]> = {
  running: ["●", "running", "live"],
  starting: ["◐", "starting", "live"],
  pending: ["○", "pending", "idle"],
  completed: ["✓", "completed", "good"],
  stopping: ["◑", "stopping", "idle"],
  stopped: ["■", "stopped", "idle"],
  failed: ["✗", "failed", "bad"],
  killed: ["⊘", "killed", "bad"],
  lost: ["◌", "lost", "bad"],
  unknown: ["?", "unknown", "idle"],
};

/** A state as symbol and word, with a `detail` such as an exit code; or only its symbol. */
export function StateMark(props: {
  state: string | null;
  detail?: string;
  title?: string;
  isShort?: boolean;
}) {
  const [sign, word, tone] = MARKS[props.state ?? ""] ?? ["·", props.state ?? "", "idle"];
  return (
    <span class={`state ${tone}`} title={props.title || props.state || "no record"}>
      <span aria-hidden="true">{sign}</span>{" "}
      <span class={props.isShort ? "unseen" : "word"}>
        {props.detail ? `${word} (${props.detail})` : word}
      </span>
    </span>
  );
}

/** The number of items in a state, with the sign of the state. */
export function StateCount(props: { state: string; count: number }) {
  const [sign, word, tone] = MARKS[props.state] ?? ["·", props.state, "idle"];
  return (
    <span class={`state ${tone}`} title={`${format.count(props.count)} ${word}`}>
      <span aria-hidden="true">{sign}</span> {format.count(props.count)}
      <span class="unseen"> {word}</span>
    </span>
  );
}

/** A relative time, exact on hover; it updates itself. */
export function Time(props: { at: string | null; empty?: string }) {
  const now = useSignal(0);
  useEffect(() => {
    const timer = setInterval(() => {
      now.value += 1;
    }, 20_000);
    return () => clearInterval(timer);
  }, []);
  now.value;
  if (!props.at) return <>{props.empty ?? ""}</>;
  return (
    <time dateTime={props.at} title={format.exact(props.at)}>
      {format.relative(props.at)}
    </time>
  );
}

/** The name of a root, with its full URI on hover. */
export function RootName(props: { uri: string }) {
  return <span title={props.uri}>{rootName(props.uri)}</span>;
}

/** The name of a run; the part that it shares with other runs is dimmed. */
export function RunName(props: { label: RunLabel | undefined }) {
  return (
    <>
      {props.label?.before && <span class="soft">{props.label.before}</span>}
      {props.label?.name}
    </>
  );
}

/** A value of a hyperparameter or metric, in full on hover. */
export function ValueText(props: { value: unknown; shown?: string }) {
  const shown = props.shown ?? format.text(props.value);
  const full = typeof props.value === "number" ? String(props.value) : format.text(props.value);
  return <span title={full === shown.trim() ? undefined : full}>{shown}</span>;
}

/** An error in the server's words, shown next to what failed. */
export function ErrorNote(props: { error: ApiError | undefined; onRetry?: () => void }) {
  const { error, onRetry } = props;
  if (!error) return null;
  return (
    <div class="note bad" role="alert">
      <p>
        <span aria-hidden="true">✗</span> {error.message} <span class="soft">{error.hint}</span>
      </p>
      {error.picture && <pre>{error.picture}</pre>}
      {onRetry && <Button onClick={onRetry}>Try again</Button>}
    </div>
  );
}

/** The content of an empty page: why it is empty, and the next step. */
export function Empty(props: { title: string; children?: ComponentChildren; code?: string }) {
  return (
    <div class="empty">
      <h2>{props.title}</h2>
      {props.children}
      {props.code && <Code text={props.code} />}
    </div>
  );
}

/** Commands or code, copied with one click. */
export function Code(props: { text: string; label?: string }) {
  return (
    <div class="code">
      <pre>{props.text}</pre>
      <Copy text={props.text} {...(props.label ? { label: props.label } : {})} />
    </div>
  );
}

/** A command line that wraps only between its words. */
export function Command(props: { words: readonly string[] }) {
  return (
    <div class="code command">
      <pre>
        {props.words.map((word, at) => (
          <>
            <span key={at}>{word}</span>{" "}
          </>
        ))}
      </pre>
      <Copy text={props.words.join(" ")} label="Copy the command" />
    </div>
  );
}

/** Copies a text with one click. */
export function Copy(props: { text: string; label?: string }) {
  const done = useSignal(false);
  const copy = async () => {
    await navigator.clipboard.writeText(props.text);
    done.value = true;
    setTimeout(() => {
      done.value = false;
    }, 1500);
  };
  return (
    <Button kind="bare" onClick={copy} title="Copy" label={props.label ?? "Copy"}>
      {done.value ? "✓ copied" : "copy"}
    </Button>
  );
}

/** The bar below the header: what the page shows on the left, actions on the right. */
export function Bar(props: { children: ComponentChildren; class?: string }) {
  return <div class={`bar ${props.class ?? ""}`}>{props.children}</div>;
}
