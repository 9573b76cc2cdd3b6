// Who is first at each length and head count, and below it the ranking of one workload.
const isFull = (one) => one.state === "decided" || one.state === "alone";
/** The winner's colour; none where there is no winner. */
const cellColour = (one) =>
  one.first && one.state !== "no interval" ? paint(contenders.get(one.first)) : "none";

/** The map of one group of workloads, heads across and lengths down, as in the report's table. */
function heatMap(host, some, width) {
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
  const ink = (one) => (isFull(one) ? (DARK.matches ? "#111" : "#fff") : "currentColor");
  const picked = currentWorkload(some);
  host.append(heading(some[0].title), words ? "" : legend(first));
  const look = {
    fill: { value: cellColour, scale: null },
    fillOpacity: (one) => (isFull(one) ? 1 : 0.22),
    stroke: "currentColor",
    strokeWidth: (one) => (one === picked ? 2.5 : 0.3),
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
      Plot.cell(some, { x, y, rx: 3, ...look }),
      Plot.text(words ? some : [], { x, y, text, fontSize: 12, fill: { value: ink, scale: null } }),
    ],
  });
}

/** The workload that was picked, or the largest that is selected and has a speed. */
function currentWorkload(selected) {
  const picked = selected.find((one) => String(one.index) === String(state.workload));
  return picked ?? d3.greatest(selected, (one) => (one.first ? one.size : 0));
}

/** A chart of every contender against the fastest, each with its interval. */
function rankingChart(host, workload, some) {
  const known = some.filter((one) => one.best != null);
  const unknown = some.filter((one) => one.best == null);
  const band = 1 + workload.margin;
  const y = (one) => one.contender.name;
  const label = "times as fast as the fastest, with 95 % interval";
  const time = { text: (one) => secondsText(one.time), frameAnchor: "right", textAnchor: "start", dx: 8 };
  const span = { x1: "best_low", x2: "best_high", stroke: painted(), strokeWidth: 2, clip: true };
  const pointed = { points: known, at: { x: "best", y }, tip: resultLines };
  draw(host, `Ranking at ${workload.name}`, pointed, {
    width: Math.min(host.clientWidth, 900),
    height: some.length * 22 + 60,
    marginLeft: 150,
    marginRight: 80,
    x: scaleOver([...known.map((one) => one.best), 1 / band, band], (one) => figures(one, 2), true, {
      label,
      ticks: 10,
    }),
    y: { type: "band", domain: some.map(y), label: null, tickSize: 0, tickFormat: (name) => cut(name) },
    marks: [
      Plot.rectX([0], { x1: 1 / band, x2: band, fill: "currentColor", fillOpacity: 0.12 }),
      Plot.ruleY(known, { y, ...span }),
      dots(known, { x: "best", y, r: 4 }),
      Plot.text(unknown, { y, frameAnchor: "middle", text: () => "no interval" }),
      Plot.text(some, { y, ...time }),
    ],
  });
  const grey = `Grey band: differences of ±${percentText(workload.margin)} count as none.`;
  host.append(
    note(`${grey} At the right: the time of one call. An interval that leaves the figure goes on.`),
  );
}

function showWinners(host, selected) {
  const baselines = [...new Set(runs.map((one) => one.baseline))].join(" or ");
  const than = Object.entries({ baseline: baselines, next: "the next implementation" });
  host.append(row(picker("The number says how many times as fast as", than, "than")));
  panels(host, [...d3.group(selected, (one) => one.title).values()], 480, heatMap);
  const workload = currentWorkload(selected);
  const some = resultsOf([workload]).filter((one) => one.time != null);
  const others = workload.results.filter((one) => one.time == null);
  host.append(
    note(
      "Full colour: decided. Pale with ≈: shares the first place with others that are not told apart. ?: not decided.",
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
