// Images, audio, text and histograms of runs at a step. Texts are never parsed; images are URLs.

import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { address } from "../address";
import { get, type Medium } from "../api";
import * as format from "../format";
import { useLive, useLoaded } from "../loading";
import { outline } from "../plot";
import { ErrorNote } from "./basics";
import "./media.css";

export interface MediaRun {
  id: string;
  label: string;
  colour: string;
}

export const MEDIA_PLUGINS: ReadonlySet<string> = new Set([
  "images",
  "audio",
  "text",
  "histograms",
]);

/** The name of a tag as it was logged, without the suffix that text writers add. */
export function mediaName(tag: string): string {
  return tag.replace(/\/text_summary$/, "");
}

/** A tag of some runs, side by side, at or before a step. */
export function MediaRow(props: {
  tag: string;
  runs: readonly MediaRun[];
  step: number | undefined;
  onSteps?: (steps: readonly number[]) => void;
}) {
  const { tag, runs, step } = props;
  const ids = runs.map((run) => run.id);
  const loaded = useLoaded(JSON.stringify([tag, ids, step]), async (signal) => {
    const found = await Promise.allSettled(
      ids.map((id) => get<Medium>(`/runs/${encodeURIComponent(id)}/media`, { tag, step }, signal)),
    );
    const media = found.map((one) => (one.status === "fulfilled" ? one.value : undefined));
    const failed = found.find((one) => one.status === "rejected");
    if (failed && media.every((one) => one === undefined)) throw failed.reason;
    return new Map(ids.map((id, at) => [id, media[at]]));
  });
  useLive(["points"], loaded.refresh, (event) => {
    return event.kind === "points" && (event.runs?.some((id) => ids.includes(id)) ?? true);
  });
  const media = loaded.data;
  useEffect(() => {
    if (!media) return;
    props.onSteps?.([...new Set([...media.values()].flatMap((one) => one?.steps ?? []))]);
  }, [media]);
  const shown = runs.filter((run) => media?.get(run.id));
  const span = spanOf([...(media?.values() ?? [])]);
  return (
    <section class="media" data-media={tag}>
      <h3 title={tag}>{mediaName(tag)}</h3>
      <ErrorNote error={loaded.error} onRetry={loaded.refresh} />
      <div class="pictures">
        {shown.map((run) => {
          const one = media?.get(run.id);
          return (
            one && (
              <figure key={run.id}>
                <MediumView
                  medium={one}
                  label={`${mediaName(tag)} of ${run.label}`}
                  span={span}
                  colour={run.colour}
                />
                <figcaption>
                  {runs.length > 1 && (
                    <>
                      <span class="swatch" style={{ background: run.colour }} />
                      <span class="name" title={run.label}>
                        {run.label}
                      </span>
                    </>
                  )}
                  <span class="soft">step {format.count(one.step)}</span>
                </figcaption>
              </figure>
            )
          );
        })}
        {!media && !loaded.error && <div class="placeholder" />}
      </div>
    </section>
  );
}

type Span = readonly [number, number] | undefined;

function spanOf(media: readonly (Medium | undefined)[]): Span {
  const ends: number[] = [];
  for (const one of media) for (const [low, high] of one?.buckets ?? []) ends.push(low, high);
  return ends.length > 0 ? [Math.min(...ends), Math.max(...ends)] : undefined;
}

function MediumView(props: { medium: Medium; label: string; span: Span; colour: string }) {
  const { medium, label, span, colour } = props;
  const isLarge = useSignal(false);
  if (medium.kind === "histogram") {
    return <Histogram buckets={medium.buckets} label={label} span={span} colour={colour} />;
  }
  if (medium.kind === "text") {
    return (
      <div class="texts">
        {medium.texts.map((text, at) => (
          <pre key={at}>{text}</pre>
        ))}
      </div>
    );
  }
  if (medium.kind === "audio") {
    return (
      <div class="clips">
        {medium.blobs.map((path) => (
          // biome-ignore lint/a11y/useMediaCaption: logged clips have no captions
          <audio key={path} controls preload="none" src={address(path)} aria-label={label} />
        ))}
      </div>
    );
  }
  return (
    <button
      type="button"
      class={`images ${isLarge.value ? "large" : ""}`}
      title={isLarge.value ? "Smaller" : "Larger"}
      onClick={() => {
        isLarge.value = !isLarge.value;
      }}
    >
      {medium.blobs.map((path) => (
        <img key={path} src={`${address(path)}`} alt={label} loading="lazy" />
      ))}
    </button>
  );
}

const WIDTH = 240;
const HEIGHT = 96;

function Histogram(props: {
  buckets: readonly [number, number, number][];
  label: string;
  span: Span;
  colour: string;
}) {
  const { buckets, span = [0, 1] } = props;
  const count = buckets.reduce((sum, [, , one]) => sum + one, 0);
  return (
    <div class="histogram">
      <svg
        viewBox={`0 0 ${WIDTH} ${HEIGHT}`}
        role="img"
        aria-label={`${props.label}: ${format.number(count)} values from ${format.number(span[0])} to ${format.number(span[1])}`}
        preserveAspectRatio="none"
      >
        <path d={outline(buckets, span, WIDTH, HEIGHT)} fill={props.colour} />
      </svg>
      <div class="ends soft">
        <span>{format.number(span[0])}</span>
        <span>{format.number(span[1])}</span>
      </div>
    </div>
  );
}
