// The binary format of curves: a JSON header, then all numbers as 64-bit floats.

export interface Curve {
  run: string;
  uri: string;
  tag: string;
  points: number;
  line?: "middle" | "lower" | "upper"; // of a group
  members?: string[];
  x: Float64Array;
  y: Float64Array;
}

export interface SeriesAnswer {
  series: Curve[];
  unread: number;
}

const MAGIC = "ABS1";

/** Decode a response of `POST /series`; the curves share its buffer without copying. */
export function decodeSeries(buffer: ArrayBuffer): SeriesAnswer {
  const magic = new TextDecoder().decode(buffer.slice(0, 4));
  if (magic !== MAGIC) throw new Error("The hub sent curves in an unknown format.");
  const end = 8 + new DataView(buffer).getUint32(4, true);
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 8, end - 8)));
  let offset = end;
  const take = (count: number): Float64Array => {
    const numbers = new Float64Array(buffer, offset, count);
    offset += numbers.byteLength;
    return numbers;
  };
  const series = header.series.map(
    ({ count, ...about }: Omit<Curve, "x" | "y"> & { count: number }) => ({
      ...about,
      x: take(count),
      y: take(count),
    }),
  );
  return { series, unread: header.unread };
}
