// The page: its head, its tabs, and what is drawn anew when something changes.
const VIEWS = [
  { name: "winners", title: "Winners", show: showWinners },
  { name: "figures", title: "Figures", show: showFigures },
  { name: "rounds", title: "Rounds", show: showRounds },
  { name: "runs", title: several ? "Side by side" : "Machine", show: showMachines },
  { name: "table", title: "Table", show: showTable },
];
const view = { name: "winners", workload: null };
const part = (id) => document.getElementById(id);

function showHead() {
  part("about").textContent = runs
    .map((run) =>
      [
        several ? run.title : run.name,
        run.machine,
        run.shared,
        run.started.replace("T", " ").replace(/(\.\d+)?\+00:00/, " UTC"),
      ]
        .filter(Boolean)
        .join(" · "),
    )
    .join("\n");
  const warnings = runs.flatMap((run) => run.warnings.map((one) => (several ? `${run.title}: ${one}` : one)));
  part("warnings").replaceChildren(...(warnings.length ? [warningBox(warnings)] : []));
  part("footer").replaceChildren(
    note(
      "Brackets hold 95 % intervals; the 5 % are shared among the comparisons of one workload. Verdicts, intervals and",
      " first places were computed by attnlab; this page only selects and draws. Drawn with Observable Plot and D3 (ISC",
      " licence).",
    ),
  );
}

/** All warnings behind one line, which shows the first, so that the answer stays on the first screen. */
function warningBox(warnings) {
  return element(
    "details",
    { class: "notice" },
    element(
      "summary",
      {},
      element("b", {}, plural(warnings.length, "warning")),
      element("span", {}, warnings[0]),
    ),
    element(
      "ul",
      {},
      warnings.map((one) => element("li", {}, one)),
    ),
  );
}

function buildTabs() {
  const tabs = VIEWS.map((one) =>
    element(
      "button",
      {
        type: "button",
        role: "tab",
        id: `tab-${one.name}`,
        "aria-controls": "view",
        onclick: () => {
          view.name = one.name;
          redraw();
        },
      },
      one.title,
    ),
  );
  part("tabs").replaceChildren(...tabs);
  part("tabs").addEventListener("keydown", (event) => {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!by) return;
    event.preventDefault();
    const place = (tabs.indexOf(document.activeElement) + by + tabs.length) % tabs.length;
    tabs[place].focus();
    tabs[place].click();
  });
}

/** Draw what is selected; the place of the page and of the keyboard stays. */
function redraw() {
  if (!part("view").clientWidth) return; // not laid out, as while a page is printed
  hideTip();
  const selected = selectedWorkloads();
  showAnswer(part("answer"), selected);
  for (const tab of part("tabs").children) {
    const active = tab.id === `tab-${view.name}`;
    tab.setAttribute("aria-selected", active);
    tab.tabIndex = active ? 0 : -1;
  }
  const measured = contenders.filter((one) => one.measured);
  const left = measured.filter((one) => shown.has(one)).length;
  part("selected").textContent =
    `${counted(selected.length)} of ${plural(workloads.length, "workload")}, ${left} of ${plural(measured.length, "backend")}`;
  const host = part("view");
  const { innerWidth: wide } = window;
  const focused = [...host.querySelectorAll("select, input, button, .chart")].indexOf(document.activeElement);
  host.style.minHeight = `${host.offsetHeight}px`; // so that nothing below it moves while it is empty
  host.replaceChildren();
  host.setAttribute("aria-labelledby", `tab-${view.name}`);
  if (selected.length) VIEWS.find((one) => one.name === view.name).show(host, { selected }, redraw);
  else
    host.append(
      element(
        "p",
        {},
        workloads.length ? "Nothing is selected: tick more in the filters." : "This run has no workload.",
      ),
    );
  host.style.minHeight = "";
  if (focused >= 0)
    host.querySelectorAll("select, input, button, .chart")[focused]?.focus({ preventScroll: true });
  view.width = wide;
}

function start() {
  showHead();
  buildFilters(redraw);
  buildTabs();
  part("filters").open = matchMedia("(min-width: 60rem)").matches;
  part("page").hidden = false;
  redraw();
  DARK.addEventListener("change", () => {
    buildFilters(redraw);
    redraw();
  });
  addEventListener("resize", () => {
    if (innerWidth !== view.width) redraw();
  });
  document.documentElement.dataset.ready = String(Math.round(performance.now()));
}

start();
