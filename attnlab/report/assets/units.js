// Numbers as attnlab/contract/units.py writes them in the report and on the terminal.
const TIMES = [
  ["s", 1],
  ["ms", 1e-3],
  ["µs", 1e-6],
  ["ns", 1e-9],
];
const SIZES = [
  ["GiB", 2 ** 30],
  ["MiB", 2 ** 20],
  ["KiB", 2 ** 10],
];

/** `value` to so many significant digits, without an exponent between 0.001 and a million. */
function figures(value, digits = 3) {
  if (value === 0) return "0";
  const rounded = Number(value.toExponential(digits - 1));
  const size = Math.abs(rounded);
  if (size < 1e-3 || size >= 1e6) return rounded.toExponential(digits - 1).replace("e+", "e");
  const decimals = Math.max(0, digits - 1 - Math.floor(Math.log10(size)));
  return rounded.toLocaleString("en-US", {
    minimumFractionDigits: decimals,
    maximumFractionDigits: decimals,
  });
}

function inUnits(value, units) {
  const found = units.find(([, unit]) => Number((value / unit).toExponential(2)) >= 1) ?? units.at(-1);
  return `${figures(value / found[1])} ${found[0]}`;
}

const secondsText = (value) => inUnits(value, TIMES);
const bytesText = (value) => (value < 1024 ? `${Math.round(value)} B` : inUnits(value, SIZES));
const percentText = (value) => `${figures(value * 100, 2)} %`;
const ratioText = (value) => (value >= 0.1 && value < 2 ? value.toFixed(3) : figures(value));

/** `text(low)` to `text(high)` in brackets, the unit once; empty where there is no interval. */
function interval(low, high, text) {
  if (low == null || high == null) return "";
  const [from, to] = [text(low), text(high)];
  const unit = from.split(" ")[1];
  return unit && unit === to.split(" ")[1] ? ` [${from.split(" ")[0]}, ${to}]` : ` [${from}, ${to}]`;
}

/** "1.2 ms" as an axis writes it: without zeros that say nothing. */
const short = (text) => text.replace(/(\.\d*?)0+(?=\s|$)/, "$1").replace(/\.(?=\s|$)/, "");

/** Ticks of a logarithmic axis: powers of the base, and where these are few what lies between. */
function logTicks([low, high], base) {
  const steps = Math.log(high / low) / Math.log(base);
  const within =
    steps > 3
      ? [1]
      : base === 10
        ? steps > 1
          ? [1, 3]
          : [1, 2, 3, 5, 7]
        : [1, 2, 4, 8].filter((one) => one < base);
  const skip = Math.max(1, Math.ceil(steps / 7));
  const found = [];
  for (let power = Math.floor(Math.log(low) / Math.log(base)); base ** power <= high; power += 1) {
    if (power % skip === 0) found.push(...within.map((one) => one * base ** power));
  }
  return found.filter((one) => one >= low && one <= high);
}
