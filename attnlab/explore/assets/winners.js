// Winners as a heat map of length against heads, one for each group of workloads.
const heat = { than: "baseline" };
const STATES = {
  alone: "decided: alone in first place",
  shared: "not told apart: first place is shared",
  only: "the only one measured here",
  undecided: "no interval: too few undisturbed processes",
  nobody: "nobody was measured here",
};

/** How many times as fast the winner is, with its interval: than the baseline, or than the next that is slower. */
function lead(workload) {
  const winner = workload.results.get(workload.first[0]);
  const next = workload.results.get(workload.next);
  if (heat.than === "baseline") {
    return { ratio: winner?.baseline_ratio, low: winner?.baseline_low, high: winner?.baseline_high };
  }
  return next?.best_ratio == null
    ? {}
    : { ratio: 1 / next.best_ratio, low: 1 / next.best_high, high: 1 / next.best_low };
}

const isKnown = (one) => one.first.length > 0 && one.state !== "undecided";
const isFull = (one) => one.state === "alone" || one.state === "only";

/** The winner's colour; none where there is no winner. */
const cellColour = (one) => (isKnown(one) ? shade(one.first[0].colour) : "none");

/** Winner, who shares the place, and how far ahead, in lines of so many letters. */
function cellText(one, letters) {
  if (!one.first.length) return "nobody";
  const { ratio } = lead(one);
  const more = { shared: `≈ ${one.first.length - 1} more`, undecided: "? undecided", only: "alone here" };
  const said = [
    ...lines(one.first[0].name, letters),
    more[one.state],
    ratio == null ? null : `${figures(ratio, 2)} ×`,
  ];
  return said.filter(Boolean).join("\n");
}

function workloadTip(one) {
  const { ratio, low, high } = lead(one);
  const than = heat.than === "baseline" ? one.run.baseline : one.next?.name;
  const speechless = [...one.results.values()].filter((each) => each.time == null);
  const outcomes = d3.rollups(
    speechless,
    (few) => few.length,
    (each) => each.outcome,
  );
  return [
    placeText(one),
    [
      ["first", one.first.map((each) => each.name).join(", ")],
      ["same kernel", one.same.map((each) => each.name).join(", ")],
      ["verdict", STATES[one.state]],
      [
        "ahead",
        ratio == null ? "" : `${ratioText(ratio)}${interval(low, high, ratioText)} × as fast as ${than}`,
      ],
      ["next", one.next?.name],
      ["not measured", outcomes.map(([outcome, count]) => `${count} ${outcome}`).join(", ")],
    ],
  ];
}

function heatMarks(some, picked, x, y, letters) {
  const outline = { x, y, fill: "none", stroke: "currentColor", rx: 4 };
  const ink = (one) => (isFull(one) ? inkOn(cellColour(one)) : "currentColor");
  const edge = (one) => (isKnown(one) ? cellColour(one) : "currentColor");
  return [
    Plot.cell(some, {
      ...outline,
      fill: { value: cellColour, scale: null },
      fillOpacity: (one) => (isFull(one) ? 1 : 0.22),
      stroke: { value: edge, scale: null },
      strokeOpacity: 0.45,
    }),
    Plot.cell(
      some.filter((one) => one === picked),
      { ...outline, strokeWidth: 2 },
    ),
    Plot.text(some, {
      x,
      y,
      text: (one) => cellText(one, letters),
      fontSize: 11.5,
      lineHeight: 1.15,
      fill: { value: ink, scale: null },
    }),
  ];
}

/** Lengths across and heads down, or turned where the screen is too narrow for it. */
function heatMap(host, some, picked, width, onpick) {
  const [lengths, heads] = [keysOf, headsOf].map((of) => [...new Set(some.map(of))].sort(d3.ascending));
  const upright = (width - 60) / lengths.length < 62;
  const [x, y] = upright ? [headsOf, keysOf] : [keysOf, headsOf];
  const [across, down] = upright ? [heads, lengths] : [lengths, heads];
  const titles = upright ? ["heads", "n, length"] : ["n, length", "heads"];
  const cell = Math.min(150, (width - 60) / across.length);
  const band = { type: "band", tickSize: 0, tickFormat: String, labelArrow: "none" };
  const ring = { x, y, fill: "none", stroke: "currentColor", strokeWidth: 2.5, inset: 1, maxRadius: 200 };
  return drawChart(host, {
    points: some,
    at: (one) => ({ x: x(one), y: y(one) }),
    series: headsOf,
    label: ["Winners by length and heads", some[0].group].filter(Boolean).join(", "),
    onpick,
    tip: workloadTip,
    focus: (pointed) => Plot.cell(some, pointed(ring)),
    width: Math.round(cell * across.length + 60),
    height: down.length * (down.length > 8 ? 50 : upright ? 62 : 68) + 44,
    marginLeft: 56,
    marginRight: 4,
    marginTop: 40,
    marginBottom: 4,
    x: { ...band, domain: across, label: titles[0], axis: "top", padding: 0.03 },
    y: { ...band, domain: down, label: titles[1], padding: 0.05 },
    marks: heatMarks(some, picked, x, y, Math.max(5, Math.floor((cell - 6) / 6.9))),
  });
}

/** The heat maps of what is selected, and below them the ranking of one workload. */
function showWinners(host, { selected }, redraw) {
  const choices = [
    ["baseline", baselines],
    ["next", "the next that is decidedly slower"],
  ];
  const than = picker("The number says how many times as fast as", choices, heat.than, (value) => {
    heat.than = value;
    redraw();
  });
  host.append(element("div", { class: "row" }, than));
  const few = fewPanels(host, [...d3.group(selected, (one) => one.groupKey).values()]);
  const grid = element("div", { class: "panels" });
  host.append(grid);
  const pick = (one) => {
    view.workload = one;
    redraw();
  };
  for (const some of few) {
    const title = [several ? some[0].run.title : "", some[0].group].filter(Boolean).join(" · ");
    const panel = element("section", { class: "panel" }, title ? element("h3", {}, title) : null);
    grid.append(panel);
    heatMap(panel, some, currentWorkload(selected), panelWidth(host.clientWidth, few.length, 480), pick);
  }
  host.append(
    note(
      "Full colour: decided. Pale with ≈: shares the first place with others that are not told apart. ?: not decided.",
      " Who wins was decided among all contenders, also those that the filters hide. Pick a cell for its ranking.",
    ),
  );
  showRanking(host, selected);
}
