// What each contender took in every run of one machine, over date: change points and new software are marked.
const byMachine = d3.groups(runs, (one) => one.machine_id).filter(([, some]) => some.length > 1);
const ofMany = new Set(byMachine.flatMap(([, some]) => some));
if (!ofMany.size) part("history-tab").remove();

const dateOf = ({ workload }) => new Date(workload.run.date);
const stepText = (ratio) => `${ratio < 1 ? "−" : "+"}${percentText(Math.abs(ratio - 1))}`;

function historyLines(one) {
  const { run } = one.workload;
  const news = run.news.length && `new in this run: ${run.news.join(", ")}`;
  const step = one.step != null && `a new level begins here: ${stepText(one.step)}`;
  return [one.contender.name, joined(run.title, run.started), written(one, "time", secondsText), step, news];
}

/** The curves of one workload on one machine. */
function historyPanel(host, [title, mine], width) {
  const points = d3.sort(mine, (one) => one.contender.name, dateOf);
  const at = { x: dateOf, y: "time" };
  const [low, high] = d3.extent(points, (one) => one.time);
  const steps = points.filter((one) => one.step != null);
  const news = [...new Set(points.map((one) => one.workload.run))].filter((run) => run.news.length);
  const dashes = { strokeOpacity: 0.6, strokeDasharray: "4 3" };
  const curve = ([one, some]) => Plot.line(some, { ...at, stroke: paint(one), strokeWidth: 1.7 });
  const times = points.flatMap((one) => [one.time, one.time_low ?? one.time, one.time_high ?? one.time]);
  host.append(heading(title));
  draw(host, `Time of one call over date, ${title}`, { points, at, tip: historyLines }, {
    width,
    height: 330,
    x: { type: "utc", label: null, ticks: 5 },
    y: scaleOver(times, secondsText, high > 6 * low, { label: "time of one call (lower is better)" }),
    marks: [
      Plot.frame({ strokeOpacity: 0.2 }),
      Plot.ruleX(news, { x: (run) => new Date(run.date), ...dashes }),
      ...d3.groups(points, ownerOf).map(curve),
      Plot.ruleX(points, { x: dateOf, y1: "time_low", y2: "time_high", stroke: painted() }),
      dots(points, at),
      Plot.dot(steps, { ...at, r: 9, stroke: painted(), strokeWidth: 2 }),
      Plot.text(steps, { ...at, text: (one) => stepText(one.step), dy: -17, fill: painted(), fontWeight: 700 }),
    ],
  });
}

function showHistory(host, selected) {
  const some = resultsOf(selected).filter((one) => one.time != null && ofMany.has(one.workload.run));
  if (!some.length) return host.append(note("No selected contender was measured in several runs of one machine."));
  const place = ({ workload }) => joined(workload.label, byMachine.length > 1 && workload.run.machine_id);
  host.append(
    note(
      "Times as they were measured. A ring and its percentage: a new level begins, as attnlab judged over all runs of",
      " the machine, whatever the filters hide. Dashed: software or variables changed; point at a mark to read which.",
    ),
    legend(some),
  );
  return panels(host, d3.groups(some, place), 480, historyPanel);
}
