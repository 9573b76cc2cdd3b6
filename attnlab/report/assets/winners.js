// Who is first at each length and head count, and below it the ranking of one workload.
const isFull = (one) => one.state === "decided" || one.state === "alone";
/** How much of the winner's colour a cell has, and its edge: what is decided differs without colour too. */
const PARTS = { decided: 1, alone: 1, "no interval": 0, nobody: 0 };
const EDGES = { decided: null, alone: null, "no interval": "2 3" };
const cellColour = (one) => mixed(one.first ? paint(contenders.get(one.first)) : paper(), PARTS[one.state] ?? 0.22);

/** The map of one group of workloads, heads across and lengths down, as in the report's table. */
function heatMap(host, some, width, picked) {
  const [x, y] = ["heads", "keys"].map(fieldNamed).map((field) => (one) => valueOf(field, one));
  const [across, down] = [x, y].map((of) => [...new Set(some.map(of))].sort(d3.ascending));
  const cell = Math.min(220, (width - 60) / across.length);
  const words = cell >= 60;
  const first = some.map((one) => ({ contender: contenders.get(one.first) })).filter((one) => one.contender);
  const more = { close: "≈ ", tie: "≟ ", "no interval": "? ", alone: "alone " };
  const text = (one) => {
    const ratio = one[`${state.than}_ratio`];
    const name = cut(one.first ?? "nobody", Math.floor(cell / 7.6));
    return `${name}\n${more[one.state] ?? ""}${ratio == null ? "" : `${figures(ratio)} ×`}`;
  };
  const ink = (one) => inkOn(cellColour(one));
  host.append(heading(some[0].title), words ? "" : legend(first));
  const look = {
    fill: { value: cellColour, scale: null },
    stroke: "currentColor",
    strokeWidth: (one) => (one === picked ? 3 : isFull(one) ? 0.3 : 1.2),
  };
  const tip = (one) => [one.place, ...one.told];
  const onpick = (one) => choose({ workload: one.index });
  const pointed = { points: d3.sort(some, y, x), at: { x, y }, tip, onpick, ring: Plot.cell };
  draw(host, joined("Winners by length and heads", some[0].title), pointed, {
    width: Math.round(cell * across.length + 60),
    height: down.length * (words ? 44 : 16) + 44,
    marginTop: 40,
    marginBottom: 4,
    x: { type: "band", domain: across, label: "heads", axis: "top", tickSize: 0 },
    y: { type: "band", domain: down, label: "n, length", tickSize: 0, tickFormat: String },
    marks: [
      ...d3
        .groups(some, (one) => (one.state in EDGES ? EDGES[one.state] : "6 4"))
        .map(([strokeDasharray, mine]) => Plot.cell(mine, { x, y, rx: 3, strokeDasharray, ...look })),
      Plot.text(words ? some : [], { x, y, text, lineHeight: 1.35, fill: { value: ink, scale: null } }),
    ],
  });
}

/** The workload that was picked, or of those selected the one that is told best: decided, then the largest. */
function currentWorkload(selected) {
  const picked = selected.find((one) => String(one.index) === String(state.workload));
  const told = (one) => ["nobody", "no interval", "alone", "tie", "close", "decided"].indexOf(one.state);
  const by = (one, other) => d3.ascending(told(one), told(other)) || d3.ascending(one.size, other.size);
  return picked ?? d3.greatest(selected, by);
}

/** A chart of every contender against the fastest, each with its interval. */
function rankingChart(host, workload, some) {
  const known = some.filter((one) => one.best != null);
  const unknown = some.filter((one) => one.best == null);
  const band = 1 + workload.margin;
  const y = (one) => one.contender.name;
  const fastest = d3.min(workload.results, (one) => one.time);
  const x = (one) => one.best ?? fastest / one.time;
  const label = "times as fast as the fastest, with 95 % interval";
  const time = { text: (one) => secondsText(one.time), frameAnchor: "right", textAnchor: "start", dx: 8 };
  const width = Math.min(host.clientWidth, 900);
  const ticks = width < 500 ? 4 : 10;
  const scale = scaleOver([...some.map(x), 1 / band, band], (one) => figures(one, 2), true, { label, ticks });
  const ends = [(one) => one.best_low, (one) => one.best_high];
  draw(host, `Ranking at ${workload.name}`, { points: some, at: { x, y }, tip: resultLines }, {
    width,
    height: some.length * 22 + 60,
    marginLeft: 150,
    marginRight: 80,
    x: scale,
    y: { type: "band", domain: some.map(y), label: null, tickSize: 0, tickFormat: (name) => cut(name) },
    marks: [
      Plot.rectX([0], { x1: 1 / band, x2: band, fill: "currentColor", fillOpacity: 0.12 }),
      ...intervals(known, "x", ends, y, scale.domain),
      dots(known, { x, y, r: 4 }),
      dots(unknown, { x, y, r: 4, fill: "none" }),
      Plot.text(some, { y, ...time }),
    ],
  });
  const grey = `Grey band: differences of ±${percentText(workload.margin)} count as none.`;
  const hollow = unknown.length ? " Hollow: a ratio of medians, without an interval." : "";
  host.append(note(`${grey}${hollow} At the right: the time of one call.`));
}

function showWinners(host, selected) {
  const baselines = [...new Set(runs.map((one) => one.baseline))].join(" or ");
  const than = Object.entries({ baseline: baselines, next: "the next implementation" });
  host.append(row(picker("The number says how many times as fast as", than, "than")));
  const workload = currentWorkload(selected);
  const groups = [...d3.group(selected, (one) => one.title).values()];
  panels(host, groups, 480, (panel, some, width) => heatMap(panel, some, width, workload));
  const some = resultsOf([workload]).filter((one) => one.time != null);
  const others = workload.results.filter((one) => one.time == null);
  host.append(
    note(
      "Full colour: decided. Pale, dashed, ≈ or ≟: shares the first place with others that are not told apart. Without",
      " colour, dotted, ?: no interval.",
      " Who wins was decided among all contenders, also those that the filters hide. Pick a cell for its ranking; where",
      " cells are too small for words, the filters choose fewer lengths and heads.",
    ),
    heading(`Ranking at ${workload.name}`),
  );
  if (some.length)
    rankingChart(
      host,
      workload,
      d3.sort(some, (one) => one.time),
    );
  const missing = element(
    "summary",
    {},
    `${plural(others.length, "contender")} without a speed here, and why`,
  );
  const why = others.map((one) => `${one.contender.name}: ${one.outcome}. ${one.reason ?? ""}`);
  if (others.length) host.append(element("details", {}, missing, list(why)));
}
