// Where and how each run was made; two runs side by side: time against time, and what differs between the machines.
const pair = { one: 0, other: 1 };

/** Results of the same contender on the same workload in both runs. */
function matched(some) {
  const key = (one) => JSON.stringify([one.contender.index, ...fields.filter((field) => field.name !== "run").map((field) => one.workload.value[field.name])]);
  const of = (run) => some.filter((one) => one.workload.run.index === run && one.time != null);
  const others = new Map(of(pair.other).map((one) => [key(one), one]));
  return of(pair.one).map((one) => ({ one, other: others.get(key(one)) })).filter((both) => both.other);
}

function pairFigure(host, both) {
  const [first, second] = [runs[pair.one], runs[pair.other]];
  const domain = extent(both.flatMap(({ one, other }) => [one.time, other.time]), true);
  const width = Math.min(host.clientWidth, 640);
  const colour = { value: ({ one }) => shade(one.contender.colour), scale: null };
  const axis = (run) => ({ type: "log", domain, ticks: logTicks(domain, 10), tickFormat: (value) => short(secondsText(value)), grid: true, label: `time in ${run.title}`, labelArrow: "none", labelAnchor: "center" });
  const [x, y] = [({ one }) => one.time, ({ other }) => other.time];
  drawChart(host, {
    points: both, at: (each) => ({ x: x(each), y: y(each) }), series: ({ one }) => one.contender.name,
    label: `Times of ${second.title} against those of ${first.title}`,
    tip: ({ one, other }) => [one.contender.name, [
      ["workload", one.workload.label],
      [first.title, `${secondsText(one.time)}${interval(one.time_low, one.time_high, secondsText)}`],
      [second.title, `${secondsText(other.time)}${interval(other.time_low, other.time_high, secondsText)}`],
      ["the second takes", `${ratioText(other.time / one.time)} times as long (no verdict: they did not race)`]]],
    width, height: Math.round(width * 0.72), marginLeft: 72, marginRight: 16, marginBottom: 44, marginTop: 10,
    x: axis(first), y: { ...axis(second), label: null },
    marks: [
      Plot.line([[domain[0], domain[0]], [domain[1], domain[1]]], { stroke: "currentColor", strokeOpacity: 0.5 }),
      Plot.ruleX(both.filter(({ other }) => other.time_low != null), { x, y1: ({ other }) => other.time_low, y2: ({ other }) => other.time_high, stroke: colour }),
      Plot.ruleY(both.filter(({ one }) => one.time_low != null), { y, x1: ({ one }) => one.time_low, x2: ({ one }) => one.time_high, stroke: colour }),
      Plot.dot(both, { x, y, fill: colour, stroke: colour, symbol: { value: ({ one }) => SYMBOLS[one.contender.symbol], scale: null }, r: 3.2 }),
    ],
  });
}

function machineTable(some) {
  const names = [...new Set(some.flatMap((run) => run.about.map(([name]) => name)))];
  const said = (run, name) => run.about.find(([one]) => one === name)?.[1] ?? "";
  const body = names.map((name) => {
    const values = some.map((run) => said(run, name));
    const differs = new Set(values).size > 1;
    return element("tr", { class: differs ? "differs" : null }, element("th", { scope: "row" }, name),
      values.map((one) => element("td", {}, one || "–")), several ? element("td", {}, differs ? "differs" : "") : null);
  });
  const head = element("tr", {}, element("td", {}), some.map((run) => element("th", { scope: "col" }, run.title)), several ? element("td", {}) : null);
  return element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Machines" }, element("table", {}, element("thead", {}, head), element("tbody", {}, body)));
}

function settingsTable() {
  const known = runs.flatMap((run) => contenders.filter((one) => one.measured && run.settings[one.name]).map((one) => [run, one]));
  const body = known.map(([run, one]) => element("tr", {}, element("th", { scope: "row" }, one.name), several ? element("td", {}, run.title) : null, element("td", {}, run.settings[one.name])));
  return element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Settings" }, element("table", {}, element("tbody", {}, body)));
}

function showMachines(host, { selected }, redraw) {
  if (several) {
    const choice = (name) => picker(name === "one" ? "compare" : "with", runs.map((run) => [run.index, run.title]), pair[name], (value) => { pair[name] = Number(value); redraw(); });
    host.append(element("div", { class: "row" }, choice("one"), choice("other")));
    const both = matched(selectedResults(selected));
    host.append(element("h3", {}, "Time against time"));
    if (both.length) {
      host.append(element("p", { class: "axis" }, `time in ${runs[pair.other].title}; points below the line are faster there`));
      pairFigure(host, both);
      host.append(element("p", { class: "note" }, `${plural(both.length, "result")} in both. Two runs did not race each other: their times stand side by side, each with its own interval, and no verdict is given.`));
    } else host.append(element("p", {}, "No contender was measured on the same workload in both runs."));
  }
  host.append(element("h3", {}, several ? "The machines" : "The machine"), machineTable(several ? [runs[pair.one], runs[pair.other]] : runs));
  host.append(element("h3", {}, "Settings"), settingsTable());
  host.append(element("h3", {}, "To repeat it"), ...runs.map((run) => element("pre", { tabindex: "0" }, run.command || "not recorded")));
}
