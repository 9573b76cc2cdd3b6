// One chart: drawn by Observable Plot, read by pointer, touch and keyboard.
const LETTER = 6.6;

/**
 * Draw into `host`. `points` are what can be pointed at, `at` gives the x and y of one in data, `tip` its title and
 * lines, `series` what it belongs to, `label` says what the chart shows; the rest are options of Plot.
 */
function drawChart(host, { points, at, tip, series, label, focus, onpick, marks, ...options }) {
  const pointed = (more) => Plot.pointer({ maxRadius: 40, ...more });
  const ring =
    focus?.(pointed) ??
    Plot.dot(
      points,
      pointed({
        x: (one) => at(one).x,
        y: (one) => at(one).y,
        r: 7,
        fill: "none",
        stroke: "currentColor",
        strokeWidth: 1.8,
      }),
    );
  const [across, down] = [writtenAxis("X", options.x), writtenAxis("Y", options.y)];
  const svg = Plot.plot({
    style: { fontSize: "12px", fontFamily: "inherit", background: "none", overflow: "visible" },
    ...options,
    x: across.scale,
    y: down.scale,
    marks: [...across.marks, ...down.marks, ...marks, ring],
  });
  svg.querySelector("style")?.remove(); // its rules stand in page.css, which the policy of the page allows
  svg.setAttribute("aria-hidden", "true");
  const keys = onpick
    ? "arrow keys go from one to the next, Enter picks one"
    : "arrow keys go from one to the next";
  const frame = element(
    "div",
    { class: "chart", tabindex: "0", role: "group", "aria-label": `${label}; ${keys}` },
    svg,
  );
  host.append(frame);
  frame.addEventListener("pointerdown", (event) => event.stopPropagation(), true); // Plot would hold the point fast
  const show = (one) => showTip(...tip(one), onScreen(svg, at(one)));
  svg.addEventListener("input", () => (svg.value ? show(svg.value) : hideTip()));
  if (onpick) svg.addEventListener("click", () => svg.value && onpick(svg.value));
  byKeyboard(frame, svg, points, at, series, show, onpick);
  return svg;
}

/**
 * An axis whose ticks are given one by one: the scale without its own axis, and marks for the ticks, all of which are
 * written. Plot leaves out the text of some on a logarithmic axis.
 */
function writtenAxis(side, { ticks, tickFormat, grid, label, labelAnchor, labelArrow, ...scale }) {
  if (!Array.isArray(ticks))
    return { scale: { ticks, tickFormat, grid, label, labelAnchor, labelArrow, ...scale }, marks: [] };
  const axis = Plot[`axis${side}`](ticks, { text: tickFormat, label, labelAnchor, labelArrow });
  return { scale: { ...scale, axis: null }, marks: [grid ? Plot[`grid${side}`](ticks) : null, axis] };
}

/** Where a point of the data stands in the window. */
function onScreen(svg, { x, y }) {
  const box = svg.getBoundingClientRect();
  const scale = box.width / svg.viewBox.baseVal.width;
  const along = (name, value) => {
    const found = svg.scale(name);
    return found.apply(value) + (found.bandwidth ?? 0) / 2;
  };
  return { x: box.left + along("x", x) * scale, y: box.top + along("y", y) * scale };
}

function byKeyboard(frame, svg, points, at, series, show, onpick) {
  let place = -1;
  const step = (by) => (place + by + points.length) % points.length;
  /** the first point of the next series, or of the one before */
  const jump = (by) => {
    const names = [...new Set(points.map(series))];
    const next =
      names[(names.indexOf(series(points[Math.max(place, 0)])) + by + names.length) % names.length];
    return points.findIndex((one) => series(one) === next);
  };
  const moves = {
    ArrowRight: () => step(1),
    ArrowLeft: () => step(-1),
    ArrowDown: () => jump(1),
    ArrowUp: () => jump(-1),
  };
  frame.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && onpick && points[place]) return onpick(points[place]);
    if (!moves[event.key] || !points.length) return undefined;
    event.preventDefault();
    place = place < 0 ? 0 : moves[event.key]();
    const spot = onScreen(svg, at(points[place]));
    svg.dispatchEvent(
      new PointerEvent("pointermove", { clientX: spot.x, clientY: spot.y, pointerType: "mouse" }),
    );
    return show(points[place]); // of several at one spot, the one that was meant
  });
  frame.addEventListener("blur", hideTip);
}

/**
 * Heights of labels near to `wanted`, `gap` apart and within [top, bottom], in the same order: halfway between being
 * pushed down only and pushed up only, which both are so far apart.
 */
function settled(wanted, gap, top, bottom) {
  const order = d3.range(wanted.length).sort((a, b) => wanted[a] - wanted[b]);
  const pushed = (all, from, by, further) => {
    const places = Array(all.length);
    for (const index of by > 0 ? order : [...order].reverse())
      places[index] = from = further(all[index], from + by);
    return places;
  };
  const [down, up] = [pushed(wanted, -Infinity, gap, Math.max), pushed(wanted, Infinity, -gap, Math.min)];
  const inside = pushed(
    down.map((one, index) => (one + up[index]) / 2),
    top - gap,
    gap,
    Math.max,
  );
  return pushed(inside, bottom + gap, -gap, Math.min);
}

/** A name in lines of at most `most` letters, cut at its underscores. */
function lines(name, most) {
  const found = [""];
  for (const part of name.split(/(?<=[_[,#])/)) {
    if (found.at(-1) && (found.at(-1) + part).length > most) found.push("");
    found[found.length - 1] += part;
  }
  return found.map((one) => cut(one, most));
}

/** A name of at most `most` letters. */
const cut = (name, most) => (name.length > most ? `${name.slice(0, most - 1)}…` : name);

const ownerOf = (one) => one.contender;

/** The colour of each point's contender, for Plot. */
const paint = (of) => ({ value: (one) => shade(of(one).colour), scale: null });

/** Points in the colour and shape of their contenders, whom `of` tells. */
const dots = (points, x, y, of, r) =>
  Plot.dot(points, {
    x,
    y,
    r,
    symbol: { value: (one) => SYMBOLS[of(one).symbol], scale: null },
    fill: paint(of),
    stroke: paint(of),
  });

/** The widths that `count` panels take side by side in `width` pixels. */
function panelWidth(width, count, least = 300) {
  const columns = Math.max(1, Math.min(count, Math.floor(width / least)));
  return Math.floor((width - 16 * (columns - 1)) / columns);
}

const MOST_PANELS = 12;

/** The first panels of many, and a line that says so. */
function fewPanels(host, panels) {
  const said =
    panels.length > MOST_PANELS
      ? `The first ${MOST_PANELS} of ${panels.length} panels: choose others by the filters.`
      : "";
  host.append(element("p", { class: "note" }, said));
  return panels.slice(0, MOST_PANELS);
}
