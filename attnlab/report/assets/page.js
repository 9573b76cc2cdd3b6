// The page: its head, its tabs, and what is drawn anew when something changes.
const VIEWS = {
  winners: ["Winners", showWinners],
  figures: ["Figures", showFigures],
  rounds: ["Rounds", showRounds],
  runs: [several ? "Side by side" : "Machine", showRuns],
  table: ["Table", showTable],
};

/** Where and when each run was made, what it says, and what to know before one trusts it. */
function showHead() {
  for (const { title, machine, shared, started, answer, warnings } of runs) {
    const said = element("summary", {}, `${plural(warnings.length, "warning")}: ${warnings[0]}`);
    part("head").append(
      note(joined(title, machine, shared, started)),
      element("section", { class: "answer" }, element("p", {}, answer[0]), list(answer.slice(1))),
      warnings.length ? element("details", { class: "notice" }, said, list(warnings)) : "",
    );
  }
}

function showTabs() {
  const tabs = Object.entries(VIEWS).map(([view, [title]]) =>
    button(title, () => choose({ view }), { role: "tab", id: `tab-${view}`, "aria-controls": "view" }),
  );
  part("tabs").replaceChildren(...tabs);
  part("tabs").addEventListener("keydown", (event) => {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    const next = tabs[(tabs.indexOf(document.activeElement) + by + tabs.length) % tabs.length];
    next?.focus();
    next?.click();
  });
}

/** Draw what is selected; the place of the page and of the keyboard stays. */
function redraw() {
  const host = part("view");
  if (!host.clientWidth) return; // not laid out, as while a page is printed
  const selected = selectedWorkloads();
  for (const tab of part("tabs").children) {
    const active = tab.id === `tab-${state.view}`;
    tab.setAttribute("aria-selected", active);
    tab.tabIndex = active ? 0 : -1;
  }
  part("selected").textContent = `${counted(selected.length)} of ${plural(workloads.length, "workload")}`;
  const controls = () => [...host.querySelectorAll("select, input, button, .chart")];
  const focused = controls().indexOf(document.activeElement);
  host.style.minHeight = `${host.offsetHeight}px`; // so that nothing below it moves while it is empty
  host.replaceChildren();
  host.setAttribute("aria-labelledby", `tab-${state.view}`);
  const nothing = workloads.length
    ? "Nothing is selected: tick more in the filters."
    : "This run has no workload.";
  if (selected.length) VIEWS[state.view][1](host, selected);
  else host.append(note(nothing));
  host.style.minHeight = "";
  controls()[focused]?.focus({ preventScroll: true });
  state.width = innerWidth;
}

showHead();
showFilters();
showTabs();
part("filters").open = matchMedia("(min-width: 60rem)").matches;
part("page").hidden = false;
redraw();
DARK.addEventListener("change", () => redraw(showFilters()));
addEventListener("resize", () => innerWidth === state.width || redraw());
document.documentElement.dataset.ready = String(Math.round(performance.now()));
