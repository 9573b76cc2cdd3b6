// Where and how each run was made: its machine, the settings of its contenders, and the command that repeats it.
/** A table that scrolls by itself where the screen is narrower. */
const scrolled = (label, table) =>
  element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": label }, table);

function machineTable(some) {
  const names = [...new Set(some.flatMap((run) => run.about.map(([name]) => name)))];
  const said = (run, name) => run.about.find(([one]) => one === name)?.[1] ?? "–";
  const body = names.map((name) => {
    const values = some.map((run) => said(run, name));
    const differs = new Set(values).size > 1;
    const cells = [...values, ...(several ? [differs ? "differs" : ""] : [])];
    return element(
      "tr",
      { class: differs ? "differs" : null },
      element("th", { scope: "row" }, name),
      cells.map((one) => element("td", {}, one)),
    );
  });
  const titles = some.map((run) => element("th", { scope: "col" }, run.title));
  const head = element("tr", {}, element("td"), titles, several ? element("td") : null);
  return scrolled("Machines", element("table", {}, element("thead", {}, head), element("tbody", {}, body)));
}

/** What each contender of a run ran with; those with the same share a line. */
function settingsList(run) {
  const known = contenders.filter((one) => run.settings[one.name]);
  const items = d3
    .groups(known, (one) => run.settings[one.name])
    .map(([said, some]) => {
      const names = some.map((one) => one.name).join(", ");
      return element("li", {}, element("b", {}, names), `: ${said}`);
    });
  return [several ? element("h4", {}, run.title) : null, element("ul", {}, items)];
}

function showMachines(host, { selected }, redraw) {
  if (several) showPair(host, selected, redraw);
  const some = several ? [...new Set([runs[pair.one], runs[pair.other]])] : runs;
  const commands = runs.map((run) => element("pre", { tabindex: "0" }, run.command || "not recorded"));
  host.append(
    element("h3", {}, several ? "The machines" : "The machine"),
    machineTable(some),
    element("h3", {}, "Settings"),
    element("div", { class: "settings" }, runs.flatMap(settingsList)),
    element("h3", {}, "To repeat it"),
    ...commands,
  );
}
