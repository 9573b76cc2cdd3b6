// Every result that is selected, as a table to sort: also those without a speed, with their reasons.
const MOST_ROWS = 100;
const COLUMNS = [
  { label: "contender", of: (one) => one.contender.name },
  ...fields
    .filter((one) => one.values.length > 1)
    .map((field) => ({
      label: field.name === "keys" ? "n" : field.label,
      of: (one) => valueOf(field, one.workload),
      text: String,
      number: Boolean(field.numbers),
    })),
  { label: "outcome", of: (one) => one.outcome },
  ...QUANTITIES.map((quantity) => ({
    label: quantity.column,
    of: quantity.value,
    number: true,
    text: (value, one) =>
      quantity.text(value) +
      (["time", "speed"].includes(quantity.name)
        ? interval(quantity.low(one), quantity.high(one), quantity.text)
        : ""),
  })),
  { label: "kernel, or why there is no speed", of: (one) => (one.time == null ? one.reason : one.kernel) },
];
const sorting = { column: null, down: false, rows: MOST_ROWS };

function sortedRows(some) {
  if (!sorting.column) return some;
  const { of } = sorting.column;
  const known = some.filter((one) => of(one) != null),
    unknown = some.filter((one) => of(one) == null);
  return [...d3.sort(known, (a, b) => (sorting.down ? -1 : 1) * d3.ascending(of(a), of(b))), ...unknown];
}

function header(column, redraw) {
  const active = sorting.column === column;
  const press = () => {
    sorting.down = active && !sorting.down;
    sorting.column = column;
    redraw();
  };
  return element(
    "th",
    {
      scope: "col",
      class: column.number ? "number" : null,
      "aria-sort": active ? (sorting.down ? "descending" : "ascending") : "none",
    },
    element(
      "button",
      { type: "button", onclick: press },
      column.label,
      active ? (sorting.down ? " ▼" : " ▲") : "",
    ),
  );
}

function showTable(host, { selected }, redraw) {
  const some = sortedRows(selectedResults(selected));
  const few = some.slice(0, sorting.rows);
  const said =
    few.length < some.length
      ? `The first ${few.length} of ${plural(some.length, "result")}.`
      : plural(some.length, "result");
  const body = few.map((one) =>
    element(
      "tr",
      {},
      COLUMNS.map(({ of, text: written, number }) => {
        const value = of(one);
        return element(
          "td",
          { class: number ? "number" : null },
          value == null ? "–" : written ? written(value, one) : value,
        );
      }),
    ),
  );
  host.append(
    element("p", { class: "note", id: "counted" }, said),
    element(
      "div",
      { class: "scroll", tabindex: "0", role: "region", "aria-label": "Results" },
      element(
        "table",
        { class: "results" },
        element(
          "thead",
          {},
          element(
            "tr",
            {},
            COLUMNS.map((one) => header(one, redraw)),
          ),
        ),
        element("tbody", {}, body),
      ),
    ),
  );
  if (few.length < some.length) {
    const more = () => {
      sorting.rows *= 4;
      redraw();
    };
    host.append(
      element("div", { class: "row" }, element("button", { type: "button", onclick: more }, "Show more")),
    );
  }
}
