// Terminal output: parses colours and weights into pieces of text, never into markup.

export interface Style {
  colour?: string; // one of the sixteen names, or #rrggbb
  ground?: string;
  isBold?: boolean;
  isDim?: boolean;
  isItalic?: boolean;
  isUnderlined?: boolean;
}

export interface Piece {
  text: string;
  style: Style;
}

const NAMES = ["black", "red", "green", "yellow", "blue", "magenta", "cyan", "white"];
// biome-ignore lint/suspicious/noControlCharactersInRegex: matches escape sequences
const SEQUENCE = /\x1b\[([0-9;:?]*)[ -/]*([@-~])|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b[@-_]?/g;
// biome-ignore lint/suspicious/noControlCharactersInRegex: removes control characters
const OTHERS = /[\u0000-\u0008\u000b-\u001f\u007f]/g;

/** Split a line into pieces of one style each; the style continues from the previous line. */
export function parseLine(line: string, before: Style = {}): { pieces: Piece[]; style: Style } {
  const pieces: Piece[] = [];
  let style = before;
  let last = 0;
  const shown = overwritten(line);
  const add = (text: string) => {
    const clean = text.replace(OTHERS, "");
    if (clean) pieces.push({ text: clean, style });
  };
  for (const found of shown.matchAll(SEQUENCE)) {
    add(shown.slice(last, found.index));
    last = found.index + found[0].length;
    if (found[2] === "m") style = styled(style, found[1] ?? "");
  }
  add(shown.slice(last));
  return { pieces, style };
}

/** The final text of a line with carriage returns, such as a progress bar. */
export function overwritten(line: string): string {
  const parts = line.replace(/\r+$/, "").split("\r");
  return parts.at(-1) ?? "";
}

/** A line without colours, for searching and copying. */
export function plainLine(line: string): string {
  return overwritten(line).replace(SEQUENCE, "").replace(OTHERS, "");
}

function styled(before: Style, text: string): Style {
  const codes = text.split(/[;:]/).map((one) => Number(one || 0));
  let style: Style = { ...before };
  for (let at = 0; at < codes.length; at += 1) {
    const code = codes[at] ?? 0;
    if (code === 0) style = {};
    else if (code === 1) style.isBold = true;
    else if (code === 2) style.isDim = true;
    else if (code === 3) style.isItalic = true;
    else if (code === 4) style.isUnderlined = true;
    else if (code === 22) style = without(style, "isBold", "isDim");
    else if (code === 23) style = without(style, "isItalic");
    else if (code === 24) style = without(style, "isUnderlined");
    else if (code === 39) style = without(style, "colour");
    else if (code === 49) style = without(style, "ground");
    else if (code === 38 || code === 48) {
      const [colour, used] = extended(codes.slice(at + 1));
      at += used;
      if (colour) style[code === 38 ? "colour" : "ground"] = colour;
    } else {
      const name = NAMES[code % 10];
      const [tens, isBright] = [Math.floor(code / 10), code >= 90];
      if (name && (tens === 3 || tens === 9)) style.colour = isBright ? `bright-${name}` : name;
      if (name && (tens === 4 || tens === 10)) style.ground = isBright ? `bright-${name}` : name;
    }
  }
  return style;
}

function without(style: Style, ...names: (keyof Style)[]): Style {
  const kept = { ...style };
  for (const name of names) delete kept[name];
  return kept;
}

/** A 256-colour (`5;n`) or true-colour (`2;r;g;b`) code, and how many numbers it has. */
function extended(codes: readonly number[]): [string | undefined, number] {
  const hex = (parts: readonly number[]) =>
    `#${parts.map((one) => Math.max(0, Math.min(255, one)).toString(16).padStart(2, "0")).join("")}`;
  if (codes[0] === 2 && codes.length >= 4) return [hex(codes.slice(1, 4)), 4];
  if (codes[0] !== 5 || codes[1] === undefined) return [undefined, codes.length];
  const number = codes[1];
  if (number < 8) return [NAMES[number], 2];
  if (number < 16) return [`bright-${NAMES[number - 8]}`, 2];
  if (number < 232) {
    const cube = number - 16;
    const level = (one: number) => (one === 0 ? 0 : 55 + one * 40);
    const parts = [Math.floor(cube / 36), Math.floor(cube / 6) % 6, cube % 6];
    return [hex(parts.map(level)), 2];
  }
  const grey = 8 + (Math.min(number, 255) - 232) * 10;
  return [hex([grey, grey, grey]), 2];
}

export interface Line {
  pieces: readonly Piece[];
  plain: string;
}

/** The lines of output that arrives in chunks; only the last ones are kept. */
export class Output {
  lines: Line[] = [];
  dropped = 0;
  private rest = "";
  private style: Style = {};

  constructor(readonly most = 50_000) {}

  add(text: string): void {
    const parts = (this.rest + text).split("\n");
    this.rest = parts.pop() ?? "";
    for (const part of parts) {
      const { pieces, style } = parseLine(part, this.style);
      this.style = style;
      this.lines.push({ pieces, plain: plainLine(part) });
    }
    const extra = this.lines.length - this.most;
    if (extra > 0) {
      this.lines.splice(0, extra);
      this.dropped += extra;
    }
  }

  /** All lines, including an unfinished last one. */
  get all(): readonly Line[] {
    if (!this.rest) return this.lines;
    const { pieces } = parseLine(this.rest, this.style);
    return [...this.lines, { pieces, plain: plainLine(this.rest) }];
  }
}

/** Split pieces so that each match of a text is its own piece; case does not matter. */
export function marked(pieces: readonly Piece[], sought: string): (Piece & { isFound: boolean })[] {
  const whole = pieces.map((piece) => piece.text).join("");
  const low = whole.toLowerCase();
  const needle = sought.toLowerCase();
  const inside = new Uint8Array(whole.length);
  // A letter whose lower case has another length would shift the positions.
  for (let at = 0; needle && low.length === whole.length; ) {
    at = low.indexOf(needle, at);
    if (at < 0) break;
    inside.fill(1, at, at + needle.length);
    at += needle.length;
  }
  const found: (Piece & { isFound: boolean })[] = [];
  let offset = 0;
  for (const { text, style } of pieces) {
    for (let start = 0; start < text.length; ) {
      const isFound = inside[offset + start] === 1;
      let end = start + 1;
      while (end < text.length && (inside[offset + end] === 1) === isFound) end += 1;
      found.push({ text: text.slice(start, end), style, isFound });
      start = end;
    }
    offset += text.length;
  }
  return found;
}
