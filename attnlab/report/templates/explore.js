const spec = JSON.parse(document.getElementById("spec").textContent);
vegaEmbed("#charts", spec, { actions: { export: true, source: false, compiled: false, editor: false } }).then(
  () => (document.documentElement.dataset.ready = "true"),
);

// The table: a click on a head sorts by it, a second click turns the order; rows are filtered by words.
const body = document.querySelector("#results tbody");
const rows = [...body.rows];
const valueOf = (row, at) => {
  const { dataset, textContent } = row.cells[at];
  const value = Number(dataset.value ?? textContent);
  return textContent === "–" ? null : Number.isNaN(value) ? textContent : value;
};
const compare = (one, other) =>
  typeof one === "number" && typeof other === "number" ? one - other : String(one).localeCompare(String(other));

document.querySelectorAll("#results th").forEach((head, at, heads) => {
  head.firstChild.addEventListener("click", () => {
    const down = head.ariaSort === "ascending";
    heads.forEach((one) => one.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const known = rows.filter((row) => valueOf(row, at) !== null);
    known.sort((one, other) => (down ? -1 : 1) * compare(valueOf(one, at), valueOf(other, at)));
    body.append(...known, ...rows.filter((row) => valueOf(row, at) === null)); // unknown values come last
  });
});

const filter = document.getElementById("filter");
const narrow = () => {
  const words = filter.value.toLowerCase().split(/\s+/);
  for (const row of rows) {
    const cells = [...row.cells].map((one) => one.textContent.toLowerCase());
    // a number must be met whole: 12 is not 128
    row.hidden = !words.every((word) => cells.some((text) => (/^\d+$/.test(word) ? text === word : text.includes(word))));
  }
  document.getElementById("shown").textContent = `${rows.filter((row) => !row.hidden).length} of ${rows.length}`;
};
filter.addEventListener("input", narrow);
narrow();
