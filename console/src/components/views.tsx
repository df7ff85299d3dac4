// Saved views: the current table under a name, private or for the team.

import { useSignal } from "@preact/signals";
import { type ApiError, change, get, type SavedView } from "../api";
import { asError, useLoaded } from "../loading";
import { address, go, place } from "../router";
import { isAdmin, isMember, me } from "../session";
import { Button, ErrorNote } from "./basics";
import { Dialog, Menu } from "./dialog";
import { inputInto } from "./form";
import { say } from "./toast";

const LONGEST_NAME = 64;

function open(view: SavedView): void {
  const query: Record<string, string[]> = {};
  const parsed = new URLSearchParams(view.query);
  for (const name of new Set(parsed.keys())) query[name] = parsed.getAll(name);
  go("/runs", query);
}

/** The query of the URL for a view, without the selection. */
function current(): string {
  const query = new URLSearchParams(place.value.query);
  query.delete("selected");
  return query.toString();
}

export function ViewsMenu() {
  const isSaving = useSignal(false);
  const views = useLoaded("", (signal) => get<{ views: SavedView[] }>("/views", {}, signal));
  const now = current();
  const found = views.data?.views ?? [];
  const shown = found.find((view) => view.query === now);
  const label = (view: SavedView) =>
    view.owner === me.value?.user ? view.name : `${view.name} — ${view.owner}`;
  return (
    <>
      <Menu
        title="Saved views"
        label={shown ? shown.name : "Views"}
        entries={[
          { label: "All runs", run: () => go("/runs"), isOn: now === "" },
          ...found.map((view) => ({
            label: label(view),
            run: () => open(view),
            isOn: view.query === now,
          })),
          {
            label: "Save or delete views…",
            run: () => {
              isSaving.value = true;
            },
          },
        ]}
      />
      {isSaving.value && (
        <ViewsDialog
          views={found}
          query={now}
          onChanged={views.refresh}
          onClose={() => {
            isSaving.value = false;
          }}
        />
      )}
    </>
  );
}

function ViewsDialog(props: {
  views: readonly SavedView[];
  query: string;
  onChanged: () => void;
  onClose: () => void;
}) {
  const name = useSignal("");
  const isShared = useSignal(false);
  const error = useSignal<ApiError | undefined>(undefined);
  const attempt = async (work: () => Promise<unknown>, isDone = false) => {
    try {
      error.value = undefined;
      await work();
      props.onChanged();
      if (isDone) props.onClose();
    } catch (thrown) {
      error.value = asError(thrown);
    }
  };
  const save = async () => {
    const visibility = isShared.value ? "team" : "private";
    const body = { name: name.value, query: props.query, visibility };
    await change("PUT", "/views", body);
    say(`Saved the view ${name.value.trim()}.`);
  };
  const mayDelete = (view: SavedView) => view.owner === me.value?.user || isAdmin();
  const mine = props.views.find((view) => {
    return view.owner === me.value?.user && view.name === name.value.trim();
  });
  return (
    <Dialog title="Saved views" onClose={props.onClose} class="form">
      <h2>Save this view</h2>
      <form
        onSubmit={(event) => {
          event.preventDefault();
          attempt(save, true);
        }}
      >
        <label>
          Name
          <input
            type="text"
            class="text"
            maxLength={LONGEST_NAME}
            value={name.value}
            onInput={inputInto(name)}
          />
        </label>
        {isMember() && !me.value?.personal && (
          <label class="check">
            <input
              type="checkbox"
              checked={isShared.value}
              onChange={(event) => {
                isShared.value = event.currentTarget.checked;
              }}
            />{" "}
            Share with the team
          </label>
        )}
        <p class="soft">
          A view has the filter, order, columns, facets and groups.
          {mine && ` Your view ${mine.name} is replaced.`}
        </p>
        <ErrorNote error={error.value} />
        <div class="buttons">
          <button type="submit" class="button primary" disabled={!name.value.trim()}>
            Save
          </button>
        </div>
      </form>
      {props.views.length > 0 && <h2>Saved views</h2>}
      <ul class="list">
        {props.views.map((view) => (
          <li key={`${view.owner}/${view.name}`}>
            <a
              href={address("/runs") + (view.query ? `?${view.query}` : "")}
              onClick={props.onClose}
            >
              {view.name}
            </a>
            <span class="soft">
              {view.owner} · {view.visibility === "team" ? "team" : "private"}
            </span>
            {mayDelete(view) && (
              <Button
                kind="bare"
                label={`Delete the view ${view.name}`}
                onClick={() =>
                  attempt(() =>
                    change("DELETE", "/views", undefined, {
                      query: { name: view.name, owner: view.owner },
                    }),
                  )
                }
              >
                Delete
              </Button>
            )}
          </li>
        ))}
      </ul>
    </Dialog>
  );
}
