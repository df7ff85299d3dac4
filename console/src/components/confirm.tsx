// A dialog that asks before something is deleted or stopped.

import { useSignal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import type { ApiError } from "../api";
import { asError } from "../loading";
import { Button, ErrorNote } from "./basics";
import { Dialog } from "./dialog";

export function Confirm(props: {
  title: string;
  action: string; // the label of the button
  children: ComponentChildren; // the consequences
  run: () => Promise<void>;
  onClose: () => void;
}) {
  const error = useSignal<ApiError | undefined>(undefined);
  const isBusy = useSignal(false);
  const run = async () => {
    isBusy.value = true;
    try {
      await props.run();
      props.onClose();
    } catch (thrown) {
      error.value = asError(thrown);
      isBusy.value = false;
    }
  };
  return (
    <Dialog title={props.title} onClose={props.onClose}>
      <h2>{props.title}</h2>
      <div class="lost">{props.children}</div>
      <ErrorNote error={error.value} />
      <div class="choice">
        <Button onClick={props.onClose}>Cancel</Button>
        <Button kind="danger" onClick={run} disabled={isBusy.value}>
          {isBusy.value ? "…" : props.action}
        </Button>
      </div>
    </Dialog>
  );
}
