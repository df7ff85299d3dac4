// The names of the hub's roots, and the shortest distinct names of runs.

import { signal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { get, type Root, type Run } from "./api";
import { useLive, useLoaded } from "./loading";

const roots = signal<readonly Pick<Root, "uri" | "name" | "runs">[]>([]);

/** Load the names, and again when `key` changes. */
export function useRoots(key: string): void {
  const loaded = useLoaded(key, (signal) => get<{ roots: Root[] }>("/roots", {}, signal));
  useLive(["runs"], loaded.refresh);
  useEffect(() => {
    if (loaded.data) roots.value = loaded.data.roots;
  }, [loaded.data]);
}

/** Whether runs are below more than one root. */
export function hasSeveralRoots(): boolean {
  return roots.value.filter((root) => root.runs > 0).length > 1;
}

/** The hub's name of a root: the shortest unique one. */
export function rootName(uri: string): string {
  return roots.value.find((root) => root.uri === uri)?.name ?? uri;
}

export interface RunLabel {
  before: string; // the root and the experiment, if they differ between runs
  name: string;
}

/** The shortest distinct names of runs, by id; optionally always with their experiments. */
export function labelsOf(
  runs: readonly Pick<Run, "id" | "root" | "experiment" | "name">[],
  withExperiments = false,
): ReadonlyMap<string, RunLabel> {
  const differ = (field: "root" | "experiment") => new Set(runs.map((run) => run[field])).size > 1;
  const withRoot = differ("root");
  const withExperiment = withExperiments || differ("experiment");
  return new Map(
    runs.map((run) => {
      const root = withRoot ? `${rootName(run.root)}: ` : "";
      const experiment = withExperiment && run.experiment ? `${run.experiment}/` : "";
      return [run.id, { before: root + experiment, name: run.name }];
    }),
  );
}
