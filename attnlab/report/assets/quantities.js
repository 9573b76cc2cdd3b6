// What was measured, each with its value, its interval and how it is written; and the fields that stand on an x axis.
const isBaseline = (result) => result.contender.name === result.workload.run.baseline;
const baselines = [...new Set(runs.map((one) => one.baseline))].join(" or ");

const QUANTITIES = [
  {
    name: "time",
    label: "time of one call",
    column: "time",
    better: "lower",
    text: secondsText,
    base: 10,
    log: true,
    value: (one) => one.time,
    low: (one) => one.time_low,
    high: (one) => one.time_high,
  },
  {
    name: "speed",
    label: `times as fast as ${baselines}`,
    column: `× ${baselines}`,
    better: "higher",
    text: ratioText,
    base: 10,
    log: true,
    value: (one) => (one.time != null && isBaseline(one) ? 1 : one.baseline_ratio),
    low: (one) => one.baseline_low,
    high: (one) => one.baseline_high,
  },
  {
    name: "memory",
    label: "peak memory of one call",
    column: "peak memory",
    better: "lower",
    text: bytesText,
    base: 2,
    log: true,
    value: (one) => one.memory,
    low: (one) => one.memory,
    high: (one) => one.memory_high,
  },
  {
    name: "error",
    label: "relative error",
    column: "error",
    better: "lower",
    text: (value) => figures(value, 2),
    base: 10,
    log: true,
    value: (one) => (one.time == null ? null : one.error),
    low: () => null,
    high: () => null,
  },
  {
    name: "share",
    label: "share of the best matrix-multiply rate",
    column: "of matrix multiply",
    better: "higher",
    text: percentText,
    base: 10,
    log: false,
    value: (one) => one.share,
    low: (one) => scaled(one, one.share, one.time_high),
    high: (one) => scaled(one, one.share, one.time_low),
  },
  {
    name: "bandwidth",
    label: "share of the copy bandwidth",
    column: "of copy",
    better: "higher",
    text: percentText,
    base: 10,
    log: false,
    value: (one) => one.bandwidth,
    low: (one) => scaled(one, one.bandwidth, one.time_high),
    high: (one) => scaled(one, one.bandwidth, one.time_low),
  },
].filter((quantity) => results.some((one) => quantity.value(one) != null));

/** A rate at the end of the time's interval: rates are so much over the time. */
const scaled = (result, share, time) => (share == null || time == null ? null : (share * result.time) / time);

const quantityNamed = (name) => QUANTITIES.find((one) => one.name === name);

/** The axes to draw against: every field with several values, and every quantity. */
const AXES = [
  ...fields
    .filter((one) => one.values.length > 1 && one.name !== "run")
    .map((field) => ({
      name: field.name,
      field,
      label: field.name === "keys" ? "n, length" : field.label,
      text: field.numbers ? String : (value) => value,
      base: 2,
      log: Boolean(field.numbers),
      value: (one) => valueOf(field, one.workload),
    })),
  ...QUANTITIES,
];
