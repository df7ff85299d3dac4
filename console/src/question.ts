// The part of the query language that the console writes and completes. The hub parses it; see
// docs/reference/questions.md.

export const RUN_FIELDS = [
  "run",
  "experiment",
  "name",
  "state",
  "created",
  "started",
  "ended",
  "duration",
  "user",
  "host",
  "job",
  "tags",
  "exit_code",
  "reason",
  "git_commit",
  "workspace",
  "heartbeat",
  "root",
  "uri",
] as const;
export const TIMES: readonly string[] = ["created", "started", "ended", "heartbeat"];

export type Group = "hparams" | "metrics" | "tags";

export interface Field {
  group: Group | "";
  name: string;
  statistic: string; // of a metric; empty for the last value
}

const WORD = /^[A-Za-z_]\w*$/;
const ESCAPES: Record<string, string> = {
  "\\": "\\\\",
  '"': '\\"',
  "\n": "\\n",
  "\t": "\\t",
  "\r": "\\r",
};
const STATISTIC = /\.(last|min|max|mean|first|count|nans|infinities|(?:first|last|min|max)_step)$/;

/** A string literal of the language. */
export function quoted(text: string): string {
  return `"${text.replace(/[\\"\n\t\r]/g, (one) => ESCAPES[one] ?? one)}"`;
}

function unquoted(text: string): string {
  const inner = text.slice(1, -1);
  return inner.replace(/\\(.)/gs, (_, one: string) =>
    one === "n" ? "\n" : one === "t" ? "\t" : one === "r" ? "\r" : one,
  );
}

/** A literal of the language; numbers that JSON lacks become `none`. */
export function literal(value: unknown): string {
  if (value === null || value === undefined) return "none";
  if (typeof value === "number") return String(value);
  if (typeof value === "boolean") return value ? "true" : "false";
  return quoted(String(value));
}

export function writeField({ group, name, statistic }: Field): string {
  if (!group) return name;
  const named = WORD.test(name) ? `${group}.${name}` : `${group}[${quoted(name)}]`;
  return statistic && statistic !== "last" ? `${named}.${statistic}` : named;
}

/** Parse a field; undefined if it is invalid. */
export function readField(text: string): Field | undefined {
  const found = /^(hparams|metrics|tags)([.[])/.exec(text);
  if (!found) {
    const isField = (RUN_FIELDS as readonly string[]).includes(text);
    return isField ? { group: "", name: text, statistic: "" } : undefined;
  }
  const group = found[1] as Group;
  const rest = text.slice(group.length);
  const bracketed = /^\[("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')\](?:\.(\w+))?$/s.exec(rest);
  if (bracketed?.[1]) {
    return { group, name: unquoted(bracketed[1]), statistic: bracketed[2] ?? "" };
  }
  if (!rest.startsWith(".") || rest.length < 2) return undefined;
  const plain = rest.slice(1);
  const statistic = group === "metrics" ? STATISTIC.exec(plain) : null;
  const name = statistic ? plain.slice(0, -statistic[0].length) : plain;
  return /^[\w/.:-]+$/.test(name) ? { group, name, statistic: statistic?.[1] ?? "" } : undefined;
}

export interface Token {
  kind: "field" | "word" | "number" | "text" | "sign";
  text: string;
  start: number;
  end: number;
  isOpen: boolean; // a string without its closing quote
}

const TOKEN =
  /(?<text>"(?:[^"\\]|\\.)*"?|'(?:[^'\\]|\\.)*'?)|(?<field>(?:hparams|metrics|tags)(?:\[(?:"(?:[^"\\]|\\.)*"?|'(?:[^'\\]|\\.)*'?)?\]?(?:\.\w*)?|\.[\w/.:-]*))|(?<number>[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?(?![\w.]))|(?<word>[^\s"'()[\],=!<>~]+)|(?<sign>==|!=|<=|>=|[<>=~()[\],])/gsy;

