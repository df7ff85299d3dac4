// Where the hub is. The server writes a `<base>` into the page that leads from the page's own
// address to the hub's front page, so a prefix that a proxy adds needs no setting.

const base = typeof document === "undefined" ? "http://localhost/" : document.baseURI;

/** The hub's front page; the base is read once, as later addresses of the page change it. */
export const front = new URL(".", base);

export type Query = Record<string, string | number | boolean | readonly string[] | undefined>;

/** Write a query; lists are repeated, and what is undefined or empty is left out. */
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

/** The path of the hub that an address means, or undefined for one outside the hub. */
export function pathOf(url: URL): string | undefined {
  const isInside = url.origin === front.origin && url.pathname.startsWith(front.pathname);
  return isInside ? `/${url.pathname.slice(front.pathname.length)}` : undefined;
}
