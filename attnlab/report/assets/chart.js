// One chart: drawn by Observable Plot, read by pointer, touch and keyboard; and panels of charts side by side.
const MOST_PANELS = 12;

/**
 * Draw into `host` with these `options` of Plot; `label` says what is shown. Each of `points`, placed by the channels
 * `at`, tells of itself in the lines that `tip` makes of it, where it is pointed at and where the arrow keys come to it;
 * a click and Enter call `onpick`. `ring` is the mark around it.
 */
function draw(host, label, { points, at, tip, onpick, ring = Plot.dot }, { marks, ...options }) {
  const title = (one) => tip(one).filter(Boolean).join("\n");
  const said = `${label}; arrow keys go from one to the next${onpick ? ", Enter picks one" : ""}`;
  const frame = element("div", { class: "chart", tabindex: "0", role: "group", "aria-label": said });
  let place = -1;
  const show = (next) => {
    place = next;
    const [some, pointed] = place < 0 ? [points, Plot.pointer] : [[points[place]], (channels) => channels];
    const around = pointed({ ...at, r: 7, fill: "none", stroke: "currentColor", strokeWidth: 2 });
    const told = Plot.tip(some, pointed({ ...at, title, lineWidth: 26 }));
    const svg = Plot.plot({
      className: "plot",
      marginLeft: 64,
      marginBottom: 40,
      ...options,
      marks: [...marks, ring(some, around), told],
    });
    svg.querySelector("style")?.remove(); // its rules stand in page.css, as the page's policy asks
    svg.setAttribute("aria-hidden", "true");
    if (onpick) svg.addEventListener("click", () => svg.value && onpick(svg.value));
    frame.replaceChildren(svg);
    part("tip").textContent = place < 0 ? "" : title(points[place]);
  };
  frame.addEventListener("keydown", (event) => {
    const by = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (event.key === "Escape") show(-1);
    else if (event.key === "Enter" && points[place]) onpick?.(points[place]);
    else if (by && points.length) {
      event.preventDefault();
      show(place < 0 ? 0 : (place + by + points.length) % points.length);
    }
  });
  frame.addEventListener("blur", () => show(-1));
  show(-1);
  host.append(frame);
}

/** A panel for each of `items`, side by side where each has `least` pixels; `show` fills one of that width. */
function panels(host, items, least, show) {
  const few = items.slice(0, MOST_PANELS);
  const left = `The first ${few.length} of ${items.length} panels: choose others by the filters.`;
  if (few.length < items.length) host.append(note(left));
  const columns = Math.max(1, Math.min(few.length, Math.floor(host.clientWidth / least)));
  const width = Math.floor((host.clientWidth - 16 * (columns - 1)) / columns);
  const made = few.map(() => element("section"));
  host.append(element("div", { class: "panels" }, made));
  few.forEach((one, at) => show(made[at], one, width));
}

const ownerOf = (one) => one.contender;
/** The colour of each point's contender, for Plot. */
const painted = (of = ownerOf) => ({ value: (one) => paint(of(one)), scale: null });

/** Points in the colour and shape of their contenders. */
function dots(points, channels, of = ownerOf) {
  const symbol = { value: (one) => shapeOf(of(one)), scale: null };
  const look = { r: 3.2, symbol, rotate: (one) => turnOf(of(one)), fill: painted(of), stroke: painted(of) };
  return Plot.dot(points, { ...look, ...channels });
}

/** Intervals along an axis, x or y, over its domain `within`: an arrow stands where one goes on beyond that. */
function intervals(points, axis, [low, high], across, within, of = ownerOf) {
  const [rule, other, arrows] = axis === "x" ? [Plot.ruleY, "y", "◀▶"] : [Plot.ruleX, "x", "▼▲"];
  const [known, look] = [points.filter((one) => low(one) != null && high(one) != null), painted(of)];
  const out = [known.filter((one) => low(one) < within[0]), known.filter((one) => high(one) > within[1])];
  const ends = { [other]: across, [`${axis}1`]: low, [`${axis}2`]: high };
  return [
    rule(known, { ...ends, stroke: look, strokeWidth: 1.5, clip: true }),
    ...out.map((some, end) =>
      Plot.text(some, { [other]: across, [axis]: () => within[end], text: () => arrows[end], fill: look }),
    ),
  ];
}

/** A scale over `values` with some room, its ticks written by `text`; few `ticks` of a logarithmic one are 1, 2 and 5. */
function scaleOver(values, text, log, { label, ticks, base = 10 }) {
  const [low, high] = d3.extent(values);
  const room = low === high ? 2 : (high / low) ** 0.06;
  const domain = log ? [low / room, high * room] : [Math.min(0, low), high * 1.06 || 1];
  const tickFormat = (value) => short(text(value));
  const round = d3.range(-12, 13).flatMap((power) => [1, 2, 5].map((one) => one * 10 ** power));
  const few = log && ticks < 5 ? round.filter((one) => one >= domain[0] && one <= domain[1]) : ticks;
  return { type: log ? "log" : "linear", domain, base, label, ticks: few, tickFormat, grid: true };
}

/** A name of at most `most` letters. */
const cut = (name, most = 20) => (name.length > most ? `${name.slice(0, most - 1)}…` : name);
