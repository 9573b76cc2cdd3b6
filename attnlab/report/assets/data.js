// The data of the page, as rows that know each other.
const [DATA, ROUNDS] = await Promise.all(["data", "rounds"].map(unpacked));
const VERDICTS = ["faster", "slower", "equivalent", "undecided"];
const text = (place) => (place < 0 ? null : DATA.texts[place]);

const several = DATA.runs.length > 1;
const runs = DATA.runs.map((one, index) => ({
  ...one,
  index,
  title: several ? `${String.fromCharCode(65 + (index % 26))}: ${one.name}` : one.name,
}));
const contenders = DATA.contenders.map((one, index) => ({ ...one, index, measured: false }));
const contenderNamed = (name) => contenders.find((one) => one.name === name);

const fields = [...DATA.fields];
if (several)
  fields.unshift({
    name: "run",
    label: "run",
    values: runs.map((one) => one.title),
    numbers: null,
    of: DATA.workloads.run,
  });

/** Row objects out of columns, and columns of figures. */
function rows({ figures, ...plain }) {
  const columns = Object.entries(plain);
  for (const [name, column] of Object.entries(figures)) columns.push([name, figureColumn(column)]);
  return columns[0][1].map((_, index) =>
    Object.fromEntries(columns.map(([name, column]) => [name, column[index]])),
  );
}

const workloads = rows(DATA.workloads).map((one, index) => ({
  ...one,
  index,
  run: runs[one.run],
  group: runs[one.run].groups[one.group],
  groupKey: `${one.run}/${one.group}`,
  label: text(one.label),
  state: text(one.state),
  first: one.first.map((place) => contenders[place]),
  same: one.same.map((place) => contenders[place]),
  best: contenders[one.best] ?? null,
  next: contenders[one.next] ?? null,
  value: Object.fromEntries(fields.map((field) => [field.name, field.of[index]])),
  results: new Map(),
}));

let timed = 0;
const results = rows(DATA.results).map((one) => {
  const workload = workloads[one.workload];
  const result = {
    ...one,
    workload,
    contender: contenders[one.contender],
    outcome: text(one.outcome),
    reason: text(one.reason),
    kernel: text(one.kernel),
    computes_in: text(one.computes_in),
    raw: one.time == null || !ROUNDS.every ? null : timed++,
  };
  if (one.time != null) result.contender.measured = true;
  workload.results.set(result.contender, result);
  return result;
});

/** A field's value at a workload: the number, or the text of one that is none. */
function valueOf(field, workload) {
  const place = workload.value[field.name];
  return field.numbers ? field.numbers[place] : field.values[place];
}

const fieldNamed = (name) => fields.find((one) => one.name === name);
const keysOf = (workload) => valueOf(fieldNamed("keys"), workload);
const headsOf = (workload) => valueOf(fieldNamed("heads"), workload);
const headsText = (workload) => (headsOf(workload) === 1 ? "1 head" : `${headsOf(workload)} heads`);
const placeText = (workload) => `n = ${keysOf(workload)}, ${headsText(workload)}`;

/** All that tells a workload from the others of the page. */
const nameOf = (workload) =>
  [placeText(workload), workload.group, several ? workload.run.title : ""].filter(Boolean).join(" · ");

/** The raw rounds of a result: round, seconds, process, disturbed. */
function roundsOf(result) {
  if (result.raw == null) return [];
  const [exponent, least, more, place, disturbed] = ["exponent", "least", "more", "taken", "disturbed"].map(
    (name) => ROUNDS[name][result.raw],
  );
  const [stretches, processes] = ROUNDS.stretches[place];
  const numbers = stretches.flatMap(([first, count, step]) =>
    d3.range(count).map((one) => first + one * step),
  );
  const owners = processes.flatMap(([process, count]) => Array(count).fill(process));
  const left = new Set(disturbed);
  return more.map((above, index) => ({
    result,
    round: numbers[index],
    process: owners[index],
    disturbed: left.has(index),
    seconds: (least + above) * 10 ** exponent,
  }));
}
