// Any quantity against any axis, linear or logarithmic: one panel for every set of conditions that the axis leaves.
const plot = { y: QUANTITIES[0]?.name, x: AXES.some((one) => one.name === "keys") ? "keys" : AXES[0]?.name, logs: {} };
const isLog = (axis) => plot.logs[axis.name] ?? axis.log;

/** What a panel holds together: all that does not vary along its x axis. */
function panelOf(workload, axis) {
  const name = axis.field?.name;
  const run = several ? [workload.run.title] : [];
  if (name === "heads") return [`n = ${keysOf(workload)}`, workload.group, ...run];
  if (!axis.field || name === "keys") return [headsText(workload), workload.group, ...run];
  return fields.filter((one) => one.name !== name && one.values.length > 1)
    .map((one) => (one.name === "keys" ? `n = ${keysOf(workload)}` : one.name === "heads" ? headsText(workload) : one.values[workload.value[one.name]]));
}

/** Ends of an axis over `values`, with some room; a logarithmic one has positive values alone. */
function extent(values, log) {
  const [low, high] = d3.extent(values);
  if (low == null) return log ? [1, 10] : [0, 1];
  if (!log) return [Math.min(0, low), high > 0 ? high * 1.06 : 1];
  return low === high ? [low / 2, high * 2] : [low / (high / low) ** 0.05, high * (high / low) ** 0.05];
}

function axisOptions(axis, domain, log, places, most) {
  const written = (value) => short(axis.text(value));
  if (!domain) return { type: "point", domain: places, label: axis.label, labelArrow: "none" };
  const ticks = axis.field && log ? thin(places, most) : log ? logTicks(domain, axis.base === 2 ? (domain[1] / domain[0] > 4096 ? 16 : 4) : 10) : most;
  return {
    type: log ? "log" : "linear", domain, ticks, tickFormat: written, grid: !axis.field, label: axis.label, labelArrow: "none",
    labelAnchor: "center",
  };
}

/** At most so many of `places`, the last among them. */
function thin(places, count) {
  const step = Math.ceil(places.length / count);
  return places.filter((_, index) => (places.length - 1 - index) % step === 0);
}

function figurePanel(host, some, title, { x, y, domains, places, width }) {
  const logs = { x: isLog(x), y: isLog(y) };
  const inside = (value, log) => value != null && (!log || value > 0);
  const points = some.filter((one) => inside(y.value(one), logs.y) && (!domains.x || inside(x.value(one), logs.x)));
  const panel = element("section", { class: "panel" }, element("h3", {}, title));
  host.append(panel);
  if (!points.length) return panel.append(element("p", { class: "note" }, "Nothing to draw here."));
  const height = 330, margin = { left: 68, top: 14, bottom: 42 };
  const curves = d3.groups(some, (one) => one.contender);
  const ends = curves.map(([contender, all]) => [contender, d3.greatest(all.filter((one) => points.includes(one)), (one) => place(x, one, places))])
    .filter(([, end]) => end);
  const crowded = !x.field || width < 340 || ends.length * 13 > height - margin.top - margin.bottom;
  const letters = d3.max(ends, ([contender]) => Math.min(contender.name.length, 20));
  const right = crowded ? 14 : letters * LETTER + 18;
  const colour = (one) => shade(one.contender.colour);
  const paint = { value: colour, scale: null };
  const yOptions = { ...axisOptions(y, domains.y, logs.y, [], 6), label: null, range: [height - margin.bottom, margin.top] };
  const xOptions = axisOptions(x, domains.x, logs.x, places, Math.max(2, Math.floor((width - margin.left - right) / 46)));
  const scale = Plot.scale({ y: yOptions });
  const wanted = ends.map(([, end]) => scale.apply(y.value(end)));
  const heights = settled(wanted, 13, margin.top, height - margin.bottom);
  const intervals = points.filter((one) => inside(y.low(one), logs.y) && y.high(one) != null);
  panel.lastChild.after(element("p", { class: "axis" }, `${y.label} (${y.better} is better)`));
  drawChart(panel, {
    points: d3.sort(points, (one) => one.contender.index, (one) => place(x, one, places)),
    at: (one) => ({ x: x.value(one), y: y.value(one) }), series: (one) => one.contender.name,
    tip: (one) => [one.contender.name, resultLines(one)], label: `${y.label} against ${x.label}, ${title}`,
    width, height, marginLeft: margin.left, marginRight: right, marginTop: margin.top, marginBottom: margin.bottom,
    x: xOptions, y: yOptions,
    marks: [
      ...curves.map(([contender, all]) => Plot.line(d3.sort(all, (one) => (x.field ? place(x, one, places) : keysOf(one.workload))), {
        x: x.value, y: (one) => (points.includes(one) ? y.value(one) : null), stroke: shade(contender.colour), strokeWidth: 1.7,
        strokeDasharray: contender.dashes || null,
      })),
      Plot.ruleX(intervals, { x: x.value, y1: y.low, y2: y.high, stroke: paint, strokeWidth: 1.4, clip: true }),
      Plot.dot(points, { x: x.value, y: y.value, symbol: { value: (one) => SYMBOLS[one.contender.symbol], scale: null }, fill: paint, stroke: paint, r: 3 }),
      crowded || !domains.x ? null : Plot.link(ends.map(([contender, end], index) => ({ contender, end, label: scale.invert(heights[index]) })), {
        x1: ({ end }) => x.value(end), y1: ({ end }) => y.value(end), x2: domains.x?.[1], y2: "label",
        stroke: { value: ({ contender }) => shade(contender.colour), scale: null }, strokeOpacity: 0.4, strokeWidth: 1,
      }),
      crowded ? null : Plot.text(ends, {
        frameAnchor: "right", dx: 8, textAnchor: "start", y: ([, end]) => y.value(end), text: ([contender]) => cut(contender.name, 20),
        fill: { value: ([contender]) => shade(contender.colour), scale: null }, fontSize: 12,
        render: (index, scales, values, dimensions, context, next) =>
          next(index, scales, { ...values, y: heights }, dimensions, context),
      }),
    ],
  });
  return panel;
}

