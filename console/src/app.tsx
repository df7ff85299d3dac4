// The routes of the console. Each page has an entry here and one in `CONSOLE_PATHS` of hub/pages.py.

import type { VNode } from "preact";
import { Empty } from "./components/basics";
import { Frame } from "./components/frame";
import { Boards } from "./pages/boards";
import { Compare } from "./pages/compare";
import { Jobs } from "./pages/jobs";
import { People } from "./pages/people";
import { RunPage } from "./pages/run";
import { Runs } from "./pages/runs";
import { Storage } from "./pages/storage";
import { Sweep } from "./pages/sweep";
import { address, match, place } from "./router";

const PAGES: readonly [string, string, (parameters: Record<string, string>) => VNode][] = [
  ["/", "Runs", () => <Runs />],
  ["/runs", "Runs", () => <Runs />],
  ["/runs/:id", "Run", ({ id = "" }) => <RunPage key={id} id={id} />],
  ["/compare", "Compare", () => <Compare />],
  ["/sweep", "Sweep", () => <Sweep />],
  ["/boards", "Boards", () => <Boards />],
  ["/jobs", "Jobs", () => <Jobs />],
  ["/storage", "Storage", () => <Storage />],
  ["/people", "People", () => <People />],
];

function find(path: string) {
  for (const [pattern, title, make] of PAGES) {
    const parameters = match(pattern, path);
    if (parameters) return { title, page: () => make(parameters) };
  }
  return undefined;
}

/** Whether a path of the hub is a page of the console. */
export function isPage(path: string): boolean {
  return find(path) !== undefined;
}

export function App() {
  const found = find(place.value.path);
  const title = found?.title ?? "Not found";
  document.title = `${title} · Aboard`;
  return (
    <Frame title={title}>
      {found?.page() ?? (
        <Empty title="Page not found">
          <p>
            Go to <a href={address("/runs")}>the runs</a>.
          </p>
        </Empty>
      )}
    </Frame>
  );
}
