// What is shown of a point when it is pointed at, touched, or reached by keyboard.
const tipBox = document.getElementById("tip");

/** Show `lines`, [label, text] each, under `title`, beside the point `at` of the window. */
function showTip(title, lines, at) {
  const list = element(
    "dl",
    {},
    lines
      .filter(([, said]) => said)
      .flatMap(([label, said]) => [element("dt", {}, label), element("dd", {}, said)]),
  );
  tipBox.replaceChildren(element("strong", {}, title), list);
  tipBox.hidden = false;
  const { width, height } = tipBox.getBoundingClientRect();
  const right = document.documentElement.clientWidth;
  const left = at.x + 16 + width > right ? at.x - 16 - width : at.x + 16;
  const below = at.y + 16 + height > innerHeight ? at.y - 16 - height : at.y + 16;
  tipBox.style.left = `${Math.max(6, Math.min(left, right - width - 6))}px`;
  tipBox.style.top = `${Math.max(6, Math.min(below, innerHeight - height - 6))}px`;
}

const hideTip = () => {
  tipBox.hidden = true;
};
addEventListener("scroll", hideTip, { passive: true });
addEventListener("keydown", (event) => {
  if (event.key === "Escape") hideTip();
});
addEventListener("pointerdown", (event) => {
  if (!event.target.closest?.(".chart")) hideTip();
});

const against = (result, prefix) => {
  const verdict = VERDICTS[result[prefix]];
  if (!verdict) return "";
  const ratio = result[`${prefix}_ratio`];
  const other = prefix === "best" ? result.workload.best.name : result.workload.run.baseline;
  const span = interval(result[`${prefix}_low`], result[`${prefix}_high`], ratioText);
  return `${ratioText(ratio)}${span} × as fast as ${other}: ${verdict}`;
};

/** Everything known of a result, line by line. */
function resultLines(one) {
  const lines = [["workload", one.workload.label]];
  if (several) lines.push(["run", one.workload.run.title]);
  if (one.time == null) return [...lines, ["outcome", one.outcome], ["reason", one.reason]];
  const best = one.workload.best;
  const processes = one.processes > 1 ? `95 % over ${one.processes} processes, ` : "";
  return [
    ...lines,
    ["time", `${secondsText(one.time)}${interval(one.time_low, one.time_high, secondsText)}`],
    ["", `${processes}median of ${plural(one.rounds, "round")}`],
    ["to the baseline", isBaseline(one) ? "" : against(one, "baseline")],
    ["to the fastest", best && one.contender !== best ? against(one, "best") : "it is the fastest here"],
    ["peak memory", one.memory == null ? "" : bytesText(one.memory)],
    ["relative error", errorText(one)],
    [
      "share of ceiling",
      [
        one.share == null ? "" : `${percentText(one.share)} of matrix multiply`,
        one.bandwidth == null ? "" : `${percentText(one.bandwidth)} of copy`,
      ]
        .filter(Boolean)
        .join(", "),
    ],
    ["kernel", one.kernel ?? "not told"],
    ["computes in", one.computes_in],
    ["settings", one.workload.run.settings[one.contender.name]],
  ];
}

function errorText(one) {
  if (one.error == null) return "";
  const part = one.allowed ? `, ${percentText(one.error / one.allowed)} of what is allowed` : "";
  return `${figures(one.error, 2)}${part}`;
}