/** Where a point stands along the axis: its number, or the place of its text. */
const place = (axis, one, places) => (typeof axis.value(one) === "number" ? axis.value(one) : places.indexOf(axis.value(one)));

function axisControls(redraw) {
  const change = (name) => (value) => { plot[name] = value; redraw(); };
  const log = (axis, name) => tick(`${name} logarithmic`, isLog(axis), (on) => { plot.logs[axis.name] = on; redraw(); });
  const [x, y] = [AXES.find((one) => one.name === plot.x), quantityNamed(plot.y)];
  return element("div", { class: "row" },
    picker("show", QUANTITIES.map((one) => [one.name, one.label]), plot.y, change("y")),
    picker("against", AXES.map((one) => [one.name, one.label]), plot.x, change("x")),
    log(y, "y"), x.field && !x.field.numbers ? null : log(x, "x"));
}

function showFigures(host, { selected }, redraw) {
  if (!QUANTITIES.length || !AXES.length) {
    return host.append(element("p", {}, QUANTITIES.length ? "All workloads are alike: there is no axis to draw against." : "Nothing was measured: there is nothing to draw."));
  }
  host.append(axisControls(redraw));
  const [x, y] = [AXES.find((one) => one.name === plot.x), quantityNamed(plot.y)];
  const some = selectedResults(selected);
  const values = (axis, log) => some.filter((one) => y.value(one) != null).map(axis.value).filter((one) => one != null && (!log || one > 0));
  const text = x.field && !x.field.numbers;
  const places = text ? x.field.values.filter((one) => values(x, false).includes(one)) : [...new Set(values(x, false))].sort(d3.ascending);
  const domains = { x: text ? null : extent(places.filter((one) => !isLog(x) || one > 0), isLog(x)), y: extent(within(values(y, isLog(y)), some.flatMap((one) => [y.low(one), y.high(one)])), isLog(y)) };
  const panels = d3.groups(some, (one) => panelOf(one.workload, x).filter(Boolean).join(" · "));
  const few = fewPanels(host, panels);
  if (!few.length) return host.append(element("p", {}, "Nothing is selected."));
  const grid = element("div", { class: "panels" });
  host.append(grid);
  const width = panelWidth(host.clientWidth, few.length, 400);
  for (const [title, mine] of few) figurePanel(grid, mine, title, { x, y, domains, places, width });
  return host;
}
