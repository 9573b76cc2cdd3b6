// What an axis spans, where its ticks stand, and how workloads are put into panels beside it.
const axisNamed = (name) => AXES.find((one) => one.name === name);

/** What the panel of a workload is called: all that does not vary along the axis `x`. */
function panelOf(workload, x) {
  const name = x.field?.name;
  const run = several ? workload.run.title : "";
  if (name === "heads") return [`n = ${keysOf(workload)}`, workload.group, run];
  if (!x.field || name === "keys") return [headsText(workload), workload.group, run];
  const said = { keys: () => `n = ${keysOf(workload)}`, heads: () => headsText(workload) };
  return fields
    .filter((one) => one.name !== name && one.values.length > 1)
    .map((one) => said[one.name]?.() ?? one.values[workload.value[one.name]]);
}

/** Ends of an axis over `values`, with some room; those of a logarithmic one are positive. */
function extent(values, log) {
  const [low, high] = d3.extent(values);
  if (low == null) return log ? [1, 10] : [0, 1];
  if (!log) return [Math.min(0, low), high > 0 ? high * 1.06 : 1];
  return low === high ? [low / 2, high * 2] : [low / (high / low) ** 0.05, high * (high / low) ** 0.05];
}

/** The values of an axis and the ends of their intervals, of which no wild one hides all others. */
function within(values, ends) {
  const [low, high] = d3.extent(values);
  const known = ends.filter((one) => one != null);
  return low == null ? [] : [low, high, ...known.map((one) => Math.min(Math.max(one, low / 3), high * 3))];
}

/** A logarithmic scale with every tick written by `text`. */
function logScale(domain, text, base, more) {
  const spread = domain[1] / domain[0];
  const ticks = logTicks(domain, base === 2 ? (spread > 4096 ? 16 : 4) : 10);
  return { type: "log", domain, ticks, tickFormat: text, grid: true, labelArrow: "none", ...more };
}

/** The scale of an axis: over `domain`, or over `places` where its values are texts. */
function scaleOf(axis, log, domain, places, most) {
  const label = { label: axis.label, labelArrow: "none", labelAnchor: "center" };
  if (!domain) return { type: "point", domain: places, label: axis.label, labelArrow: "none" };
  const text = (value) => short(axis.text(value));
  if (!log) return { type: "linear", domain, ticks: most, tickFormat: text, grid: !axis.field, ...label };
  const scale = logScale(domain, text, axis.base, label);
  return axis.field ? { ...scale, ticks: spaced(places, domain, most), grid: false } : scale;
}

/** Those of ascending `places` that stand apart on a logarithmic axis with room for so many, the last among them. */
function spaced(places, [low, high], most) {
  const least = Math.log(high / low) / most;
  const kept = [];
  for (const one of [...places].reverse())
    if (!kept.length || Math.log(kept.at(-1) / one) >= least) kept.push(one);
  return kept.reverse();
}

/** At most so many of `places`, the last among them. */
function thin(places, count) {
  const step = Math.ceil(places.length / count);
  return places.filter((_, index) => (places.length - 1 - index) % step === 0);
}
