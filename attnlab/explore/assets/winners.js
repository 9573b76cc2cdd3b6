// Winners as a heat map of length against heads, one for each group of workloads.
const NOBODY = "none";
const heat = { than: "baseline" };

/** How many times as fast the winner is, with its interval: than the baseline, or than the next that is slower. */
function lead(workload) {
  const winner = workload.results.get(workload.first[0]);
  if (heat.than === "baseline") {
    return isBaseline(winner) ? null : { ratio: winner.baseline_ratio, low: winner.baseline_low, high: winner.baseline_high };
  }
  const next = workload.results.get(workload.next);
  return next?.best_ratio == null ? null : { ratio: 1 / next.best_ratio, low: 1 / next.best_high, high: 1 / next.best_low };
}

function cellColour(one) {
  return one.first.length && one.state !== "undecided" ? shade(one.first[0].colour) : NOBODY;
}

function cellText(one, letters) {
  if (!one.first.length) return "nobody";
  const ahead = lead(one)?.ratio;
  const more = { shared: `≈ ${one.first.length - 1} more`, undecided: "? undecided", only: "alone here" }[one.state];
  return [...lines(one.first[0].name, letters), ...(more ? [more] : []), ...(ahead == null ? [] : [`${figures(ahead, 2)} ×`])].join("\n");
}

const STATES = {
  alone: "decided: alone in first place", shared: "not told apart: first place is shared",
  only: "the only one measured here", undecided: "no interval: too few undisturbed processes", nobody: "nobody was measured here",
};

function workloadTip(one) {
  const ahead = one.first.length ? lead(one) : null;
  const than = heat.than === "baseline" ? one.run.baseline : one.next?.name;
  const outcomes = d3.rollup([...one.results.values()].filter((each) => each.time == null), (few) => few.length, (each) => each.outcome);
  return [placeText(one), [
    ["first", one.first.map((each) => each.name).join(", ")],
    ["same kernel", one.same.map((each) => each.name).join(", ")],
    ["verdict", STATES[one.state]],
    [ahead?.ratio == null ? "" : "ahead", ahead?.ratio == null ? "" : `${ratioText(ahead.ratio)}${interval(ahead.low, ahead.high, ratioText)} times as fast as ${than}`],
    ["next", one.next?.name],
    ["not measured", [...outcomes].map(([outcome, count]) => `${count} ${outcome}`).join(", ")],
  ]];
}

function heatMap(host, some, picked, width, onpick) {
  const [first] = some;
  const [lengths, heads] = [keysOf, headsOf].map((of) => [...new Set(some.map(of))].sort(d3.ascending));
  const upright = (width - 60) / lengths.length < 62;
  const [across, down] = upright ? [heads, lengths] : [lengths, heads];
  const at = (one) => (upright ? { x: headsOf(one), y: keysOf(one) } : { x: keysOf(one), y: headsOf(one) });
  const cell = Math.min(150, (width - 60) / across.length);
  const x = (one) => at(one).x, y = (one) => at(one).y;
  const pale = (one) => (one.state === "alone" || one.state === "only" ? 1 : 0.22);
  const label = `Winners by length and heads${first.group ? `, ${first.group}` : ""}`;
  drawChart(host, {
    points: some, at, series: headsOf, label, onpick,
    tip: workloadTip,
    focus: (pointed) => Plot.cell(some, pointed({ x, y, fill: "none", stroke: "currentColor", strokeWidth: 2.5, inset: 1, maxRadius: 200 })),
    width: Math.round(cell * across.length + 60), height: down.length * (upright ? 62 : 68) + 44,
    marginLeft: 56, marginRight: 4, marginTop: 40, marginBottom: 4,
    x: { type: "band", domain: across, label: upright ? "heads" : "n, length", axis: "top", padding: 0.03, tickSize: 0, tickFormat: String, labelArrow: "none" },
    y: { type: "band", domain: down, label: upright ? "n, length" : "heads", padding: 0.05, tickSize: 0, tickFormat: String, labelArrow: "none" },
    marks: [
      Plot.cell(some, { x, y, fill: { value: cellColour, scale: null }, fillOpacity: pale, stroke: { value: (one) => (cellColour(one) === NOBODY ? "currentColor" : cellColour(one)), scale: null }, strokeOpacity: 0.45, rx: 4 }),
      Plot.cell(some.filter((one) => one === picked), { x, y, fill: "none", stroke: "currentColor", strokeWidth: 2, rx: 4 }),
      Plot.text(some, {
        x, y, text: (one) => cellText(one, Math.max(5, Math.floor(cell / 6.6))), fontSize: 11.5, lineHeight: 1.15,
        fill: { value: (one) => (pale(one) === 1 && cellColour(one) !== NOBODY ? inkOn(cellColour(one)) : "currentColor"), scale: null },
      }),
    ],
  });
}

/** The heat maps of what is selected, and below them the ranking of one workload. */
function showWinners(host, { selected }, redraw) {
  const than = picker("The number says how many times as fast as", [["baseline", baselines], ["next", "the next that is decidedly slower"]],
    heat.than, (value) => { heat.than = value; redraw(); });
  host.append(element("div", { class: "row" }, than));
  const panels = [...d3.group(selected, (one) => one.groupKey).values()];
  const grid = element("div", { class: "panels" });
  const few = fewPanels(host, panels);
  host.append(grid);
  const width = panelWidth(host.clientWidth, few.length, 480);
  for (const some of few) {
    const title = [several ? some[0].run.title : "", some[0].group].filter(Boolean).join(" · ");
    const panel = element("section", { class: "panel" }, title ? element("h3", {}, title) : null);
    grid.append(panel);
    heatMap(panel, some, currentWorkload(selected), width, (one) => { view.workload = one; redraw(); });
  }
  host.append(element("p", { class: "note" },
    "Full colour: decided. Pale with ≈: shares the first place with others that are not told apart. ?: not decided. Who wins was decided among all contenders, also those that the filters hide. Pick a cell for its ranking."));
  showRanking(host, selected);
}
