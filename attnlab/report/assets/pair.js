// Two runs side by side: the time of each contender in one against its time in the other.
const pair = { one: 0, other: 1 };

/** Results of the same contender on the same workload in both runs. */
function matched(some) {
  const alike = fields.filter((field) => field.name !== "run");
  const key = ({ contender, workload }) =>
    [contender.index, ...alike.map((one) => workload.value[one.name])].join("/");
  const of = (run) => some.filter((one) => one.workload.run.index === run && one.time != null);
  const others = new Map(of(pair.other).map((one) => [key(one), one]));
  return of(pair.one)
    .map((one) => ({ one, other: others.get(key(one)) }))
    .filter((both) => both.other);
}

const timeText = (one) => `${secondsText(one.time)}${interval(one.time_low, one.time_high, secondsText)}`;

const pairTip = ({ one, other }) => [
  one.contender.name,
  [
    ["workload", one.workload.label],
    [one.workload.run.title, timeText(one)],
    [other.workload.run.title, timeText(other)],
    ["the second", `takes ${ratioText(other.time / one.time)} times as long (no verdict: they did not race)`],
  ],
];

function pairMarks(both, domain) {
  const [x, y, owner] = [({ one }) => one.time, ({ other }) => other.time, ({ one }) => one.contender];
  const [wide, high] = [
    both.filter(({ one }) => one.time_low != null),
    both.filter(({ other }) => other.time_low != null),
  ];
  const stroke = paint(owner);
  return [
    Plot.line(domain, { x: (one) => one, y: (one) => one, stroke: "currentColor", strokeOpacity: 0.5 }),
    Plot.ruleX(high, {
      x,
      y1: ({ other }) => other.time_low,
      y2: ({ other }) => other.time_high,
      stroke,
      clip: true,
    }),
    Plot.ruleY(wide, {
      y,
      x1: ({ one }) => one.time_low,
      x2: ({ one }) => one.time_high,
      stroke,
      clip: true,
    }),
    dots(both, x, y, owner, 3.2),
  ];
}

function pairChart(host, both) {
  const [first, second] = [runs[pair.one], runs[pair.other]];
  const domain = extent(
    both.flatMap(({ one, other }) => [one.time, other.time]),
    true,
  );
  const width = Math.min(host.clientWidth, 640);
  const axis = (label) =>
    logScale(domain, (value) => short(secondsText(value)), 10, { label, labelAnchor: "center" });
  return drawChart(host, {
    points: both,
    at: ({ one, other }) => ({ x: one.time, y: other.time }),
    series: ({ one }) => one.contender.name,
    label: `Times of ${second.title} against those of ${first.title}`,
    tip: pairTip,
    width,
    height: Math.round(width * 0.72),
    marginLeft: 72,
    marginRight: 16,
    marginBottom: 44,
    marginTop: 10,
    x: axis(`time in ${first.title}`),
    y: axis(null),
    marks: pairMarks(both, domain),
  });
}

function showPair(host, selected, redraw) {
  const choice = (label, name) =>
    picker(
      label,
      runs.map((run) => [run.index, run.title]),
      pair[name],
      (value) => {
        pair[name] = Number(value);
        redraw();
      },
    );
  host.append(element("div", { class: "row" }, choice("compare", "one"), choice("with", "other")));
  host.append(element("h3", {}, "Time against time"));
  const both = matched(selectedResults(selected));
  if (!both.length) {
    return host.append(element("p", {}, "No contender was measured on the same workload in both runs."));
  }
  host.append(
    element(
      "p",
      { class: "axis" },
      `time in ${runs[pair.other].title}; points below the line are faster there`,
    ),
  );
  pairChart(host, both);
  return host.append(
    note(
      `${plural(both.length, "result")} in both. Two runs did not race each other: their times stand side by side,`,
      " each with its own interval, and no verdict is given.",
    ),
  );
}
