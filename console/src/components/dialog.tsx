// Dialogs and menus, based on `<dialog>`: focus stays inside, Esc closes.

import { useSignal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { useEffect, useLayoutEffect, useRef } from "preact/hooks";

export function Dialog(props: {
  title: string;
  onClose: () => void;
  children: ComponentChildren;
  class?: string;
}) {
  const element = useRef<HTMLDialogElement>(null);
  // Synchronously, so that the next key goes to the dialog.
  useLayoutEffect(() => {
    element.current?.showModal();
  }, []);
  return (
    // biome-ignore lint/a11y/useKeyWithClickEvents: the browser closes a dialog with Esc
    <dialog
      ref={element}
      class={`dialog ${props.class ?? ""}`}
      aria-label={props.title}
      onClose={props.onClose}
      onClick={(event) => {
        if (event.target === element.current) element.current?.close();
      }}
    >
      <div class="inside">{props.children}</div>
    </dialog>
  );
}

export interface MenuEntry {
  label: string;
  run: () => void;
  isOn?: boolean; // shows a check mark
  isDanger?: boolean;
}

/** A button with a menu; arrows move, Esc closes. */
export function Menu(props: {
  label: ComponentChildren;
  title: string;
  entries: readonly MenuEntry[];
}) {
  const isOpen = useSignal(false);
  const box = useRef<HTMLDivElement>(null);
  useEffect(() => {
    if (!isOpen.value) return;
    box.current?.querySelector<HTMLElement>("[role^=menuitem]")?.focus();
    const away = (event: Event) => {
      if (!box.current?.contains(event.target as Node)) isOpen.value = false;
    };
    document.addEventListener("pointerdown", away);
    return () => document.removeEventListener("pointerdown", away);
  }, [isOpen.value]);
  const onKeyDown = (event: KeyboardEvent) => {
    const entries = [...(box.current?.querySelectorAll<HTMLElement>("[role^=menuitem]") ?? [])];
    const at = entries.indexOf(document.activeElement as HTMLElement);
    if (event.key === "Escape" && isOpen.value) {
      isOpen.value = false;
      box.current?.querySelector("button")?.focus();
    } else if (event.key === "ArrowDown") entries[(at + 1) % entries.length]?.focus();
    else if (event.key === "ArrowUp") entries.at(at - 1)?.focus();
    else return;
    event.preventDefault();
    event.stopPropagation();
  };
  return (
    // biome-ignore lint/a11y/noStaticElementInteractions: the keys of the menu inside
    <div class="menu" ref={box} onKeyDown={onKeyDown}>
      <button
        type="button"
        class="button bare"
        title={props.title}
        aria-haspopup="menu"
        aria-expanded={isOpen.value}
        onClick={() => {
          isOpen.value = !isOpen.value;
        }}
      >
        {props.label} <span aria-hidden="true">▾</span>
      </button>
      {isOpen.value && (
        <div class="list" role="menu" aria-label={props.title}>
          {props.entries.map((entry) => (
            <button
              type="button"
              key={entry.label}
              {...(entry.isOn === undefined
                ? { role: "menuitem" as const }
                : { role: "menuitemradio" as const, "aria-checked": entry.isOn })}
              class={entry.isDanger ? "danger" : ""}
              onClick={() => {
                isOpen.value = false;
                entry.run();
              }}
            >
              <span class="tick" aria-hidden="true">
                {entry.isOn ? "✓" : ""}
              </span>
              {entry.label}
            </button>
          ))}
        </div>
      )}
    </div>
  );
}
