// The hub's address. The server writes a `<base>` into the page that leads from its own path to the
// hub's front page, so a prefix that a proxy adds needs no setting.

const base = typeof document === "undefined" ? "http://localhost/" : document.baseURI;

/** The hub's front page; read once, because navigation changes what the base resolves to. */
export const front = new URL(".", base);

export type Query = Record<string, string | number | boolean | readonly string[] | undefined>;

/** Format a query string; lists are repeated, undefined and empty values are left out. */
export function search(query: Query): string {
  const written = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    if (Array.isArray(value)) for (const one of value) written.append(name, one);
    else if (value !== undefined && value !== "") written.set(name, String(value));
  }
  const text = written.toString();
  return text ? `?${text}` : "";
}

/** The address of a path of the hub, such as `/runs` or `/api/v1/me`. */
export function address(path: string, query: Query = {}): string {
  return front.pathname + path.replace(/^\//, "") + search(query);
}

/** The path below the hub of a URL; undefined if it is outside the hub. */
export function pathOf(url: URL): string | undefined {
  const isInside = url.origin === front.origin && url.pathname.startsWith(front.pathname);
  return isInside ? `/${url.pathname.slice(front.pathname.length)}` : undefined;
}
