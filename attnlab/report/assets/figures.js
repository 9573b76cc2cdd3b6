// Any quantity against any axis, linear or logarithmic: one panel for every set of conditions that the axis leaves.
const figure = { y: QUANTITIES[0]?.name, x: (axisNamed("keys") ?? AXES[0])?.name, logs: {} };
const FRAME = { height: 330, left: 68, top: 14, bottom: 42 };
const LABEL_HEIGHT = 13;
const LABEL_LETTERS = 20;

const isLog = (axis) => figure.logs[axis.name] ?? axis.log;

/** Whether a value has a place on the axis. */
const fits = (axis, value) => value != null && (typeof value === "string" || !isLog(axis) || value > 0);

/** What all panels share: both axes, what they span, and the values that x takes. */
function framed(some) {
  const [x, y] = [axisNamed(figure.x), quantityNamed(figure.y)];
  const points = some.filter((one) => fits(y, y.value(one)) && fits(x, x.value(one)));
  const texts = x.field && !x.field.numbers;
  const taken = new Set(points.map(x.value));
  const places = texts ? x.field.values.filter((one) => taken.has(one)) : [...taken].sort(d3.ascending);
  const ends = points.flatMap((one) => [y.low(one), y.high(one)]).filter((one) => fits(y, one));
  return {
    x,
    y,
    places,
    across: texts ? null : extent(places, isLog(x)),
    up: extent(within(points.map(y.value), ends), isLog(y)),
    /** how far along x a result stands */
    along: (one) => (texts ? places.indexOf(x.value(one)) : x.value(one)),
  };
}

/** Names at the ends of the curves, moved apart, with thin lines to where they belong; none where they do not fit. */
function labelled(ends, frame, yScale, width) {
  const { x, y, across } = frame;
  const bottom = FRAME.height - FRAME.bottom;
  if (!x.field || width < 340 || !ends.length || ends.length * LABEL_HEIGHT > bottom - FRAME.top) {
    return { right: 14, marks: [] };
  }
  const scale = Plot.scale({ y: yScale });
  const heights = settled(
    ends.map((one) => scale.apply(y.value(one))),
    LABEL_HEIGHT,
    FRAME.top,
    bottom,
  );
  const line = { x1: x.value, y1: y.value, x2: () => across?.[1], strokeWidth: 1, strokeOpacity: 0.4 };
  const name = { frameAnchor: "right", dx: 8, textAnchor: "start", fontSize: 12, y: y.value };
  return {
    right: d3.max(ends, (one) => Math.min(one.contender.name.length, LABEL_LETTERS)) * LETTER + 18,
    marks: [
      across &&
        Plot.link(ends, { ...line, y2: (_, index) => scale.invert(heights[index]), stroke: paint(ownerOf) }),
      Plot.text(ends, {
        ...name,
        text: (one) => cut(one.contender.name, LABEL_LETTERS),
        fill: paint(ownerOf),
        render: (index, scales, values, dimensions, context, next) =>
          next(index, scales, { ...values, y: heights }, dimensions, context),
      }),
    ],
  };
}

/** One contender's curve; a workload where it has no value is a gap in it. */
function curve(some, { x, y, along }) {
  const [{ contender }] = some;
  return Plot.line(d3.sort(some, x.field ? along : (one) => keysOf(one.workload)), {
    x: x.value,
    y: (one) => (fits(y, y.value(one)) ? y.value(one) : null),
    stroke: shade(contender.colour),
    strokeWidth: 1.7,
    strokeDasharray: contender.dashes || null,
  });
}

function figurePanel(host, some, title, frame, width) {
  const { x, y, along, places } = frame;
  const panel = element("section", { class: "panel" }, element("h3", {}, title));
  host.append(panel);
  const points = some.filter((one) => fits(y, y.value(one)) && fits(x, x.value(one)));
  if (!points.length) return panel.append(element("p", { class: "note" }, "Nothing to draw here."));
  panel.append(element("p", { class: "axis" }, `${y.label} (${y.better} is better)`));
  const range = [FRAME.height - FRAME.bottom, FRAME.top];
  const yScale = { ...scaleOf(y, isLog(y), frame.up, [], 6), label: null, range };
  const ends = d3.groups(points, ownerOf).map(([, mine]) => d3.greatest(mine, along));
  const labels = labelled(ends, frame, yScale, width);
  const most = Math.max(2, Math.floor((width - FRAME.left - labels.right) / 46));
  const spans = points.filter((one) => fits(y, y.low(one)) && fits(y, y.high(one)));
  const span = { x: x.value, y1: y.low, y2: y.high, stroke: paint(ownerOf), strokeWidth: 1.4, clip: true };
  return drawChart(panel, {
    points: d3.sort(points, (one) => one.contender.index, along),
    at: (one) => ({ x: x.value(one), y: y.value(one) }),
    series: (one) => one.contender.name,
    tip: (one) => [one.contender.name, resultLines(one)],
    label: `${y.label} against ${x.label}, ${title}`,
    width,
    height: FRAME.height,
    marginLeft: FRAME.left,
    marginRight: labels.right,
    marginTop: FRAME.top,
    marginBottom: FRAME.bottom,
    x: scaleOf(x, isLog(x), frame.across, places, most),
    y: yScale,
    marks: [
      ...d3.groups(some, ownerOf).map(([, mine]) => curve(mine, frame)),
      Plot.ruleX(spans, span),
      dots(points, x.value, y.value, ownerOf, 3),
      ...labels.marks,
    ],
  });
}

function axisControls(redraw) {
  const change = (name) => (value) => {
    figure[name] = value;
    redraw();
  };
  const log = (axis, name) =>
    tick(`${name} logarithmic`, isLog(axis), (on) => {
      figure.logs[axis.name] = on;
      redraw();
    });
  const x = axisNamed(figure.x);
  const listed = (axes) => axes.map((one) => [one.name, one.label]);
  return element(
    "div",
    { class: "row" },
    picker("show", listed(QUANTITIES), figure.y, change("y")),
    picker("against", listed(AXES), figure.x, change("x")),
    log(quantityNamed(figure.y), "y"),
    x.field && !x.field.numbers ? null : log(x, "x"),
  );
}

function showFigures(host, { selected }, redraw) {
  if (!QUANTITIES.length)
    return host.append(element("p", {}, "Nothing was measured: there is nothing to draw."));
  host.append(axisControls(redraw));
  const some = selectedResults(selected);
  if (!some.length) return host.append(element("p", {}, "No backend is selected that was asked here."));
  const frame = framed(some);
  const panels = d3.groups(some, (one) => panelOf(one.workload, frame.x).filter(Boolean).join(" · "));
  const few = fewPanels(host, panels);
  const grid = element("div", { class: "panels" });
  host.append(grid);
  const width = panelWidth(host.clientWidth, few.length, 400);
  for (const [title, mine] of few) figurePanel(grid, mine, title, frame, width);
  return host;
}
