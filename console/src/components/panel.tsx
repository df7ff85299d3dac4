// A panel beside a table with the details of a row, or a form; Esc closes it.

import type { ComponentChildren } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { useKeys } from "../keys";
import { Button } from "./basics";
import "./panel.css";

export function Panel(props: {
  title: string; // also for screen readers
  heading?: ComponentChildren;
  onClose: () => void;
  children: ComponentChildren;
}) {
  const box = useRef<HTMLElement>(null);
  useKeys("Panel", [{ key: "Escape", label: "Close the panel", run: props.onClose }]);
  useEffect(() => box.current?.focus(), []);
  return (
    <aside class="panel" aria-label={props.title} tabIndex={-1} ref={box}>
      <header>
        <h2>{props.heading ?? props.title}</h2>
        <Button kind="bare" onClick={props.onClose} label="Close the panel" title="Close (Esc)">
          ✕
        </Button>
      </header>
      <div class="body">{props.children}</div>
    </aside>
  );
}

/** A part of a panel with its own heading. */
export function Section(props: {
  title: string;
  children: ComponentChildren;
  actions?: ComponentChildren;
}) {
  return (
    <section class="part" aria-label={props.title}>
      <header>
        <h3>{props.title}</h3>
        {props.actions}
      </header>
      {props.children}
    </section>
  );
}
