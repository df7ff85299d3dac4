// Colours of runs: ten that are distinct for all kinds of colour vision, then lighter and darker
// variants. A run has the same colour on every page.

/** For light and dark backgrounds; most slots have a similar hue in both. */
export const COLOURS = {
  light: [
    "#1218f3",
    "#b78e0f",
    "#1c8157",
    "#db070c",
    "#a365fb",
    "#88203f",
    "#309eca",
    "#f84fa3",
    "#2c4775",
    "#821bb0",
  ],
  dark: [
    "#4671e8",
    "#dea835",
    "#0fdda7",
    "#ff435f",
    "#b585ff",
    "#bde63a",
    "#89b3d9",
    "#ffc4f6",
    "#6f8824",
    "#b67d99",
  ],
} as const;

const VARIANTS = [0, 0.35, -0.3]; // of lightness: towards white, towards black
const SLOTS = COLOURS.light.length * VARIANTS.length;

/** A 32-bit hash of a text, the same in every browser (FNV-1a). */
export function hash(text: string): number {
  let value = 0x811c9dc5;
  for (let index = 0; index < text.length; index += 1) {
    value = Math.imul(value ^ text.charCodeAt(index), 0x01000193);
  }
  return value >>> 0;
}

/**
 * Assign a slot to each run. A run gets its own slot unless another of these runs has it, so that
 * ten runs always have ten hues and a single run always has the same colour.
 */
export function slots(ids: readonly string[]): Map<string, number> {
  const hues = COLOURS.light.length;
  const taken = new Set<number>();
  const given = new Map<string, number>();
  const ordered = [...new Set(ids)].sort(
    (one, other) => hash(one) - hash(other) || (one < other ? -1 : 1),
  );
  for (const id of ordered) {
    const own = hash(id) % hues;
    const start = Math.floor(taken.size / hues) * hues;
    let slot = (start + own) % SLOTS;
    for (let step = 0; step < hues && taken.has(slot); step += 1) {
      slot = (start + ((own + step + 1) % hues)) % SLOTS;
    }
    taken.add(slot);
    given.set(id, slot);
  }
  return given;
}

export function colour(slot: number, dark: boolean): string {
  const list = dark ? COLOURS.dark : COLOURS.light;
  const plain = list[slot % list.length] ?? list[0];
  const variant = VARIANTS[Math.floor(slot / list.length) % VARIANTS.length] ?? 0;
  return variant === 0 ? plain : mixed(plain, variant > 0 ? 255 : 0, Math.abs(variant));
}

function mixed(plain: string, towards: number, share: number): string {
  const parts = [1, 3, 5].map((at) => {
    const value = Number.parseInt(plain.slice(at, at + 2), 16);
    return Math.round(value + (towards - value) * share)
      .toString(16)
      .padStart(2, "0");
  });
  return `#${parts.join("")}`;
}
