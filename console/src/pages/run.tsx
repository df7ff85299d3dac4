// One run: its details on the left, its results on the right.

import { useSignal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { useEffect, useMemo } from "preact/hooks";
import { type ApiError, change, type Finding, get, type Metric, type RunInFull } from "../api";
import { passing, readZoom } from "../comparison";
import {
  Bar,
  Button,
  Command,
  Copy,
  Empty,
  ErrorNote,
  StateMark,
  Time,
  ValueText,
} from "../components/basics";
import { Chart, type Pointer } from "../components/chart";
import { inputInto } from "../components/form";
import { Log } from "../components/log";
import { MEDIA_PLUGINS, MediaRow } from "../components/media";
import { attempt } from "../components/toast";
import { useCurves, useSeen } from "../curves";
import { follow } from "../events";
import * as format from "../format";
import { useKeys } from "../keys";
import { useLive, useLoaded } from "../loading";
import { colour, slots } from "../palette";
import { address, go, place, setQuery } from "../router";
import { isMember } from "../session";
import { isDark } from "../theme";
import "./run.css";

const MOST_FILES = 200;
const CHART_HEIGHT = 172; // pixels; leaves room for images below the curves
const THREE_LINES = `import aboard

with aboard.init("experiment", hparams={"lr": 0.1}) as run:
    run.log_metrics({"loss": 0.5}, step=1)`;

export function RunPage(props: { id: string }) {
  const { id } = props;
  const path = `/runs/${encodeURIComponent(id)}`;
  const run = useLoaded(id, (signal) => get<RunInFull>(path, {}, signal));
  useEffect(() => follow([id]), [id]);
  useLive(["run"], run.refresh, (event) => event.kind === "run" && event.id === id);
  useKeys("Run", [
    { key: "c", label: "Compare with others", run: () => go("/compare", { run: [id] }) },
    { key: "0", label: "Show all of the x-axis", run: () => setQuery({ zoom: undefined }) },
  ]);
  if (!run.data) {
    return (
      <div class="page">
        <ErrorNote error={run.error} onRetry={run.refresh} />
      </div>
    );
  }
  const found = run.data;
  return (
    <div class="page">
      <Bar>
        <h1>
          {found.experiment && <span class="soft">{found.experiment}/</span>}
          {found.name}
        </h1>
        <StateMark
          state={found.state}
          detail={found.exit_code ? `exit ${found.exit_code}` : ""}
          title={found.reason}
        />
        {found.duration !== null && <span class="soft">{format.duration(found.duration)}</span>}
        {found.host && <span class="soft">{found.host}</span>}
        {found.git_commit && (
          <span>
            <code title={found.git_commit}>{found.git_commit.slice(0, 10)}</code>{" "}
            <Copy text={found.git_commit} label="Copy the commit" />
          </span>
        )}
        <span class="push">
          <a class="button" href={address("/compare", { run: [id] })}>
            Compare
          </a>
        </span>
      </Bar>
      <ErrorNote error={run.error} />
      <div class="columns run">
        <About run={found} path={path} onChange={run.refresh} />
        <section class="did" aria-label="Results">
          <Curves run={found} path={path} />
          <Output run={found} path={path} />
        </section>
      </div>
    </div>
  );
}

function About(props: { run: RunInFull; path: string; onChange: () => void }) {
  const { run, path } = props;
  return (
    <section class="about" aria-label="Details">
      {run.reason && <p class="note">{run.reason}</p>}
      {run.problems.map((problem) => (
        <p key={problem} class="note bad">
          {problem}
        </p>
      ))}
      <Note run={run} path={path} onChange={props.onChange} />
      <h2>Hyperparameters</h2>
      <Facts facts={Object.entries(run.hparams)} />
      <h2>Run</h2>
      <dl class="facts">
        <Fact name="created">
          <Time at={run.created} />
        </Fact>
        <Fact name="started">
          <Time at={run.started} />
        </Fact>
        <Fact name="ended">
          <Time at={run.ended} empty={run.state === "running" ? "still running" : ""} />
        </Fact>
        <Fact name="user">{run.user}</Fact>
        <Fact name="host">{run.host}</Fact>
        <Fact name="commit">
          {run.git_commit && <code title={run.git_commit}>{run.git_commit.slice(0, 10)}</code>}
        </Fact>
        <Fact name="job">
          {run.job && <a href={address("/jobs", { job: run.job, root: run.root })}>{run.job}</a>}
        </Fact>
        <Fact name="workspace">{run.workspace}</Fact>
        <Fact name="place">
          <span title={run.uri}>{run.uri}</span> <Copy text={run.uri} label="Copy the URI" />
        </Fact>
      </dl>
      <h2>Tags</h2>
      <Tags run={run} path={path} onChange={props.onChange} />
      {run.command.length > 0 && (
        <>
          <h2>Command</h2>
          <Command words={run.command} />
        </>
      )}
      <Attempts run={run} />
      <Stages run={run} />
      <Boards id={run.id} path={path} uri={run.uri} />
      <Doctor id={run.id} path={path} />
      <Files run={run} path={path} />
    </section>
  );
}

function Note(props: { run: RunInFull; path: string; onChange: () => void }) {
  const { run } = props;
  const draft = useSignal<string | undefined>(undefined);
  const keep = () =>
    attempt(async () => {
      await change("PATCH", props.path, { note: draft.value ?? "" });
      draft.value = undefined;
      props.onChange();
    });
  if (draft.value !== undefined) {
    return (
      <form
        class="note-form"
        onSubmit={(event) => {
          event.preventDefault();
          keep();
        }}
      >
        <textarea
          aria-label="Note"
          rows={4}
          value={draft.value}
          ref={(element) => element?.focus()}
          onInput={(event) => {
            draft.value = event.currentTarget.value;
          }}
          onKeyDown={(event) => {
            if (event.key === "Escape") draft.value = undefined;
            if (event.key === "Enter" && (event.metaKey || event.ctrlKey)) keep();
          }}
        />
        <Button kind="primary" onClick={keep}>
          Save note
        </Button>{" "}
        <Button
          kind="bare"
          onClick={() => {
            draft.value = undefined;
          }}
        >
          Cancel
        </Button>
      </form>
    );
  }
  const edit = () => {
    draft.value = run.note;
  };
  return (
    <div class="note-text">
      {run.note && <p>{run.note}</p>}
      {isMember() && run.state !== null && (
        <Button kind="bare" onClick={edit}>
          {run.note ? "Edit note" : "Add a note"}
        </Button>
      )}
    </div>
  );
}

function Tags(props: { run: RunInFull; path: string; onChange: () => void }) {
  const { run } = props;
  const typed = useSignal("");
  const set = (tags: Record<string, unknown>) =>
    attempt(async () => {
      await change("PATCH", props.path, { tags });
      typed.value = "";
      props.onChange();
    });
  const names = Object.keys(run.tags);
  const mayChange = isMember() && run.state !== null;
  return (
    <div class="labels">
      {names.map((name) => {
        const value = run.tags[name];
        const shown = value === true ? name : `${name}=${format.text(value)}`;
        return (
          <span class="label" key={name}>
            {shown}
            {mayChange && (
              <button
                type="button"
                aria-label={`Remove the tag ${name}`}
                onClick={() => set({ [name]: null })}
              >
                ×
              </button>
            )}
          </span>
        );
      })}
      {names.length === 0 && !mayChange && <span class="soft">None.</span>}
      {mayChange && (
        <form
          onSubmit={(event) => {
            event.preventDefault();
            const [name = "", ...rest] = typed.value.split("=");
            if (name.trim()) set({ [name.trim()]: rest.length > 0 ? rest.join("=").trim() : true });
          }}
        >
          <input
            type="text"
            aria-label="Add a tag"
            placeholder="add a tag"
            value={typed.value}
            onInput={inputInto(typed)}
          />
        </form>
      )}
    </div>
  );
}

function Facts(props: { facts: readonly [string, unknown][] }) {
  if (props.facts.length === 0) return <p class="soft">None.</p>;
  return (
    <dl class="facts">
      {props.facts.map(([name, value]) => (
        <Fact key={name} name={name}>
          <ValueText value={value} />
        </Fact>
      ))}
    </dl>
  );
}

function Fact(props: { name: string; children: ComponentChildren }) {
  if (!props.children) return null;
  return (
    <div>
      <dt title={props.name}>{props.name}</dt>
      <dd>{props.children}</dd>
    </div>
  );
}

function Attempts(props: { run: RunInFull }) {
  const { attempts } = props.run;
  if (attempts.length < 2) return null;
  return (
    <>
      <h2>Attempts</h2>
      <ul class="plain">
        {attempts.map((one) => (
          <li key={one.number}>
            <StateMark
              state={one.state}
              detail={one.exit_code ? `exit ${one.exit_code}` : ""}
              title={one.reason}
            />{" "}
            <span class="soft">
              {one.number} · {one.host} · <Time at={one.started} />
              {one.started &&
                one.ended &&
                ` · ${format.duration(secondsOf(one.started, one.ended))}`}
            </span>
          </li>
        ))}
      </ul>
    </>
  );
}

function secondsOf(started: string, ended: string): number {
  return Math.max(0, (Date.parse(ended) - Date.parse(started)) / 1000);
}

function Stages(props: { run: RunInFull }) {
  const { stages } = props.run;
  if (stages.length === 0) return null;
  return (
    <>
      <h2>Stages</h2>
      <dl class="facts">
        {stages.map((one) => (
          <Fact key={one.name} name={one.name || "(the run itself)"}>
            {format.plural(one.files, "file")}, {format.bytes(one.bytes)}
          </Fact>
        ))}
      </dl>
    </>
  );
}

function Boards(props: { id: string; path: string; uri: string }) {
  const boards = useLoaded(props.id, (signal) =>
    get<{ boards: { id: string; name: string; title: string; state: string }[] }>(
      `${props.path}/boards`,
      {},
      signal,
    ),
  );
  useLive(["board"], boards.refresh);
  const found = boards.data?.boards ?? [];
  return (
    <>
      <h2>Boards</h2>
      <ErrorNote error={boards.error} />
      {!boards.data && !boards.error && <p class="soft">Looking for boards…</p>}
      {boards.data && found.length === 0 && (
        <p class="soft">
          No board shows this run.{" "}
          <a href={address("/boards", { new: "1", selector: `id:${props.id}` })}>Start one</a>
        </p>
      )}
      <ul class="plain">
        {found.map((board) => (
          <li key={board.id}>
            <StateMark state={board.state} />{" "}
            <a href={address(`/b/${board.id}/`)} target="_blank" rel="noreferrer">
              {board.title || board.name}
            </a>
          </li>
        ))}
      </ul>
    </>
  );
}

const SEVERITIES: Record<Finding["severity"], [string, string]> = {
  error: ["✗", "bad"],
  warning: ["!", "bad"],
  info: ["·", "idle"],
};

function Doctor(props: { id: string; path: string }) {
  const found = useLoaded(props.id, (signal) =>
    get<{ findings: Finding[]; complete: boolean }>(`${props.path}/doctor`, {}, signal),
  );
  const findings = found.data?.findings ?? [];
  return (
    <>
      <h2>Doctor</h2>
      <ErrorNote error={found.error} onRetry={found.refresh} />
      {!found.data && !found.error && <p class="soft">Reading the run…</p>}
      {found.data && findings.length === 0 && (
        <p class="soft">{found.data.complete ? "No problems found." : "Still reading."}</p>
      )}
      <ul class="plain">
        {findings.map((one) => {
          const [sign, tone] = SEVERITIES[one.severity];
          return (
            <li key={one.code + one.where.join()}>
              <span class={`state ${tone}`} title={one.severity}>
                <span aria-hidden="true">{sign}</span>
              </span>{" "}
              {one.what} <span class="soft">{one.advice}</span>
            </li>
          );
        })}
      </ul>
    </>
  );
}

function Files(props: { run: RunInFull; path: string }) {
  const isOpen = useSignal(false);
  const { run } = props;
  return (
    <details
      class="files"
      onToggle={(event) => {
        isOpen.value = event.currentTarget.open;
      }}
    >
      <summary>
        Files{" "}
        <span class="soft">
          {format.plural(run.files, "file")}, {format.bytes(run.bytes)}
        </span>
      </summary>
      {isOpen.value && <FileList id={run.id} path={props.path} />}
    </details>
  );
}

function FileList(props: { id: string; path: string }) {
  const files = useLoaded(props.id, (signal) =>
    get<{ files: { name: string; bytes: number }[]; complete: boolean }>(
      `${props.path}/files`,
      {},
      signal,
    ),
  );
  const found = files.data?.files ?? [];
  return (
    <>
      <ErrorNote error={files.error} onRetry={files.refresh} />
      <dl class="facts">
        {found.slice(0, MOST_FILES).map((one) => (
          <Fact key={one.name} name={one.name}>
            <a
              href={address(`/api/v1${props.path}/file`, { name: one.name })}
              title="Download"
              download
            >
              {format.bytes(one.bytes)}
            </a>
          </Fact>
        ))}
      </dl>
      {found.length > MOST_FILES && (
        <p class="soft">And {format.plural(found.length - MOST_FILES, "more file")}.</p>
      )}
    </>
  );
}

function Curves(props: { run: RunInFull; path: string }) {
  const { id, name } = props.run;
  const logged = useLoaded(id, async (signal) => {
    return (await get<{ metrics: Metric[] }>(`${props.path}/metrics`, {}, signal)).metrics;
  });
  useLive(["points"], logged.refresh, (event) => {
    return event.kind === "points" && (event.runs?.includes(id) ?? false);
  });
  const pointer = useSignal<Pointer | undefined>(undefined);
  const filter = useSignal("");
  const [seen, watch] = useSeen();
  const metrics = logged.data ?? [];
  const passes = passing(filter.value);
  const scalars = metrics.filter((one) => one.scalar);
  const shown = scalars.filter((one) => passes(one.name));
  const media = metrics.filter((one) => MEDIA_PLUGINS.has(one.plugin) && passes(one.name));
  const zoom = readZoom(place.value.query.get("zoom"));
  const tags = shown.map((one) => one.name).filter((tag) => seen.has(tag));
  const curves = useCurves([id], { selectors: [`id:${id}`], samples: 1000 }, tags, zoom);
  const own = colour(slots([id]).get(id) ?? 0, isDark());
  const statistics = new Map(scalars.map((one) => [one.name, one]));
  const error: ApiError | undefined = logged.error ?? curves.error;
  return (
    <>
      <div class="tools">
        <h2>Curves</h2>
        {scalars.length > 6 && (
          <input
            class="tags"
            type="search"
            aria-label="Filter metrics"
            placeholder={`Filter ${format.plural(scalars.length, "metric")}`}
            value={filter.value}
            onInput={inputInto(filter)}
          />
        )}
        {zoom && <Button onClick={() => setQuery({ zoom: undefined })}>Show all</Button>}
      </div>
      <ErrorNote error={error} onRetry={logged.refresh} />
      {logged.data && scalars.length === 0 && (
        <Empty title="This run has logged no scalars" code={THREE_LINES}>
          <p>What it logs appears here automatically:</p>
        </Empty>
      )}
      <div class="charts">
        {shown.map(({ name: tag }) => (
          <div key={tag} ref={watch} data-see={tag}>
            <Single
              tag={tag}
              id={id}
              label={name}
              colour={own}
              curve={seen.has(tag) ? curves.of(tag)[0] : undefined}
              zoom={zoom}
              isLoading={seen.has(tag) && curves.isLoading(tag)}
              pointer={pointer}
              about={aboutOf(statistics.get(tag))}
            />
          </div>
        ))}
      </div>
      {media.length > 0 && (
        <>
          <div class="tools">
            <h2>Images, text and histograms</h2>
            <p class="soft">
              At the last step. <a href={address("/compare", { run: [id] })}>Choose a step</a>
            </p>
          </div>
          <div class="media-row">
            {media.map((one) => (
              <div key={one.name} ref={watch} data-see={one.name}>
                {seen.has(one.name) ? (
                  <MediaRow
                    tag={one.name}
                    runs={[{ id, label: name, colour: own }]}
                    step={undefined}
                  />
                ) : (
                  <div class="placeholder" />
                )}
              </div>
            ))}
          </div>
        </>
      )}
    </>
  );
}

function aboutOf(metric: Metric | undefined): string {
  if (metric?.min === undefined || metric.min === null) return "";
  return `${format.text(metric.last)} · min ${format.text(metric.min)} · max ${format.text(metric.max)}`;
}

function Single(props: {
  tag: string;
  id: string;
  label: string;
  colour: string;
  curve: { x: Float64Array; y: Float64Array } | undefined;
  zoom: readonly [number, number] | undefined;
  isLoading: boolean;
  pointer: ReturnType<typeof useSignal<Pointer | undefined>>;
  about: string;
}) {
  const { curve, id, label, tag } = props;
  const curves = useMemo(
    () => (curve ? [{ key: id, label, colour: props.colour, x: curve.x, y: curve.y }] : []),
    [curve, props.colour],
  );
  return (
    <Chart
      title={tag}
      curves={curves}
      height={CHART_HEIGHT}
      range={props.zoom}
      isLoading={props.isLoading}
      pointer={props.pointer}
      onZoom={(range) => setQuery({ zoom: range?.join("~") })}
    >
      <span class="soft statistics" title={props.about}>
        {props.about}
      </span>
    </Chart>
  );
}

function Output(props: { run: RunInFull; path: string }) {
  return (
    <div class="output">
      <h2>Output</h2>
      <Log path={`${props.path}/log`} label="Output" />
    </div>
  );
}
