// One workload's ranking: every contender against the fastest, with its interval.
/** The workload that was picked, or the largest that is selected and has a speed. */
function currentWorkload(selected) {
  if (selected.includes(view.workload)) return view.workload;
  return largest(selected.filter((one) => one.first.length)) ?? selected[0] ?? null;
}

/** How many times as fast as the fastest; null where too few processes were shared for a verdict. */
const ofBest = (one) => (one.contender === one.workload.best ? 1 : one.best_ratio);

function showRanking(host, selected) {
  const workload = currentWorkload(selected);
  if (!workload) return;
  const some = [...workload.results.values()].filter((one) => one.time != null && shown.has(one.contender)).sort((a, b) => a.time - b.time);
  host.append(element("h3", {}, `Ranking at ${nameOf(workload)}`));
  if (!some.length) return host.append(missing(workload));
  const names = some.map((one) => one.contender.name);
  const letters = Math.min(20, d3.max(names, (name) => name.length));
  const width = Math.min(host.clientWidth, 900);
  const known = some.filter((one) => ofBest(one) != null), unknown = some.filter((one) => ofBest(one) == null);
  const [low, high] = d3.extent(within(known.map(ofBest), known.flatMap((one) => [one.best_low, one.best_high])));
  const domain = [Math.min(low * 0.9, 1 / (1 + 2 * workload.margin)), Math.max(high * 1.08, 1 + 2 * workload.margin)];
  const y = (one) => one.contender.name;
  const colour = { value: (one) => shade(one.contender.colour), scale: null };
  drawChart(host, {
    points: known, at: (one) => ({ x: ofBest(one), y: y(one) }), series: y, label: `Ranking at ${nameOf(workload)}`,
    tip: (one) => [one.contender.name, resultLines(one)],
    width, height: some.length * 22 + 52, marginLeft: letters * LETTER + 14, marginRight: 78, marginBottom: 40, marginTop: 8,
    x: { type: "log", domain, label: "times as fast as the fastest, with 95 % interval", ticks: logTicks(domain, 10), tickFormat: (one) => String(Number(one.toPrecision(2))), grid: true, labelAnchor: "left", labelArrow: "none" },
    y: { type: "band", domain: names, label: null, tickSize: 0, tickFormat: (name) => cut(name, 20) },
    marks: [
      Plot.rect([workload], { x1: 1 / (1 + workload.margin), x2: 1 + workload.margin, fill: "currentColor", fillOpacity: 0.12 }),
      Plot.ruleY(some.filter((one) => one.best_low != null && one.best_high != null), { y, x1: (one) => one.best_low, x2: (one) => one.best_high, stroke: colour, strokeWidth: 2.5, clip: true }),
      Plot.dot(known, { x: ofBest, y, symbol: { value: (one) => SYMBOLS[one.contender.symbol], scale: null }, fill: colour, stroke: colour, r: 4 }),
      Plot.text(unknown, { y, frameAnchor: "middle", text: () => "no interval", fillOpacity: 0.7 }),
      Plot.text(some, { y, frameAnchor: "right", dx: 74, text: (one) => secondsText(one.time), fontSize: 12 }),
    ],
  });
  return host.append(element("p", { class: "note" },
    `Grey band: differences of ±${percentText(workload.margin)} count as none. At the right: the time of one call. An interval that leaves the figure goes on.`), missing(workload));
}

/** Who was asked here and has no speed, and why. */
function missing(workload) {
  const others = [...workload.results.values()].filter((one) => one.time == null);
  if (!others.length) return element("p", { class: "note" }, "");
  const list = others.map((one) => element("li", {}, element("b", {}, one.contender.name), `: ${one.outcome}. ${one.reason ?? ""}`));
  return element("details", {}, element("summary", {}, `${plural(others.length, "contender")} without a speed here, and why`), element("ul", {}, list));
}
