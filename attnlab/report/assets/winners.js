// Winners as a heat map of length against heads, one for each group of workloads.
const heat = { than: "baseline" };
/** pixels across below which no name fits into a cell */
const LEAST_CELL = 44;
const STATES = {
  decided: "decided: faster than every other implementation that was compared",
  tie: "not told apart: first place is shared",
  alone: "nothing else was measured here",
  "no interval": "no interval: too few undisturbed processes",
  nobody: "nobody was measured here",
};

/** How many times as fast the winner is, with its interval: than the baseline, or than the next implementation. */
const lead = (workload) => {
  const [ratio, low, high] = ["ratio", "low", "high"].map((end) => workload[`${heat.than}_${end}`]);
  return { ratio, low, high };
};

const isKnown = (one) => one.first.length > 0 && one.state !== "no interval";
const isFull = (one) => one.state === "decided" || one.state === "alone";

/** The winner's colour; none where there is no winner. */
const cellColour = (one) => (isKnown(one) ? shade(one.first[0].colour) : "none");

/** Winner, who shares the place, and how far ahead, in lines of so many letters. */
function cellText(one, letters) {
  if (!one.first.length) return "nobody";
  const { ratio } = lead(one);
  const more = { tie: `≈ ${one.first.length - 1} more`, "no interval": "? undecided", alone: "alone here" };
  const said = [
    ...lines(one.first[0].name, letters),
    more[one.state],
    ratio == null ? null : `${figures(ratio)} ×`,
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

/** `letters` is how many fit into a line of a cell: 0 where cells are too small for words. */
function heatMarks(some, picked, x, y, letters) {
  const outline = { x, y, fill: "none", stroke: "currentColor", rx: letters ? 4 : 1 };
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
    Plot.text(letters ? some : [], {
      x,
      y,
      text: (one) => cellText(one, letters),
      fontSize: 11.5,
      lineHeight: 1.15,
      fill: { value: ink, scale: null },
    }),
  ];
}

/** How values are written along an axis of so many pixels: all, or some of them where each would have too few. */
function tickText(values, pixels, least) {
  const kept = new Set(thin(values, Math.max(2, Math.floor(pixels / least))));
  return (value) => (kept.has(value) ? String(value) : "");
}

/** Who is first where, by colour, for a map whose cells are too small for names. */
function heatKey(some) {
  const counts = d3.rollups(
    some.filter((one) => one.first.length),
    (few) => few.length,
    (one) => one.first[0],
  );
  return element(
    "p",
    { class: "note key" },
    d3
      .sort(counts, ([, count]) => -count)
      .map(([name, count]) => element("span", {}, swatch(name), `${name.name} (${counted(count)})`)),
  );
}

/** Lengths across and heads down, or turned where the screen is too narrow for it. */
function heatMap(host, some, picked, width, onpick) {
  const [lengths, heads] = [keysOf, headsOf].map((of) => [...new Set(some.map(of))].sort(d3.ascending));
  const upright = (width - 60) / lengths.length < 62 && heads.length < lengths.length;
  const [x, y] = upright ? [headsOf, keysOf] : [keysOf, headsOf];
  const [across, down] = upright ? [heads, lengths] : [lengths, heads];
  const titles = upright ? ["heads", "n, length"] : ["n, length", "heads"];
  const cell = Math.min(150, (width - 60) / across.length);
  const small = cell < LEAST_CELL;
  const tall = small ? Math.max(11, Math.min(cell, 20)) : down.length > 8 ? 50 : upright ? 62 : 68;
  const band = { type: "band", tickSize: 0, labelArrow: "none" };
  if (small) host.append(heatKey(some));
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
    height: Math.round(down.length * tall) + 44,
    marginLeft: 56,
    marginRight: 4,
    marginTop: 40,
    marginBottom: 4,
    x: {
      ...band,
      domain: across,
      label: titles[0],
      axis: "top",
      padding: 0.03,
      tickFormat: tickText(across, cell * across.length, 36),
    },
    y: {
      ...band,
      domain: down,
      label: titles[1],
      padding: 0.05,
      tickFormat: tickText(down, tall * down.length, 14),
    },
    marks: heatMarks(some, picked, x, y, small ? 0 : Math.max(5, Math.floor((cell - 6) / 6.9))),
  });
}

/** The heat maps of what is selected, and below them the ranking of one workload. */
function showWinners(host, { selected }, redraw) {
  const choices = [
    ["baseline", baselines],
    ["next", "the next implementation"],
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
      " Who wins was decided among all contenders, also those that the filters hide. Pick a cell for its ranking; where",
      " cells are too small for words, the filters choose fewer lengths and heads.",
    ),
  );
  showRanking(host, selected);
}
