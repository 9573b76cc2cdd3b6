// Raw rounds as points over time, those disturbed marked, so that anybody can judge the noise.
const SCALES = {
  own: "time, each its own scale",
  same: "time, one scale for all",
  relative: "relative to its median",
};
/** A round as the scale asks for it: seconds, or a part of the result's median. */
const heightOf = (one) => (state.scale === "relative" ? one.seconds / one.result.time : one.seconds);

const roundLines = (one) => [
  one.result.contender.name,
  `round ${one.round} in process ${one.process}: ${secondsText(one.seconds)}`,
  `${ratioText(one.seconds / one.result.time)} of its median`,
  one.disturbed ? "disturbed: does not count" : "counts",
];

function roundsPanel(host, result, width, all) {
  const [points, { contender, time }] = [roundsOf(result), result];
  const [left, kept] = [points.filter((one) => one.disturbed), points.filter((one) => !one.disturbed)];
  let turn = 0; // a process may have several, with others between them
  const turns = d3.groups(points, (one, at) => (turn += one.process !== points[at - 1]?.process));
  const stripes = turns.filter((_, index) => index % 2);
  const ends = { x1: ([, some]) => some[0].round - 0.5, x2: ([, some]) => some.at(-1).round + 0.5 };
  const relative = state.scale === "relative";
  const [low, high] = d3.extent(state.scale === "own" ? points : all, heightOf);
  const room = (high - low || high) * 0.08;
  const tickFormat = (one) => short(relative ? figures(one) : secondsText(one));
  const counts = `${plural(points.length, "round")}${left.length ? `, ${left.length} disturbed` : ""}`;
  host.append(heading(swatch(contender), contender.name), note(`${secondsText(time)}; ${counts}`));
  const pointed = { points, at: { x: "round", y: heightOf }, tip: roundLines };
  draw(host, `Rounds of ${contender.name}`, pointed, {
    width,
    height: 176,
    x: { label: "round", inset: 8, ticks: Math.min(6, points.length - 1), tickFormat: String },
    y: { domain: [low - room, high + room], ticks: 4, grid: true, label: null, tickFormat },
    marks: [
      Plot.rectX(stripes, { ...ends, fill: "currentColor", fillOpacity: 0.06 }),
      Plot.ruleY([relative ? 1 : time], { strokeOpacity: 0.5 }),
      Plot.dot(kept, { x: "round", y: heightOf, fill: paint(contender), r: 2.6 }),
      Plot.dot(left, { x: "round", y: heightOf, stroke: "currentColor", symbol: "times" }),
    ],
  });
}

function showRounds(host, selected) {
  const able = selected.filter((one) => one.first);
  if (!able.length) return host.append(note("Nothing was measured here: there are no rounds."));
  const workload = currentWorkload(able);
  state.workload = workload.index;
  const listed = able.map((one) => [one.index, one.name]);
  const { all, shown: held, every } = ROUNDS;
  const which = every ? `one of ${every} of each result` : "too many for a page, they stand in results.jsonl";
  host.append(
    row(picker("workload", listed, "workload"), picker("y axis", Object.entries(SCALES), "scale")),
    note(
      "× a disturbed round, left out of every figure. Stripes tell processes apart; the line is the median.",
    ),
    every === 1 ? "" : note(`This page holds ${counted(held)} of ${counted(all)} rounds: ${which}.`),
  );
  const mine = resultsOf([workload]).filter((one) => every && one.time != null);
  const sorted = d3.sort(mine, (one) => one.time);
  const rounds = mine.flatMap(roundsOf);
  return panels(host, sorted, 280, (panel, one, width) => roundsPanel(panel, one, width, rounds));
}
