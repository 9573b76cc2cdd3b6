// Raw rounds as points over time, those disturbed marked, so that anybody can judge the noise.
const noise = { scale: "own" };
const SCALES = [
  ["own", "time, each its own scale"],
  ["same", "time, one scale for all"],
  ["relative", "relative to its median"],
];

/** A round as the scale asks for it: seconds, or a part of the result's median. */
const heightOf = (one) => (noise.scale === "relative" ? one.seconds / one.result.time : one.seconds);

/** An axis over these ends, with some room. */
const roomy = ([low, high]) => {
  const more = (high - low || high) * 0.08;
  return [low - more, high + more];
};

const roundTip = (one) => [
  one.result.contender.name,
  [
    ["round", String(one.round + 1)],
    ["time", secondsText(one.seconds)],
    ["of its median", ratioText(one.seconds / one.result.time)],
    ["process", String(one.process + 1)],
    ["", one.disturbed ? "disturbed: does not count" : "counts"],
  ],
];

/** Stripes for every other process, the median, and the rounds. */
function roundMarks(points, result) {
  const [kept, left] = [points.filter((one) => !one.disturbed), points.filter((one) => one.disturbed)];
  const spans = d3.rollups(
    points,
    (some) => d3.extent(some, (one) => one.round),
    (one) => one.process,
  );
  const stripes = spans.filter((_, index) => index % 2).map(([, [from, to]]) => [from - 0.5, to + 0.5]);
  const median = noise.scale === "relative" ? 1 : result.time;
  const cross = { stroke: "currentColor", symbol: "times", r: 3.4, strokeWidth: 1.6 };
  return [
    Plot.rect(stripes, { x1: "0", x2: "1", fill: "currentColor", fillOpacity: 0.06 }),
    Plot.ruleY([median], { stroke: "currentColor", strokeOpacity: 0.5 }),
    Plot.dot(kept, { x: "round", y: heightOf, fill: shade(result.contender.colour), r: 2.6 }),
    Plot.dot(left, { x: "round", y: heightOf, ...cross }),
  ];
}

function roundsPanel(host, result, width, domain) {
  const points = roundsOf(result);
  const left = points.filter((one) => one.disturbed).length;
  const said = `${secondsText(result.time)}; ${plural(points.length, "round")}${left ? `, ${left} disturbed` : ""}`;
  const title = element("h3", {}, swatch(result.contender), result.contender.name);
  const panel = element("section", { class: "panel" }, title, element("p", { class: "axis" }, said));
  const [first, last] = d3.extent(points, (one) => one.round);
  const part = (one) => figures(one).replace(/\.?0+$/, "");
  host.append(panel);
  drawChart(panel, {
    points,
    at: (one) => ({ x: one.round, y: heightOf(one) }),
    series: (one) => one.process,
    label: `Rounds of ${result.contender.name}`,
    tip: roundTip,
    width,
    height: 170,
    marginLeft: 62,
    marginRight: 8,
    marginTop: 8,
    marginBottom: 34,
    x: {
      label: "round",
      ticks: 6,
      tickFormat: (one) => (Number.isInteger(one) ? String(one + 1) : ""),
      labelArrow: "none",
      domain: [first - 0.6, last + 0.6],
    },
    y: {
      domain: domain ?? roomy(d3.extent(points, heightOf)),
      ticks: 4,
      tickFormat: noise.scale === "relative" ? part : (one) => short(secondsText(one)),
      grid: true,
      label: null,
    },
    marks: roundMarks(points, result),
  });
}

/** How many of how many rounds the page holds, where it does not hold all. */
function thinned() {
  const { all, shown: held, every } = ROUNDS;
  if (every === 1) return "";
  const which = every ? `one of ${every} of each result` : "too many for a page";
  return ` This page holds ${counted(held)} of ${counted(all)} rounds: ${which}.`;
}

function roundControls(able, workload, redraw) {
  const listed = able.map((one) => [one.index, nameOf(one)]);
  return element(
    "div",
    { class: "row" },
    picker("workload", listed, workload.index, (value) => {
      view.workload = workloads[value];
      redraw();
    }),
    picker("y axis", SCALES, noise.scale, (value) => {
      noise.scale = value;
      redraw();
    }),
  );
}

function showRounds(host, { selected }, redraw) {
  const able = selected.filter((one) => one.first.length);
  const workload = currentWorkload(able);
  if (!workload) return host.append(element("p", {}, "Nothing was measured here: there are no rounds."));
  host.append(
    roundControls(able, workload, redraw),
    note(
      "× a disturbed round, left out of every figure. Stripes tell processes apart; the line is the median.",
      thinned(),
    ),
  );
  const mine = [...workload.results.values()].filter((one) => one.raw != null && shown.has(one.contender));
  if (!mine.length) {
    const nobody = "No contender that is selected was measured here.";
    return host.append(
      element("p", {}, ROUNDS.every ? nobody : "The rounds stand in results.jsonl of the run."),
    );
  }
  const domain = noise.scale === "own" ? null : roomy(d3.extent(mine.flatMap(roundsOf), heightOf));
  const grid = element("div", { class: "panels" });
  host.append(grid);
  const width = panelWidth(host.clientWidth, mine.length, 280);
  for (const result of d3.sort(mine, (one) => one.time)) roundsPanel(grid, result, width, domain);
  return host;
}
