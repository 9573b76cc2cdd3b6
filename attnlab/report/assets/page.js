// The page: its head, its tabs, and what is drawn anew when something changes.
const VIEWS = {
  winners: showWinners,
  figures: showFigures,
  rounds: showRounds,
  runs: showRuns,
  table: showTable,
};

/** Where and when each run was made, what it says, and what to know before one trusts it; folded for many runs. */
function showHead() {
  for (const { title, machine, shared, started, answer, warnings } of runs) {
    const said = [plural(warnings.length, "warning"), cut(warnings[0] ?? "", 100)].join(": ");
    const told = [
      note(joined(title, machine, shared, started)),
      element("section", { class: "answer" }, element("p", {}, answer[0]), list(answer.slice(1))),
      warnings.length
        ? element("details", { class: "notice" }, element("summary", {}, said), list(warnings))
        : "",
    ];
    const line = element("summary", {}, joined(title, answer[0]));
    part("head").append(...(runs.length > 2 ? [element("details", {}, line, told)] : told));
  }
}

/** Draw what is selected; the place of the page and of the keyboard stays. */
function redraw() {
  const host = part("view");
  if (host.clientWidth < 100) return; // not laid out, as while a page is printed
  const selected = selectedWorkloads();
  part("selected").textContent = `${counted(selected.length)} of ${plural(workloads.length, "workload")}`;
  const controls = () => [...host.querySelectorAll("select, input, button, .chart")];
  const focused = controls().indexOf(document.activeElement);
  host.style.minHeight = `${host.offsetHeight}px`; // so that nothing below it moves while it is empty
  host.replaceChildren();
  const nothing = workloads.length
    ? "Nothing is selected: tick more in the filters."
    : "This run has no workload.";
  if (selected.length) VIEWS[state.view](host, selected);
  else host.append(note(nothing));
  host.style.minHeight = "";
  controls()[focused]?.focus({ preventScroll: true });
  state.width = innerWidth;
}

showHead();
showFilters();
part("tabs").addEventListener("change", (event) => choose({ view: event.target.value }));
part("filters").open = matchMedia("(min-width: 60rem)").matches;
part("page").hidden = false;
redraw();
DARK.addEventListener("change", () => redraw(showFilters()));
addEventListener("resize", () => innerWidth === state.width || redraw());
document.documentElement.dataset.ready = String(Math.round(performance.now()));
