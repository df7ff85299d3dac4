// The URL as the state of the page: path and query are signals, changed with `go` and `setQuery`.

import { signal } from "@preact/signals";
import { address, front, pathOf, type Query, search } from "./address";

export interface Place {
  path: string;
  query: URLSearchParams;
}

function here(): Place {
  const url = new URL(typeof window === "undefined" ? front : window.location.href);
  return { path: pathOf(url) ?? "/", query: url.searchParams };
}

/** The current path and query; changes with every navigation. */
export const place = signal<Place>(here());

let isPage: (path: string) => boolean = () => false;

/** Go to a page of the console. `replace` adds no entry to the history. */
export function go(path: string, query: Query = {}, replace = false): void {
  const target = address(path, query);
  if (replace) window.history.replaceState(null, "", target);
  else window.history.pushState(null, "", target);
  const moved = path !== place.value.path;
  place.value = here();
  if (moved && !replace) window.scrollTo(0, 0);
}

/** Change some parameters of the current page; undefined and empty ones are removed. */
export function setQuery(changes: Query, replace = false): void {
  const { path, query } = place.value;
  const kept: Record<string, string[]> = {};
  for (const name of new Set(query.keys())) kept[name] = query.getAll(name);
  go(path, { ...kept, ...changes }, replace);
}

export { address, search };

/** Match a path against a pattern such as `/runs/:id`; returns its parameters. */
export function match(pattern: string, path: string): Record<string, string> | undefined {
  const expected = pattern.split("/");
  const given = path.split("/");
  if (expected.length !== given.length) return undefined;
  const found: Record<string, string> = {};
  for (const [index, part] of expected.entries()) {
    const value = given[index] ?? "";
    if (part.startsWith(":") && value) found[part.slice(1)] = decoded(value);
    else if (part !== value) return undefined;
  }
  return found;
}

function decoded(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

/** Follow links between pages of the console without reloading; other links are not changed. */
export function startRouter(pages: (path: string) => boolean): void {
  isPage = pages;
  window.addEventListener("popstate", () => {
    place.value = here();
  });
  document.addEventListener("click", (event) => {
    const link = event.target instanceof Element ? event.target.closest("a") : null;
    const isPlain = event.button === 0 && !(event.metaKey || event.ctrlKey || event.shiftKey);
    if (!link || !isPlain || event.altKey || event.defaultPrevented) return;
    if (link.target || link.hasAttribute("download")) return;
    const url = new URL(link.href);
    const path = pathOf(url);
    if (path === undefined || !isPage(path) || url.hash) return;
    event.preventDefault();
    const moved = path !== place.value.path;
    window.history.pushState(null, "", url);
    place.value = here();
    if (moved) window.scrollTo(0, 0);
  });
}
