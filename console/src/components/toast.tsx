// Short messages at the bottom of the page: what was done, or errors that have no other place.

import { signal } from "@preact/signals";
import { asError } from "../loading";
import { Button } from "./basics";

interface Message {
  text: string;
  isBad: boolean;
  action?: { label: string; run: () => void } | undefined;
}

const message = signal<Message | undefined>(undefined);
let timer: ReturnType<typeof setTimeout> | undefined;

export function say(text: string, action?: Message["action"], isBad = false): void {
  clearTimeout(timer);
  message.value = { text, isBad, action };
  timer = setTimeout(hush, isBad ? 10_000 : 4000);
}

export function hush(): void {
  message.value = undefined;
}

/** Run something, and show its error. */
export async function attempt(work: () => Promise<void>): Promise<void> {
  try {
    await work();
  } catch (thrown) {
    const error = asError(thrown);
    say(`${error.message} ${error.hint}`.trim(), undefined, true);
  }
}

export function Toast() {
  const shown = message.value;
  return (
    <div class="toast" role="status" aria-live="polite">
      {shown && (
        <div class={shown.isBad ? "bad" : ""}>
          {shown.text}
          {shown.action && <Button onClick={shown.action.run}>{shown.action.label}</Button>}
          <Button kind="bare" onClick={hush} label="Dismiss">
            ✕
          </Button>
        </div>
      )}
    </div>
  );
}
