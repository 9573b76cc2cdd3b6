// One workload's ranking: every contender against the fastest, with its interval.
/** The workload that was picked, or the largest that is selected and has a speed. */
function currentWorkload(selected) {
  if (selected.includes(view.workload)) return view.workload;
  return largest(selected.filter((one) => one.first.length)) ?? selected[0] ?? null;
}

/** How many times as fast as the fastest; null where too few processes were shared for a verdict. */
const ofBest = (one) => (one.contender === one.workload.best ? 1 : one.best_ratio);

function rankingMarks(some, margin) {
  const y = (one) => one.contender.name;
  const spans = some.filter((one) => one.best_low != null && one.best_high != null);
  const [known, unknown] = [
    some.filter((one) => ofBest(one) != null),
    some.filter((one) => ofBest(one) == null),
  ];
  const span = { y, x1: "best_low", x2: "best_high", stroke: paint(ownerOf), strokeWidth: 2.5, clip: true };
  return [
    Plot.rect([0], { x1: 1 / (1 + margin), x2: 1 + margin, fill: "currentColor", fillOpacity: 0.12 }),
    Plot.ruleY(spans, span),
    dots(known, ofBest, y, ownerOf, 4),
    Plot.text(unknown, { y, frameAnchor: "middle", text: () => "no interval", fillOpacity: 0.7 }),
    Plot.text(some, { y, frameAnchor: "right", dx: 74, text: (one) => secondsText(one.time), fontSize: 12 }),
  ];
}

function rankingChart(host, workload, some) {
  const known = some.filter((one) => ofBest(one) != null);
  const ends = known.flatMap((one) => [one.best_low, one.best_high]);
  const [low, high] = d3.extent(within(known.map(ofBest), ends));
  const band = 1 + 2 * workload.margin;
  const domain = [Math.min(low * 0.9, 1 / band), Math.max(high * 1.08, band)];
  const names = some.map((one) => one.contender.name);
  const letters = Math.min(
    LABEL_LETTERS,
    d3.max(names, (name) => name.length),
  );
  const label = { label: "times as fast as the fastest, with 95 % interval", labelAnchor: "left" };
  return drawChart(host, {
    points: known,
    at: (one) => ({ x: ofBest(one), y: one.contender.name }),
    series: (one) => one.contender.name,
    label: `Ranking at ${nameOf(workload)}`,
    tip: (one) => [one.contender.name, resultLines(one)],
    width: Math.min(host.clientWidth, 900),
    height: some.length * 22 + 52,
    marginLeft: letters * LETTER + 14,
    marginRight: 78,
    marginBottom: 40,
    marginTop: 8,
    x: logScale(domain, (one) => String(Number(one.toPrecision(2))), 10, label),
    y: {
      type: "band",
      domain: names,
      label: null,
      tickSize: 0,
      tickFormat: (name) => cut(name, LABEL_LETTERS),
    },
    marks: rankingMarks(some, workload.margin),
  });
}

function showRanking(host, selected) {
  const workload = currentWorkload(selected);
  const some = [...workload.results.values()].filter((one) => one.time != null && shown.has(one.contender));
  host.append(element("h3", {}, `Ranking at ${nameOf(workload)}`));
  if (some.length) {
    rankingChart(
      host,
      workload,
      d3.sort(some, (one) => one.time),
    );
    host.append(
      note(
        `Grey band: differences of ±${percentText(workload.margin)} count as none. At the right: the time of one`,
        " call. An interval that leaves the figure goes on.",
        workload.same.length
          ? ` Another name of a kernel that is first: ${workload.same.map((one) => one.name).join(", ")}.`
          : "",
      ),
    );
  }
  host.append(missing(workload));
}

/** Who was asked here and has no speed, and why. */
function missing(workload) {
  const others = [...workload.results.values()].filter((one) => one.time == null);
  if (!others.length) return note("");
  const said = (one) =>
    element("li", {}, element("b", {}, one.contender.name), `: ${one.outcome}. ${one.reason ?? ""}`);
  const title = `${plural(others.length, "contender")} without a speed here, and why`;
  return element("details", {}, element("summary", {}, title), element("ul", {}, others.map(said)));
}
