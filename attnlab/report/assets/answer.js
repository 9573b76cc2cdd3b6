// The first thing to read: which, how much faster, how sure, how big, for what the filters select.
const most = (list, of) =>
  list.reduce((best, one) => (best == null || of(one) > of(best) ? one : best), null);
/** the workload with the largest score matrix */
const largest = (some) => most(some, (one) => one.score);
const isDecided = (one) => one.state === "decided";
/** whether `contender` has or shares the first place */
const isFirst = (one, contender) => one.first.includes(contender) || one.same.includes(contender);

/** `from` to `to`, or one of them where they read alike. */
function span(values, written) {
  const [from, to] = d3.extent(values).map((one) => written(one));
  return from === to ? from : `${from} to ${to}`;
}

function card(question, answer, ...notes) {
  return element(
    "div",
    { class: "card" },
    element("h2", {}, question),
    element("p", { class: "big" }, answer),
    notes.filter(Boolean).map((one) => element("p", { class: "note" }, one)),
  );
}

/** What those of `names` that were measured at a workload took there at their peak. */
const peaksAt = (one, names) => names.map((name) => one.results.get(name)?.memory).filter((peak) => peak != null);

/**
 * The contender to run at all of `some`, as the report chooses it (attnlab/report/winners.py): first or tied at most of
 * them; of several such one that needs little memory at the largest, and of those the first of the plan.
 */
function chosenOf(some) {
  const counts = contenders.map((name) => d3.sum(some, (one) => isFirst(one, name)));
  const best = contenders.filter((_, index) => counts[index] && counts[index] === d3.max(counts));
  const known = d3.max(some, (one) => peaksAt(one, best).length);
  const peaks = peaksAt(largest(some.filter((one) => peaksAt(one, best).length === known)), best);
  if (peaks.length < best.length) return best[0];
  return best.find((_, index) => peaks[index] <= DATA.more_memory * d3.min(peaks));
}

function which(some, name) {
  const [first, alone] = [
    some.filter((one) => isFirst(one, name)),
    some.filter((one) => isDecided(one) && isFirst(one, name)),
  ];
  const twins = [...new Set(first.flatMap((one) => (one.first.includes(name) ? one.same : [])))].map(
    (one) => one.name,
  );
  const elsewhere = some.filter((one) => !isFirst(one, name));
  const others = [
    ...d3.rollup(
      elsewhere,
      (few) => few.length,
      (one) => one.first[0].name,
    ),
  ].sort((a, b) => b[1] - a[1]);
  const answer = element("span", {}, swatch(name), name.name);
  return card(
    "Which",
    answer,
    `among the fastest on ${counted(first.length)} of ${plural(some.length, "workload")}, alone on ${counted(alone.length)}`,
    others.length
      ? `elsewhere: ${others
          .slice(0, 2)
          .map(([one, count]) => `${one} (${counted(count)})`)
          .join(", ")}${others.length > 2 ? ", …" : ""}`
      : twins.length === 1
        ? `${twins[0]} ran the same kernel`
        : twins.length
          ? `${twins.length} other names ran the same kernel`
          : "",
  );
}

/** The lead of the first place, as the report has it: over the next where that is decided, and over the baseline. */
function howMuch(some, name) {
  const first = some.filter((one) => isFirst(one, name));
  const ahead = first.filter((one) => isDecided(one) && one.next_ratio != null);
  const beside = first.filter((one) => one.baseline_ratio != null);
  const baseline = some[0].run.baseline;
  const at = largest(beside);
  const over = at
    ? `${figures(at.baseline_ratio)}${interval(at.baseline_low, at.baseline_high, figures)} × as fast as ${baseline} at ${placeText(at)}`
    : name.name === baseline
      ? "it is the baseline itself"
      : `${baseline}, the baseline, was not measured beside it`;
  const question = "How much faster";
  if (ahead.length)
    return card(
      question,
      `${span(ahead.map((one) => one.next_ratio), figures)} ×`,
      "as fast as the next, where that is decided",
      over,
    );
  if (!at) return card(question, "–", over);
  return card(
    question,
    `${span(beside.map((one) => one.baseline_ratio), figures)} ×`,
    `as fast as ${baseline}`,
    over,
  );
}

function howSure(some, name) {
  const decided = some.filter(isDecided);
  const tied = some.filter((one) => one.state === "tie");
  const halves = some
    .map((one) => one.results.get(name))
    .filter((one) => one?.baseline_low && one.baseline_high)
    .map((one) => Math.sqrt(one.baseline_high / one.baseline_low) - 1);
  const [turns, disturbed] = [d3.sum(some, (one) => one.turns), d3.sum(some, (one) => one.disturbed)];
  return card(
    "How sure",
    `${counted(decided.length)} of ${counted(some.length)} decided`,
    [
      tied.length ? `${counted(tied.length)} tied or not told apart` : "",
      halves.length ? `95 % intervals of ±${percentText(d3.median(halves))} (median)` : "",
    ]
      .filter(Boolean)
      .join("; "),
    turns
      ? `${counted(disturbed)} of ${counted(turns)} rounds were disturbed and left out`
      : "",
  );
}

function howBig(some, name) {
  const at = largest(some.filter((one) => one.results.get(name)?.memory != null));
  if (!at) return card("How big", "–", "memory was not measured");
  const baseline = at.results.get(contenderNamed(at.run.baseline));
  const told = baseline?.memory != null && baseline.contender !== name;
  const beside = told ? `; ${baseline.contender.name} ${bytesText(baseline.memory)}` : "";
  const errors = some.map((one) => one.results.get(name)).filter((one) => one?.error != null && one.allowed);
  return card(
    "How big",
    bytesText(at.results.get(name).memory),
    `at its peak, at ${placeText(at)}${beside}`,
    errors.length
      ? `right: at most ${percentText(d3.max(errors, (one) => one.error / one.allowed))} of the error allowed`
      : "",
  );
}

/** What became of everybody where nobody has a speed. */
function nobody(some) {
  const counts = d3.rollup(
    some.flatMap((one) => [...one.results.values()]),
    (few) => few.length,
    (one) => one.outcome,
  );
  const said = [...counts]
    .sort((a, b) => b[1] - a[1])
    .map(([outcome, count]) => `${outcome} ${count}`)
    .join(", ");
  return card(
    "Which",
    "Nothing was measured here",
    said ? `results: ${said}` : "no workload has an answer",
    said ? "the table below says why" : "",
  );
}

/** A row of cards for every run that the filters leave. */
function showAnswer(host, selected) {
  if (!selected.length)
    return host.replaceChildren(card("Which", "Nothing is selected", "tick more in the filters"));
  const byRun = d3.groups(selected, (one) => one.run).slice(0, 3);
  return host.replaceChildren(
    ...byRun.flatMap(([run, some]) => {
      const ranked = some.filter((one) => one.first.length);
      const title = several ? element("h2", { class: "run" }, run.title) : null;
      const name = ranked.length ? chosenOf(ranked) : null;
      const cards = name
        ? [which(ranked, name), howMuch(ranked, name), howSure(ranked, name), howBig(ranked, name)]
        : [nobody(some)];
      return [title, element("div", { class: "cards" }, cards)].filter(Boolean);
    }),
  );
}
