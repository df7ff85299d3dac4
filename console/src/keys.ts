// Keyboard shortcuts and the actions of the ⌘K palette; pages add theirs while they are shown.

import { signal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";

const platform = typeof navigator === "undefined" ? "" : navigator.platform;
/** The modifier of shortcuts: ⌘ on a Mac, Ctrl elsewhere. */
export const MODIFIER = /mac|iphone|ipad/i.test(platform) ? "⌘" : "Ctrl ";

export interface Shortcut {
  key: string; // as `KeyboardEvent.key`, or "Mod+k" with ⌘ or Ctrl
  label: string;
  run: (event: KeyboardEvent) => void;
}

export interface Action {
  label: string;
  hint?: string;
  run: () => void;
}

interface Group<T> {
  name: string;
  entries: () => readonly T[];
}

/** The current shortcuts and actions, for the overlay and the palette; the last group comes first. */
export const shortcutGroups = signal<readonly Group<Shortcut>[]>([]);
export const actionGroups = signal<readonly Group<Action>[]>([]);

function useGroup<T>(
  groups: typeof shortcutGroups | typeof actionGroups,
  name: string,
  entries: readonly T[],
): void {
  const latest = useRef(entries);
  latest.current = entries;
  useEffect(() => {
    const group: Group<T> = { name, entries: () => latest.current };
    const all = groups as unknown as { value: readonly Group<T>[] };
    all.value = [group, ...all.value];
    return () => {
      all.value = all.value.filter((one) => one !== group);
    };
  }, [name]);
}

/** Add shortcuts while the component is shown. */
export function useKeys(name: string, shortcuts: readonly Shortcut[]): void {
  useGroup(shortcutGroups, name, shortcuts);
}

/** Add actions to the ⌘K palette while the component is shown. */
export function useActions(name: string, actions: readonly Action[]): void {
  useGroup(actionGroups, name, actions);
}

function isTyping(target: EventTarget | null): boolean {
  if (!(target instanceof HTMLElement)) return false;
  if (target instanceof HTMLInputElement)
    return !["checkbox", "radio", "range"].includes(target.type);
  return target.isContentEditable || ["TEXTAREA", "SELECT"].includes(target.tagName);
}

/** The name of a pressed key, as shortcuts write it. */
export function nameOf(event: Pick<KeyboardEvent, "key" | "metaKey" | "ctrlKey">): string {
  const key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
  return event.metaKey || event.ctrlKey ? `Mod+${key}` : key;
}

export function startKeys(): void {
  document.addEventListener("keydown", (event) => {
    if (event.defaultPrevented || event.altKey || event.isComposing) return;
    const name = nameOf(event);
    const isBare = !name.startsWith("Mod+");
    const inDialog = document.querySelector("dialog[open]") !== null;
    if (isBare && (inDialog || isTyping(event.target))) return;
    // A focused button or link keeps its own keys.
    const focused = event.target instanceof Element && event.target.closest("button, a, summary");
    if (focused && (name === "Enter" || name === " ")) return;
    for (const group of shortcutGroups.value) {
      const found = group.entries().find((one) => one.key === name);
      if (found) {
        event.preventDefault();
        found.run(event);
        return;
      }
    }
  });
}
