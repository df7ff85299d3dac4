// Curves over one axis, on a canvas. Each curve has its own points, so a hundred runs that were
// sampled at different steps need no common axis. Charts share the cursor and the hovered curve. A
// drag zooms, a drag with Shift or a sideways wheel pans, a double click resets the zoom.

import { effect, type Signal, useSignal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { useEffect, useLayoutEffect, useRef } from "preact/hooks";
import * as format from "../format";
import {
  type AxisKind,
  axisText,
  curveAt,
  draw,
  drawAlone,
  drawCurve,
  extent,
  extentWithin,
  frameOf,
  heightAlone,
  interpolated,
  type Plot,
  type PlotCurve,
  type Range,
  share,
  spot,
  svgOf,
  valueAt,
  widened,
} from "../plot";
import { isDark } from "../theme";
import "./chart.css";

/** What charts of a page share: the cursor, and the curve near it. */
export interface Pointer {
  x: number;
  chart: string;
}

export interface ChartProps {
  title: string;
  curves: readonly PlotCurve[];
  height?: number;
  xKind?: AxisKind;
  xLog?: boolean;
  yLog?: boolean;
  range?: Range | undefined; // of x; everything by default
  isLoading?: boolean;
  onZoom?: (range: Range | undefined) => void; // undefined: reset
  pointer?: Signal<Pointer | undefined>;
  hovered?: Signal<string | undefined>; // the key of the hovered curve
  emphasis?: string | undefined;
  onPick?: (key: string) => void;
  children?: ComponentChildren; // beside the title
}

const CLICK_PIXELS = 4;
const WHEEL_STEP = 0.0015;
const SETTLE_MILLISECONDS = 150;

/** The scales of a chart: the requested range of x or all, and the visible range of y. */
export function plotOf(props: ChartProps, width: number, height: number, colours: Colours): Plot {
  const { curves, xLog = false, yLog = false } = props;
  const all = extent(
    curves.map((curve) => curve.x),
    xLog,
  );
  const x = props.range ?? (all ? widened(all, xLog) : ([0, 1] as const));
  const heights = curves.flatMap((curve) =>
    curve.band ? [curve, curve.band.lower, curve.band.upper] : [curve],
  );
  const seen = extentWithin(heights, x, yLog) ?? (yLog ? ([1, 10] as const) : ([0, 1] as const));
  const [low, high] = widened(seen, yLog, 0.04);
  return {
    curves,
    width,
    height,
    x: { range: x, isLog: xLog },
    // The margin below non-negative values does not extend below zero.
    y: { range: [seen[0] >= 0 && low < 0 ? 0 : low, high], isLog: yLog },
    xKind: props.xKind ?? "number",
    emphasis: props.emphasis,
    ...colours,
  };
}

interface Colours {
  ink: string;
  line: string;
}

function coloursOf(element: Element): Colours & { paper: string } {
  const style = getComputedStyle(element);
  const [ink, line, paper] = ["--soft", "--line", "--paper"].map((name) =>
    style.getPropertyValue(name).trim(),
  );
  return { ink: ink ?? "", line: line ?? "", paper: paper ?? "" };
}

function prepared(canvas: HTMLCanvasElement, width: number, height: number) {
  const ratio = window.devicePixelRatio || 1;
  const [across, down] = [Math.round(width * ratio), Math.round(height * ratio)];
  if (canvas.width !== across || canvas.height !== down) {
    canvas.width = across;
    canvas.height = down;
  }
  const pen = canvas.getContext("2d");
  pen?.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen?.clearRect(0, 0, width, height);
  return pen;
}

export function Chart(props: ChartProps) {
  const { height = 200, title } = props;
  const figure = useRef<HTMLElement>(null);
  const box = useRef<HTMLDivElement>(null);
  const base = useRef<HTMLCanvasElement>(null);
  const above = useRef<HTMLCanvasElement>(null);
  const plot = useRef<Plot | undefined>(undefined);
  const latest = useRef(props);
  latest.current = props;
  const moved = useSignal<Range | undefined>(undefined); // while panning, before the URL changes
  const drag = useSignal<{ from: number; to: number } | undefined>(undefined);
  const drawn = useRef(0);

  const shownRange = moved.value ?? props.range;
  const paint = () => {
    const [element, canvas] = [box.current, base.current];
    if (!element || !canvas) return;
    const width = element.clientWidth;
    const { ink, line } = coloursOf(element);
    const input = { ...latest.current, range: moved.peek() ?? latest.current.range };
    const made = plotOf(input, width, height, { ink, line });
    const pen = prepared(canvas, width, height);
    if (pen) draw(pen, made);
    plot.current = made;
    drawn.current += 1;
    if (figure.current) {
      // What was drawn, for tests.
      const points = made.curves.reduce((sum, curve) => sum + curve.x.length, 0);
      figure.current.dataset.curves = String(made.curves.length);
      figure.current.dataset.points = String(points);
      figure.current.dataset.range = made.x.range.join("~");
      figure.current.dataset.drawn = String(drawn.current);
    }
    paintAbove();
  };

  const paintAbove = () => {
    const [element, canvas, made] = [box.current, above.current, plot.current];
    if (!element || !canvas || !made) return;
    const pen = prepared(canvas, made.width, made.height);
    const { pointer, hovered } = latest.current;
    const [at, key] = [pointer?.peek(), hovered?.peek()];
    const isFaded = key !== undefined && made.curves.some((curve) => curve.key === key);
    base.current?.classList.toggle("faded", isFaded);
    if (!pen) return;
    const frame = frameOf(made);
    pen.save();
    pen.beginPath();
    pen.rect(frame.left, frame.top - 4, frame.width + 4, frame.height + 8);
    pen.clip();
    if (isFaded) {
      for (const curve of made.curves) {
        if (curve.key === key) {
          drawCurve(pen, { ...made, emphasis: undefined }, frame, curve, 2.5);
        }
      }
    }
    if (at && at.x >= made.x.range[0] && at.x <= made.x.range[1]) {
      const across = frame.left + share(made.x, at.x) * frame.width;
      pen.strokeStyle = made.ink;
      pen.globalAlpha = 0.6;
      pen.lineWidth = 1;
      pen.beginPath();
      pen.moveTo(Math.round(across) + 0.5, frame.top);
      pen.lineTo(Math.round(across) + 0.5, frame.top + frame.height);
      pen.stroke();
      pen.globalAlpha = 1;
      for (const curve of made.curves.length <= 40 ? made.curves : []) {
        const value = interpolated(curve, at.x);
        const place = value === undefined ? undefined : spot(made, frame, at.x, value);
        if (!place) continue;
        pen.fillStyle = curve.colour;
        pen.beginPath();
        pen.arc(place[0], place[1], curve.key === key ? 4 : 2.5, 0, 2 * Math.PI);
        pen.fill();
      }
    }
    pen.restore();
  };

  useLayoutEffect(() => {
    moved.value = undefined;
  }, [props.range?.[0], props.range?.[1]]);
  const { xKind, xLog, yLog, emphasis } = props;
  useLayoutEffect(paint, [
    props.curves,
    shownRange?.[0],
    shownRange?.[1],
    height,
    xKind,
    xLog,
    yLog,
    emphasis,
  ]);
  useEffect(() => {
    const element = box.current;
    if (!element) return;
    const observer = new ResizeObserver(() => {
      if (element.clientWidth !== plot.current?.width) paint();
    });
    observer.observe(element);
    const stop = effect(() => {
      isDark();
      paint();
    });
    return () => {
      observer.disconnect();
      stop();
    };
  }, []);
  useEffect(() => {
    let frame = 0;
    const stop = effect(() => {
      latest.current.pointer?.value;
      latest.current.hovered?.value;
      cancelAnimationFrame(frame);
      frame = requestAnimationFrame(paintAbove);
    });
    return () => {
      cancelAnimationFrame(frame);
      stop();
    };
  }, [props.pointer, props.hovered]);

  const xOf = (event: { clientX: number }) => {
    const made = plot.current;
    const element = box.current;
    if (!made || !element) return 0;
    const frame = frameOf(made);
    const across = event.clientX - element.getBoundingClientRect().left - frame.left;
    return valueAt(made.x, Math.max(0, Math.min(1, across / frame.width)));
  };
  const look = (event: PointerEvent) => {
    const { pointer, hovered } = latest.current;
    const [made, element] = [plot.current, box.current];
    if (!made || !element) return;
    if (pointer) pointer.value = { x: xOf(event), chart: title };
    if (!hovered) return;
    const { left, top } = element.getBoundingClientRect();
    hovered.value = curveAt(made, event.clientX - left, event.clientY - top)?.key;
  };
  const leave = () => {
    const { pointer, hovered } = latest.current;
    if (pointer) pointer.value = undefined;
    if (hovered) hovered.value = undefined;
  };
  const onPointerDown = (event: PointerEvent) => {
    const [made, element] = [plot.current, box.current];
    if (!made || !element || event.button !== 0 || event.pointerType === "touch") return;
    event.preventDefault();
    const from = xOf(event);
    const start = event.clientX;
    const { range, isLog } = made.x;
    const pans = event.shiftKey;
    element.setPointerCapture(event.pointerId);
    const onMove = (next: PointerEvent) => {
      if (pans) {
        const by = (start - next.clientX) / frameOf(made).width;
        moved.value = [valueAt({ range, isLog }, by), valueAt({ range, isLog }, 1 + by)];
      } else {
        drag.value = { from: start, to: next.clientX };
      }
    };
    const onUp = (next: PointerEvent) => {
      element.removeEventListener("pointermove", onMove);
      element.removeEventListener("pointerup", onUp);
      element.removeEventListener("pointercancel", onUp);
      drag.value = undefined;
      const isClick = Math.abs(next.clientX - start) < CLICK_PIXELS;
      const { onPick, onZoom, hovered } = latest.current;
      if (next.type === "pointercancel") return;
      if (isClick) {
        const key = hovered?.peek();
        if (key !== undefined) onPick?.(key);
      } else if (pans) {
        if (moved.peek()) onZoom?.(moved.peek());
      } else {
        const to = xOf(next);
        onZoom?.(from < to ? [from, to] : [to, from]);
      }
    };
    element.addEventListener("pointermove", onMove);
    element.addEventListener("pointerup", onUp);
    element.addEventListener("pointercancel", onUp);
  };
  // The wheel pans sideways, zooms with Ctrl or ⌘, and otherwise scrolls the page.
  useEffect(() => {
    const element = box.current;
    if (!element) return;
    let timer: ReturnType<typeof setTimeout> | undefined;
    const onWheel = (event: WheelEvent) => {
      const made = plot.current;
      const { onZoom } = latest.current;
      const isZoom = event.ctrlKey || event.metaKey;
      const sideways = event.shiftKey ? event.deltaY || event.deltaX : event.deltaX;
      if (!made || !onZoom || (!isZoom && Math.abs(sideways) <= Math.abs(event.deltaY) / 2)) return;
      event.preventDefault();
      if (isZoom) {
        const at = share(made.x, xOf(event));
        const factor = Math.exp(event.deltaY * WHEEL_STEP);
        const ends = [at - at * factor, at + (1 - at) * factor] as const;
        moved.value = [valueAt(made.x, ends[0]), valueAt(made.x, ends[1])];
      } else {
        const by = sideways * WHEEL_STEP;
        moved.value = [valueAt(made.x, by), valueAt(made.x, 1 + by)];
      }
      clearTimeout(timer);
      timer = setTimeout(() => latest.current.onZoom?.(moved.peek()), SETTLE_MILLISECONDS);
    };
    element.addEventListener("wheel", onWheel, { passive: false });
    return () => {
      element.removeEventListener("wheel", onWheel);
      clearTimeout(timer);
    };
  }, []);

  const selected = drag.value;
  const left = box.current?.getBoundingClientRect().left ?? 0;
  const named =
    props.hovered?.value === undefined
      ? undefined
      : props.curves.find((curve) => curve.key === props.hovered?.value);
  const isHere = props.pointer?.value?.chart === title;
  const stage = title.includes(", ") ? "" : title.slice(0, title.lastIndexOf("/") + 1);
  return (
    <figure class={`chart ${props.isLoading ? "waits" : ""}`} ref={figure} data-chart={title}>
      <figcaption>
        <span class="name" title={title}>
          {stage && <span class="soft">{stage}</span>}
          {title.slice(stage.length)}
        </span>
        {props.children}
      </figcaption>
      {/* biome-ignore lint/a11y/noStaticElementInteractions: the page has keys for the same */}
      <div
        class="plot"
        ref={box}
        style={{ height: `${height}px` }}
        onPointerDown={onPointerDown}
        onPointerMove={look}
        onPointerLeave={leave}
        onDblClick={() => props.onZoom?.(undefined)}
      >
        <canvas
          ref={base}
          role="img"
          aria-label={`${title}: ${format.plural(props.curves.length, "curve")}`}
        />
        <canvas ref={above} />
        {selected && (
          <div
            class="selection"
            style={{
              left: `${Math.min(selected.from, selected.to) - left}px`,
              width: `${Math.abs(selected.to - selected.from)}px`,
            }}
          />
        )}
        {isHere && named && props.pointer?.value && (
          <div class="tip" aria-hidden="true">
            <span class="swatch" style={{ background: named.colour }} />
            {named.label}{" "}
            <strong>
              {format.number(interpolated(named, props.pointer.value.x) ?? Number.NaN)}
            </strong>{" "}
            <span class="soft">at {axisText(props.pointer.value.x, props.xKind ?? "number")}</span>
          </div>
        )}
      </div>
    </figure>
  );
}

// Files.

const PICTURE_WIDTH = 960;
const PICTURE_HEIGHT = 480;

function pictureOf(props: ChartProps): Plot {
  const colours = coloursOf(document.documentElement);
  const made = plotOf(props, PICTURE_WIDTH, PICTURE_HEIGHT, colours);
  return { ...made, paper: colours.paper, title: props.title };
}

export function saveSvg(props: ChartProps): void {
  save(new Blob([svgOf(pictureOf(props))], { type: "image/svg+xml" }), props.title, "svg");
}

export function savePng(props: ChartProps): void {
  const plot = pictureOf(props);
  const canvas = document.createElement("canvas");
  const height = heightAlone(plot);
  [canvas.width, canvas.height] = [plot.width * 2, height * 2];
  const pen = canvas.getContext("2d");
  if (!pen) return;
  pen.scale(2, 2);
  pen.fillStyle = plot.paper ?? "";
  pen.fillRect(0, 0, plot.width, height);
  drawAlone(pen, plot);
  canvas.toBlob((blob) => blob && save(blob, props.title, "png"));
}

/** Make the browser save a file, named by the title without characters that names may not have. */
export function save(blob: Blob, title: string, ending: string): void {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = `${title.replace(/[^\w.=-]+/g, "_").slice(0, 80) || "chart"}.${ending}`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
