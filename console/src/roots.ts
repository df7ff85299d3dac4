// The names of the hub's roots, and what tells some runs apart.

import { signal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { get, type Root, type Run } from "./api";
import { useLive, useLoaded } from "./loading";

const roots = signal<readonly Pick<Root, "uri" | "name" | "runs">[]>([]);

/** Keep the names up to date; `key` changes when it is time to look again. */
export function useRoots(key: string): void {
  const loaded = useLoaded(key, (signal) => get<{ roots: Root[] }>("/roots", {}, signal));
  useLive(["runs"], loaded.refresh);
  useEffect(() => {
    if (loaded.data) roots.value = loaded.data.roots;
  }, [loaded.data]);
}

/** Whether runs lie below more than one root. */
export function hasSeveralRoots(): boolean {
  return roots.value.filter((root) => root.runs > 0).length > 1;
}

/** The hub's name of a root: the shortest that no other root has. */
export function rootName(uri: string): string {
  return roots.value.find((root) => root.uri === uri)?.name ?? uri;
}

export interface RunLabel {
  before: string; // the root and the experiment, where they are not the same for all
  name: string;
}

/** The shortest names that tell runs apart, by their ids; or with their experiments anyway. */
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
