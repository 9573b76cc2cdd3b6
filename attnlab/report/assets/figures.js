// Any quantity against any axis, linear or logarithmic: a panel for every set of conditions that the axis leaves.
/** A column of results, which has an interval where there are columns `name`_low and `name`_high. */
const quantity = (name, label, text, more) => ({ name, label, text, value: (one) => one[name], ...more });
const QUANTITIES = [
  quantity("time", "time of one call (lower is better)", secondsText),
  quantity("baseline", "times as fast as the baseline (higher is better)", ratioText),
  quantity("memory", "peak memory of one call (lower is better)", bytesText, { base: 2 }),
  quantity("error", "relative error (lower is better)", (value) => figures(value, 2)),
  quantity("share", "share of the matrix-multiply rate (higher is better)", percentText, { linear: true }),
  quantity("bandwidth", "share of the copy bandwidth (higher is better)", percentText, { linear: true }),
].filter((one) => results.some((result) => one.value(result) != null));

/** The axes to draw against: every field with several values, and every quantity. */
const fieldAxis = (field) => ({
  ...{ name: field.name, field, label: field.label, text: String, base: 2, linear: !field.numbers },
  value: (one) => valueOf(field, one.workload),
});
const varying = fields.filter((one) => one.values.length > 1);
const AXES = [...varying.filter((one) => one.name !== "run").map(fieldAxis), ...QUANTITIES];
const axisNamed = (name) => AXES.find((one) => one.name === name);
Object.assign(state, { y: QUANTITIES[0]?.name, x: (axisNamed("keys") ?? AXES[0])?.name, logs: {} });
const isLog = (axis) => state.logs[axis.name] ?? !axis.linear;
/** Whether a result has a place on the axis. */
const fits = (axis, one) => (isLog(axis) ? axis.value(one) > 0 : axis.value(one) != null);

/** A figure of a result with its interval; empty where it has none. */
function written(one, name, text) {
  return one[name] == null ? "" : text(one[name]) + interval(one[`${name}_low`], one[`${name}_high`], text);
}

/** Everything known of a result, line by line. */
function resultLines(one) {
  const { workload, contender } = one;
  const first = [contender.name, workload.label, several && workload.run.title];
  if (one.time == null) return [...first, `${one.outcome}: ${one.reason ?? ""}`];
  const processes = one.processes > 1 ? `, 95 % over ${one.processes} processes` : "";
  const verdict = (name, other) =>
    one[`${name}_is`] && `${written(one, name, ratioText)} × as fast as ${other}: ${one[`${name}_is`]}`;
  return [
    ...first,
    `time: ${written(one, "time", secondsText)}${processes}, median of ${plural(one.rounds, "round")}`,
    verdict("baseline", workload.run.baseline),
    contender.name === workload.best ? "the fastest here" : verdict("best", workload.best),
    one.memory != null && `peak memory: ${bytesText(one.memory)}`,
    one.error != null && `relative error: ${figures(one.error, 2)}`,
    one.allowed && `${percentText(one.error / one.allowed)} of the error allowed`,
    one.share != null && `${percentText(one.share)} of the matrix-multiply rate`,
    one.bandwidth != null && `${percentText(one.bandwidth)} of the copy bandwidth`,
    `kernel: ${one.kernel ?? "not told"}`,
    one.computes_in && `computes in ${one.computes_in}`,
    workload.run.settings[contender.name],
  ];
}

/** What tells the panel of a workload from others: all fields but the axis, and the length in place of a quantity. */
function panelOf(workload, axis) {
  const others = varying.filter((one) => one !== (axis.field ?? fieldNamed("keys")));
  const said = (one) => (one.numbers ? `${one.label} = ` : "") + one.values[workload.value[one.name]];
  return joined(...others.map(said));
}

function figurePanel(host, title, some, x, y, options) {
  const along = x.field ? x.value : fieldAxis(fieldNamed("keys")).value;
  const points = d3.sort(some, (one) => one.contender.name, along);
  const at = { x: x.value, y: y.value };
  const look = (one) => ({ stroke: paint(one), strokeDasharray: one.dashes || null, strokeWidth: 1.7 });
  const curve = ([one, mine]) => Plot.line(mine, { ...at, ...look(one) });
  const ends = ["low", "high"].map((end) => (one) => one[`${y.name}_${end}`]);
  host.append(heading(title));
  draw(
    host,
    `${y.label} against ${x.label}, ${title}`,
    { points, at, tip: resultLines },
    {
      height: 330,
      ...options,
      marks: [
        Plot.frame({ strokeOpacity: 0.2 }),
        ...d3.groups(points, ownerOf).map(curve),
        ...intervals(points, "y", ends, x.value, options.y.domain),
        dots(points, at),
      ],
    },
  );
}

function showFigures(host, selected) {
  if (!QUANTITIES.length) return host.append(note("Nothing was measured: there is nothing to draw."));
  const [x, y] = [axisNamed(state.x), axisNamed(state.y)];
  const listed = (axes) => axes.map((one) => [one.name, one.label]);
  const log = (axis, name) =>
    tick(`${name} logarithmic`, isLog(axis), (on) => choose({ logs: { ...state.logs, [axis.name]: on } }));
  const textual = x.field && !x.field.numbers;
  const pickers = [picker("show", listed(QUANTITIES), "y"), picker("against", listed(AXES), "x")];
  host.append(row(...pickers, log(y, "y"), textual ? "" : log(x, "x")));
  const some = resultsOf(selected).filter((one) => fits(x, one) && fits(y, one));
  if (!some.length) return host.append(note("No backend is selected that was measured here."));
  host.append(legend(some));
  const scaleOf = (axis, ticks) =>
    scaleOver(some.map(axis.value), axis.text, isLog(axis), { label: axis.label, base: axis.base, ticks });
  const places = { type: "point", domain: x.field?.values, label: x.label };
  const scales = { x: textual ? places : scaleOf(x, 6), y: scaleOf(y) };
  const grouped = d3.groups(some, (one) => panelOf(one.workload, x));
  const show = (panel, [title, mine], width) => figurePanel(panel, title, mine, x, y, { width, ...scales });
  return panels(host, grouped, 400, show);
}
