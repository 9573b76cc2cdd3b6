// The data of the page as rows that know each other, and figures as attnlab/units.py writes them.
const part = (id) => document.getElementById(id);
if (!("DecompressionStream" in window)) {
  part("too-old").hidden = false;
  return; // from the function that all files of the page stand in
}

/** The data of a block of the page: JSON, packed by gzip, in base64. */
async function unpacked(name) {
  const bytes = Uint8Array.from(atob(part(name).textContent), (letter) => letter.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).json();
}

/** Row objects out of columns, of which those of texts stand as codes into values. */
function rows(columns) {
  const plain = (one) => one.codes?.map((code) => one.values[code]) ?? one;
  const all = Object.entries(columns).map(([name, one]) => [name, plain(one)]);
  const row = (_, index) => Object.fromEntries(all.map(([name, column]) => [name, column[index]]));
  return (all[0]?.[1] ?? []).map(row);
}

const [DATA, ROUNDS] = await Promise.all(["data", "rounds"].map(unpacked));
const { runs, fields } = DATA;
const several = runs.length > 1;
const contenders = new Map(DATA.contenders.map((one) => [one.name, one]));
const joined = (...texts) => texts.filter(Boolean).join(" · ");

const workloads = rows(DATA.workloads).map((one, index) => {
  const run = runs[one.run];
  const title = joined(several && run.title, one.group);
  const value = Object.fromEntries(fields.map((field) => [field.name, field.of[index]]));
  return { ...one, index, run, title, name: joined(one.place, title), value, results: [] };
});

let timed = 0;
const results = rows(DATA.results).map((one) => {
  const [workload, contender] = [workloads[one.workload], contenders.get(one.contender)];
  const result = { ...one, workload, contender, raw: one.time == null ? null : timed++ };
  contender.measured ||= one.time != null;
  workload.results.push(result);
  return result;
});

const fieldNamed = (name) => fields.find((one) => one.name === name);
/** A field's value at a workload: the number, or the text of one that is none. */
const valueOf = (field, workload) => (field.numbers ?? field.values)[workload.value[field.name]];

/** The raw rounds of a result. */
function roundsOf(result) {
  if (!ROUNDS.every) return [];
  const column = (name) => ROUNDS[name][result.raw];
  const [unit, [numbers, processes]] = [10 ** column("exponent"), ROUNDS.schedules[column("schedule")]];
  const row = (time, at) => {
    const [round, process, disturbed] = [
      numbers[at] + 1,
      processes[at] + 1,
      column("disturbed").includes(at),
    ];
    return { result, round, process, disturbed, seconds: time * unit };
  };
  return column("times").map(row);
}

/** `value` to so many significant digits, without an exponent between 0.001 and a million. */
function figures(value, digits = 3) {
  if (value === 0) return "0";
  const rounded = Number(value.toPrecision(digits));
  if (rounded < 1e-3 || rounded >= 1e6) return rounded.toExponential(digits - 1).replace("e+", "e");
  const exactly = { minimumSignificantDigits: digits, maximumSignificantDigits: digits };
  return rounded.toLocaleString("en-US", exactly);
}

/** `value` in the first of `units` of which it is one or more. */
function inUnits(value, units) {
  const all = Object.entries(units);
  const [name, unit] = all.find(([, size]) => Number((value / size).toPrecision(3)) >= 1) ?? all.at(-1);
  return `${figures(value / unit)} ${name}`;
}

const secondsText = (value) => inUnits(value, { s: 1, ms: 1e-3, µs: 1e-6, ns: 1e-9 });
const SIZES = { GiB: 2 ** 30, MiB: 2 ** 20, KiB: 2 ** 10 };
const bytesText = (value) => (value < 1024 ? `${Math.round(value)} B` : inUnits(value, SIZES));
const percentText = (value) => `${figures(value * 100, 2)} %`;
const ratioText = (value) => (value >= 0.1 && value < 2 ? value.toFixed(3) : figures(value));
const counted = (count) => count.toLocaleString("en-US");
const plural = (count, noun) => `${counted(count)} ${noun}${count === 1 ? "" : "s"}`;

/** `text(low)` to `text(high)` in brackets, the unit once; empty where there is no interval. */
function interval(low, high, text) {
  if (low == null || high == null) return "";
  const [[from, unit], to] = [text(low).split(" "), text(high)];
  return unit === to.split(" ")[1] ? ` [${from}, ${to}]` : ` [${from} ${unit}, ${to}]`;
}

/** "1.20 ms" as an axis writes it: without zeros that say nothing. */
const short = (text) => text.replace(/(\.\d*?)0+(?=\s|$)/, "$1").replace(/\.(?=\s|$)/, "");
