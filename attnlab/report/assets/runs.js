// Where and how each run was made, two runs side by side, and every result as a table to sort.
/** A table that scrolls by itself where the screen is narrower: cells of its head, and rows. */
function table(label, head, body) {
  const rows = [element("thead", {}, element("tr", {}, head)), element("tbody", {}, body)];
  const inside = element("table", {}, rows);
  return element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": label }, inside);
}

/** Results of the same contender on the same workload in both runs. */
function matched(selected, one, other) {
  const alike = fields.filter((field) => field.name !== "run");
  const key = ({ contender, workload }) =>
    [contender.name, ...alike.map((field) => workload.value[field.name])].join();
  const of = (run) => resultsOf(selected).filter((result) => result.workload.run === run && result.time);
  const others = new Map(of(other).map((result) => [key(result), result]));
  const pairs = of(one).map((result) => ({ one: result, other: others.get(key(result)) }));
  return pairs.filter((pair) => pair.other);
}

const pairLines = ({ one, other }) => [
  one.contender.name,
  one.workload.label,
  ...[one, other].map((each) => `${each.workload.run.title}: ${written(each, "time", secondsText)}`),
  `the second takes ${ratioText(other.time / one.time)} times as long (no verdict: they did not race)`,
];

function showPair(host, selected, first, second) {
  const both = matched(selected, first, second);
  host.append(heading("Time against time"));
  if (!both.length) return host.append(note("No contender was measured on the same workload in both runs."));
  const [x, y, owner] = [({ one }) => one.time, ({ other }) => other.time, ({ one }) => one.contender];
  const times = [...both.map(x), ...both.map(y)];
  const scale = (run) => scaleOver(times, secondsText, true, { label: `time in ${run.title}`, ticks: 5 });
  const [across, up] = [scale(first), scale(second)];
  const width = Math.min(host.clientWidth, 640);
  const ends = (run) => ["low", "high"].map((end) => (pair) => pair[run][`time_${end}`]);
  host.append(legend(both.map(({ one }) => one)));
  const pointed = { points: both, at: { x, y }, tip: pairLines };
  draw(host, `Times of ${second.title} against ${first.title}`, pointed, {
    width,
    height: Math.round(width * 0.72),
    x: across,
    y: up,
    marks: [
      Plot.line(d3.extent(times), { x: Number, y: Number, strokeOpacity: 0.5 }),
      ...intervals(both, "y", ends("other"), x, up.domain, owner),
      ...intervals(both, "x", ends("one"), y, across.domain, owner),
      dots(both, { x, y }, owner),
    ],
  });
  return host.append(
    note(
      `${plural(both.length, "result")} in both; points below the line are faster in ${second.title}. Two runs did not`,
      " race each other: their times stand side by side, each with its own interval, and no verdict is given.",
    ),
  );
}

/** A row for each thing known of the machines of some runs; what differs is marked. */
function machineTable(some) {
  const said = some.map((run) => new Map(run.about));
  const names = [...new Set(said.flatMap((one) => [...one.keys()]))];
  const body = names.map((name) => {
    const values = said.map((one) => one.get(name) ?? "–");
    const differs = new Set(values).size > 1;
    const cells = [...values, differs ? "differs" : ""].map((one) => element("td", {}, one));
    return element("tr", { class: differs && "differs" }, element("th", { scope: "row" }, name), cells);
  });
  const titles = some.map((run) => element("th", { scope: "col" }, run.title));
  return table("Machines", [element("td"), titles], body);
}

function showRuns(host, selected) {
  const [first, second] = [runs[state.one], runs[state.other]];
  const listed = runs.map((run, index) => [index, run.title]);
  if (several) host.append(row(picker("compare", listed, "one"), picker("with", listed, "other")));
  if (several) showPair(host, selected, first, second);
  host.append(heading("Where it ran"), machineTable(several ? [...new Set([first, second])] : runs));
  for (const run of runs) {
    const ran = d3.groups(Object.keys(run.settings), (name) => run.settings[name]);
    host.append(
      heading(joined("Settings, and how to repeat it", several && run.title)),
      list(ran.map(([said, names]) => `${names.join(", ")}: ${said}`)),
      element("pre", { tabindex: "0" }, run.command || "The command was not recorded."),
    );
  }
}

const COLUMNS = [
  { label: "contender", of: (one) => one.contender.name },
  ...varying.map(fieldAxis).map(({ label, value, field }) => ({ label, of: value, number: field.numbers })),
  { label: "outcome", of: (one) => one.outcome },
  ...QUANTITIES.map(({ name, label, value, text }) => ({
    label: label.replace(/ \(.*/, ""),
    of: value,
    number: true,
    text: (_, one) => written(one, name, text),
  })),
  { label: "kernel, or why there is no speed", of: (one) => (one.time == null ? one.reason : one.kernel) },
];
Object.assign(state, { column: null, down: false, rows: 100 });

function header(column) {
  const active = state.column === column;
  const [sort, arrow] = !active ? ["none", ""] : state.down ? ["descending", " ▼"] : ["ascending", " ▲"];
  const press = () => choose({ column, down: active && !state.down });
  const more = { scope: "col", class: column.number && "number", "aria-sort": sort };
  return element("th", more, button(column.label + arrow, press));
}

function showTable(host, selected) {
  const { column, down, rows: most } = state;
  const order = (one) => column.of(one) ?? undefined; // which stands last in either direction
  const all = resultsOf(selected);
  const by = (one, other) => (down ? d3.descending : d3.ascending)(order(one), order(other));
  const some = column ? d3.sort(all, by) : all;
  const cell = (one, { of, text = String, number }) =>
    element("td", { class: number && "number" }, of(one) == null ? "–" : text(of(one), one));
  const line = (one) => element("tr", {}, ...COLUMNS.map((column) => cell(one, column)));
  const more = some.length > most;
  const said = `${more ? `The first ${most} of ` : ""}${plural(some.length, "result")}`;
  host.append(note(said), table("Results", COLUMNS.map(header), some.slice(0, most).map(line)));
  if (more) host.append(row(button("Show more", () => choose({ rows: 4 * most }))));
}