/** Split a condition into tokens; invalid text is skipped. */
export function tokens(text: string): Token[] {
  const found: Token[] = [];
  let at = 0;
  while (at < text.length) {
    TOKEN.lastIndex = at;
    const match = TOKEN.exec(text);
    if (!match?.groups) {
      at += 1;
      continue;
    }
    const kinds = Object.entries(match.groups).filter(([, one]) => one !== undefined);
    const kind = (kinds[0]?.[0] ?? "word") as Token["kind"];
    const whole = match[0];
    const isOpen =
      kind === "text" && (whole.length < 2 || !/^(["'])(?:[^\\]|\\.)*\1$/s.test(whole));
    const isField = kind === "word" && readField(whole) !== undefined;
    found.push({
      kind: isField ? "field" : kind,
      text: whole,
      start: at,
      end: at + whole.length,
      isOpen,
    });
    at += whole.length;
  }
  return found;
}

/** What may come next in a condition that is being typed. */
export type Expected =
  | { kind: "field"; typed: string; start: number }
  | { kind: "sign"; typed: string; start: number; field: string }
  | { kind: "value"; typed: string; start: number; field: string }
  | { kind: "join"; typed: string; start: number };

const SIGNS = new Set(["==", "!=", "<", "<=", ">", ">=", "=", "~", "in"]);
const JOINS = new Set(["and", "or"]);

/** What is being typed before the caret: a field, an operator, a value, or `and`/`or`. */
export function expected(text: string): Expected {
  const all = tokens(text);
  const last = all.at(-1);
  const isTyping = last !== undefined && last.end === text.length && !/\s$/.test(text);
  const done = isTyping ? all.slice(0, -1) : all;
  const typed = isTyping ? last.text : "";
  const start = isTyping ? last.start : text.length;
  const before = done.at(-1);
  const sign = before?.text.toLowerCase() ?? "";
  const one = (offset: number) => done.at(offset)?.text ?? "";
  if (isTyping && last.kind === "sign" && !/[(,[]/.test(last.text)) {
    if (before?.kind === "field" && /^[=!<>~]/.test(last.text))
      return { kind: "sign", typed, start, field: before.text };
    return { kind: "join", typed: "", start: text.length };
  }
  if (isTyping && last.kind === "sign") return afterBracket(all, text.length);
  if (before && SIGNS.has(sign) && sign !== "in") {
    return { kind: "value", typed, start, field: one(-2) };
  }
  if (before && (before.text === "(" || before.text === ",")) {
    const inside = afterBracket(done, start);
    return inside.kind === "value" ? { ...inside, typed } : { kind: "field", typed, start };
  }
  if (!before || JOINS.has(sign) || (sign === "not" && done.at(-2)?.kind !== "field")) {
    return { kind: "field", typed, start };
  }
  if (before.kind === "field" && done.at(-2)?.text !== "in" && !SIGNS.has(one(-2))) {
    return { kind: "sign", typed, start, field: before.text };
  }
  if (sign === "in") return { kind: "field", typed, start };
  return { kind: "join", typed, start };
}

/** In a list after `in (` a value is next, otherwise a field. */
function afterBracket(all: readonly Token[], start: number): Expected {
  let at = all.length - 1;
  while (at >= 0 && all[at]?.text !== "(" && all[at]?.text !== "[") at -= 1;
  const field = all[at - 2];
  if (all[at - 1]?.text === "in" && field?.kind === "field") {
    return { kind: "value", typed: "", start, field: field.text };
  }
  return { kind: "field", typed: "", start };
}

/** The conditions joined by `and` at the top level; a single one if it is not a conjunction. */
export function conjuncts(where: string): string[] {
  const text = where.trim();
  if (!text) return [];
  const parts: string[] = [];
  let depth = 0;
  let from = 0;
  for (const token of tokens(text)) {
    if (token.isOpen) return [text];
    if (token.text === "(" || token.text === "[") depth += 1;
    else if (token.text === ")" || token.text === "]") depth -= 1;
    else if (depth === 0 && token.kind === "word" && token.text === "or") return [text];
    else if (depth === 0 && token.kind === "word" && token.text === "and") {
      parts.push(text.slice(from, token.start).trim());
      from = token.end;
    }
  }
  parts.push(text.slice(from).trim());
  return parts.filter(Boolean);
}

/** Join conditions with `and`; those with an `or` get parentheses. */
export function conjunction(parts: readonly string[]): string {
  if (parts.length < 2) return parts[0] ?? "";
  return parts.map((part) => (hasOr(part) ? `(${part})` : part)).join(" and ");
}

function hasOr(part: string): boolean {
  let depth = 0;
  for (const { text, kind } of tokens(part)) {
    if (text === "(" || text === "[") depth += 1;
    else if (text === ")" || text === "]") depth -= 1;
    else if (depth === 0 && kind === "word" && text === "or") return true;
  }
  return false;
}

/** The values, as literals, that a condition such as `field in (1, 2)` allows for a field. */
function allowed(condition: string, field: string): string[] | undefined {
  const all = tokens(condition);
  const [name, sign, ...rest] = all;
  const known = readField(name?.text ?? "");
  if (!known || writeField(known) !== field || !sign) return undefined;
  const values = rest.filter((one) => !["(", ")", ","].includes(one.text)).map((one) => one.text);
  if ((sign.text === "==" || sign.text === "=") && rest.length === 1) return values;
  if (sign.text === "in" && rest.length > 2 && rest[0]?.text === "(") return values;
  return undefined;
}

/** The values that a filter allows for a field, and the filter without that condition. */
export function choice(where: string, field: string): { values: string[]; rest: string } {
  const parts = conjuncts(where);
  const at = parts.findIndex((part) => allowed(part, field) !== undefined);
  if (at < 0) return { values: [], rest: where.trim() };
  const rest = conjunction(parts.filter((_, index) => index !== at));
  return { values: allowed(parts[at] ?? "", field) ?? [], rest };
}

/** Add or remove an allowed value of a field, as a literal; `none` excludes the others. */
export function toggled(where: string, field: string, value: string): string {
  const { values, rest } = choice(where, field);
  const others = values.filter((one) => one !== value && one !== "none");
  const isOff = values.includes(value);
  const next = isOff ? others : value === "none" ? [value] : [...others, value];
  const condition =
    next.length > 1
      ? `${field} in (${next.join(", ")})`
      : next.map((one) => `${field} == ${one}`)[0];
  return conjunction([rest, condition ?? ""].filter(Boolean));
}

/** A filter of runs: selectors and a condition. */
export interface Filter {
  selectors: readonly string[];
  where: string;
}

const CONDITION_WORDS = new Set(["and", "or", "not", "in", "true", "false", "none"]);

/**
 * Parse the text of the filter: `SELECTOR… where CONDITION`, or only one of the two. Without
 * `where`, a text with only names is selectors.
 */
export function readFilter(text: string): Filter {
  const found = /^((?:[^"'\s]+\s+)*?)where(?:\s+([\s\S]*))?$/.exec(text.trim());
  if (found) return { selectors: words(found[1] ?? ""), where: (found[2] ?? "").trim() };
  const all = text.trim().split(/\s+/).filter(Boolean);
  const areNames = all.every(
    (word) =>
      /^[a-z]+:\S/.test(word) ||
      (/^[^\s"'()[\]=<>~!]+$/.test(word) && !CONDITION_WORDS.has(word) && !isField(word)),
  );
  if (areNames) return { selectors: words(text), where: "" };
  return { selectors: [], where: text.trim() };
}

/** Whether a word is a field, or the prefix of one in a group. */
function isField(word: string): boolean {
  return readField(word) !== undefined || /^(hparams|metrics|tags)[.[]/.test(word);
}

function words(text: string): string[] {
  return text.split(/[\s,]+/).filter(Boolean);
}

/** Format a filter; the inverse of `readFilter`. */
export function writeFilter({ selectors, where }: Filter): string {
  const names = selectors.join(" ");
  if (!where) return names;
  if (names) return `${names} where ${where}`;
  return readFilter(where).where === where ? where : `where ${where}`;
}
