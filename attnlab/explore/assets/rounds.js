// Raw rounds as points over time, those disturbed marked, so that anybody can judge the noise.
const noise = { scale: "own" };
const SCALES = [["own", "time, each its own scale"], ["same", "time, one scale for all"], ["relative", "relative to its median"]];

function roundsPanel(host, result, width, domain) {
  const points = roundsOf(result);
  const relative = noise.scale === "relative";
  const value = (one) => (relative ? one.seconds / result.time : one.seconds);
  const written = relative ? (one) => figures(one, 3).replace(/\.?0+$/, "") : (one) => short(secondsText(one));
  const colour = shade(result.contender.colour);
  const [kept, left] = [points.filter((one) => !one.disturbed), points.filter((one) => one.disturbed)];
  const ends = d3.rollups(points, (some) => d3.extent(some, (one) => one.round), (one) => one.process);
  const panel = element("section", { class: "panel" }, element("h3", {}, swatch(result.contender), result.contender.name),
    element("p", { class: "axis" }, `${secondsText(result.time)}; ${plural(points.length, "round")}${left.length ? `, ${left.length} disturbed` : ""}`));
  host.append(panel);
  drawChart(panel, {
    points, at: (one) => ({ x: one.round, y: value(one) }), series: (one) => one.process, label: `Rounds of ${result.contender.name}`,
    tip: (one) => [result.contender.name, [
      ["round", String(one.round + 1)], ["time", secondsText(one.seconds)], ["of its median", ratioText(one.seconds / result.time)],
      ["process", String(one.process + 1)], ["", one.disturbed ? "disturbed: does not count" : "counts"]]],
    width, height: 170, marginLeft: 62, marginRight: 8, marginTop: 8, marginBottom: 34,
    x: { label: "round", ticks: 6, tickFormat: (one) => (Number.isInteger(one) ? String(one + 1) : ""), labelArrow: "none", domain: d3.extent(points, (one) => one.round).map((one, index) => one + (index ? 0.6 : -0.6)) },
    y: { domain: domain ?? room(d3.extent(points, value)), ticks: 4, tickFormat: written, grid: true, label: null },
    marks: [
      Plot.rect(ends.filter((_, index) => index % 2), { x1: ([, [from]]) => from - 0.5, x2: ([, [, to]]) => to + 0.5, fill: "currentColor", fillOpacity: 0.06 }),
      Plot.ruleY([relative ? 1 : result.time], { stroke: "currentColor", strokeOpacity: 0.5 }),
      Plot.dot(kept, { x: "round", y: value, fill: colour, r: 2.6 }),
      Plot.dot(left, { x: "round", y: value, stroke: "currentColor", symbol: "times", r: 3.4, strokeWidth: 1.6 }),
    ],
  });
}

const room = ([low, high]) => { const more = (high - low || high) * 0.08; return [low - more, high + more]; };

function showRounds(host, { selected }, redraw) {
  const able = selected.filter((one) => one.first.length);
  const workload = currentWorkload(able);
  if (!workload) return host.append(element("p", {}, "Nothing was measured here: there are no rounds."));
  host.append(element("div", { class: "row" },
    picker("workload", able.map((one) => [one.index, nameOf(one)]), workload.index, (value) => { view.workload = workloads[value]; redraw(); }),
    picker("y axis", SCALES, noise.scale, (value) => { noise.scale = value; redraw(); })));
  const { all, shown: left, every } = DATA.rounds;
  const thinned = every === 1 ? "" : ` This page holds ${left.toLocaleString("en-US")} of ${all.toLocaleString("en-US")} rounds: ${every ? `one of ${every} of each result` : "too many for a page"}.`;
  host.append(element("p", { class: "note" }, `× a disturbed round, left out of every figure. Stripes tell processes apart; the line is the median.${thinned}`));
  const mine = [...workload.results.values()].filter((one) => one.raw && shown.has(one.contender)).sort((a, b) => a.time - b.time);
  if (!mine.length) return host.append(element("p", {}, every ? "No contender that is selected was measured here." : "The rounds stand in results.jsonl of the run."));
  const ratios = (one) => roundsOf(one).map((each) => (noise.scale === "relative" ? each.seconds / one.time : each.seconds));
  const domain = noise.scale === "own" ? null : room(d3.extent(mine.flatMap(ratios)));
  const grid = element("div", { class: "panels" });
  host.append(grid);
  const width = panelWidth(host.clientWidth, mine.length, 280);
  for (const result of mine) roundsPanel(grid, result, width, domain);
  return host;
}
