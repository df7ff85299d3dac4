// The engines of the hub: whether they answer, their free resources, and trials.

import { useSignal } from "@preact/signals";
import { type ApiError, type Board, change, type Engine, get } from "../api";
import { isLive } from "../boards";
import { Button, Empty, ErrorNote, StateMark } from "../components/basics";
import { Section } from "../components/panel";
import { asError, type Loaded, useLive, useLoaded } from "../loading";
import { address } from "../router";
import { Fact } from "./board";

interface Trial {
  accepted: boolean;
  address: string;
  fingerprint: string;
  presented: string;
  status: number | null;
  problem: string;
  left: string[];
}

export function EngineList(props: { engines: Loaded<{ engines: Engine[] } | undefined> }) {
  const { data, error, refresh, isLoading } = props.engines;
  return (
    <>
      <ErrorNote error={error} onRetry={refresh} />
      {!data && !error && <p class="wait soft">Querying the engines…</p>}
      {data && data.engines.length === 0 && (
        <Empty title="This hub offers no engines">
          <p>Boards run in the hub itself. An engine needs a table in aboard.toml.</p>
        </Empty>
      )}
      <div class="cards">
        {data?.engines.map((engine) => (
          <OneEngine key={engine.name} engine={engine} />
        ))}
        {data && (
          <p class="whole">
            <Button onClick={refresh} disabled={isLoading}>
              Query again
            </Button>
          </p>
        )}
      </div>
    </>
  );
}

function OneEngine(props: { engine: Engine }) {
  const { engine } = props;
  const trial = useSignal("");
  const error = useSignal<ApiError | undefined>(undefined);
  const isBusy = useSignal(false);
  const start = async () => {
    isBusy.value = true;
    error.value = undefined;
    try {
      const path = `/engines/${encodeURIComponent(engine.name)}/trials`;
      trial.value = (await change<Board>("POST", path, {})).id;
    } catch (thrown) {
      error.value = asError(thrown);
    } finally {
      isBusy.value = false;
    }
  };
  return (
    <Section
      title={engine.name}
      actions={
        <Button
          onClick={start}
          disabled={isBusy.value}
          label={`Try ${engine.name}`}
          title="Start a small board with test points"
        >
          Try
        </Button>
      }
    >
      <p class={engine.answers ? "" : "bad-text"}>
        <span aria-hidden="true">{engine.answers ? "✓" : "✗"}</span>{" "}
        {engine.answers ? "answers" : "does not answer"} <span class="soft">{engine.version}</span>
      </p>
      {engine.problem && (
        <p class="note bad">
          {engine.problem} <span class="soft">{engine.hint}</span>
        </p>
      )}
      <dl class="facts">
        {Object.entries(engine.resources).map(([name, value]) => (
          <Fact key={name} name={name}>
            {value}
          </Fact>
        ))}
      </dl>
      <ErrorNote error={error.value} />
      {trial.value && <TrialBoard key={trial.value} engine={engine.name} id={trial.value} />}
    </Section>
  );
}

/** A trial in progress, which can be stopped and deleted. */
function TrialBoard(props: { engine: string; id: string }) {
  const path = `/boards/${props.id}`;
  const board = useLoaded(path, (signal) => get<Board>(path, {}, signal));
  useLive(["board"], board.refresh, (event) => event.kind === "board" && event.id === props.id);
  const state = board.data?.state;
  const trial = useLoaded(`${path} ${state}`, async (signal) => {
    const trials = `/engines/${encodeURIComponent(props.engine)}/trials`;
    return state === "running" ? get<Trial>(`${trials}/${props.id}`, {}, signal) : undefined;
  });
  const error = useSignal<ApiError | undefined>(undefined);
  const end = async () => {
    error.value = undefined;
    try {
      await change("POST", `${path}/stop`, { now: true });
      board.refresh();
    } catch (thrown) {
      error.value = asError(thrown);
    }
  };
  const found = board.data;
  const seen = trial.data;
  return (
    <div class="secret" role="status">
      <ErrorNote error={error.value ?? board.error ?? trial.error} />
      {found && (
        <p>
          Trial <StateMark state={found.state} /> <span class="soft">{found.reason}</span>
        </p>
      )}
      {seen && (
        <p>
          {seen.problem
            ? `✗ ${seen.problem}`
            : `✓ reached at ${seen.address}; status ${seen.status} without a token`}
        </p>
      )}
      {found && isLive(found) && (
        <div class="actions">
          <a class="button" href={address(`/b/${found.id}/`)}>
            Open
          </a>
          <Button onClick={end}>End the trial</Button>
        </div>
      )}
    </div>
  );
}
