// What the views are made of: elements, choices, the marks of contenders, and filters.
/** What is chosen: the view, what it shows, and how its table is sorted. */
const state = { view: "winners", workload: null, than: "baseline", scale: "own", one: 0, other: 1 };

/** Change what is chosen, and draw it. */
const choose = (changes) => redraw(Object.assign(state, changes));

/** An element with attributes, listeners (`onclick`: a function) and children. Every text in it is text, never HTML. */
function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (typeof value === "function") made.addEventListener(key.slice(2), value);
    else if (value != null && value !== false) made.setAttribute(key, value);
  }
  made.append(...children.flat(2).filter((one) => one != null && one !== ""));
  return made;
}

const note = (...said) => element("p", { class: "note" }, ...said);
const row = (...parts) => element("div", { class: "row" }, ...parts);
const heading = (...said) => (said.some(Boolean) ? element("h2", {}, ...said) : "");
const list = (items) => element("ul", {}, ...items.map((one) => element("li", {}, one)));
const button = (text, onclick, more = {}) => element("button", { type: "button", onclick, ...more }, text);

/** A select with its label, whose value stands in `state[name]`; `options` are [value, text]. */
function picker(label, options, name) {
  const made = element("select", { onchange: () => choose({ [name]: made.value }) });
  made.append(
    ...options.map(([value, text]) => new Option(text, value, false, String(state[name]) === String(value))),
  );
  return element("label", {}, label, made);
}

/** A box to tick, beside its text. */
function tick(text, checked, onpick, mark = null) {
  const box = element("input", { type: "checkbox", onchange: () => onpick(box.checked) });
  box.checked = checked;
  return element("label", { class: "chip" }, box, mark, element("span", {}, text));
}

const DARK = matchMedia("(prefers-color-scheme: dark)");

/** A contender's colour in the report's figures, which reads on white; on dark ground one of its hue that reads there. */
function paint({ colour }) {
  if (!DARK.matches) return colour;
  const { h, c, l } = d3.hcl(colour);
  return c < 5 ? d3.hcl(0, 0, 105 - l).formatHex() : d3.hcl(h, c * 0.85, 52 + 0.4 * l).formatHex();
}

/** The ground that the page has, `part` of a colour on it, and the ink that reads on that at a contrast of 4.5. */
const paper = () => (DARK.matches ? "#121212" : "#ffffff");
const mixed = (colour, part) => d3.color(d3.interpolateRgb(paper(), colour)(part)).formatHex();
const linear = (part) => (part <= 10 ? part / 3294.6 : ((part / 255 + 0.055) / 1.055) ** 2.4);
function inkOn(ground) {
  const { r, g, b } = d3.rgb(ground);
  return 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b) > 0.183 ? "#000000" : "#ffffff";
}

/** By the letters that Matplotlib has for them in the report's figures; all others are triangles, turned by degrees. */
const SHAPES = { o: "Circle", s: "Square", D: "Diamond", P: "Cross", X: "Times", h: "Star" };
const shapeOf = ({ symbol }) => d3[`symbol${SHAPES[symbol] ?? "Triangle"}`];
const turnOf = ({ symbol }) => ({ ">": 90, v: 180, "<": 270 })[symbol] ?? 0;

/** A contender's mark, as the figures draw it. */
function swatch(contender) {
  const [svg, path, colour] = [d3.create("svg"), d3.create("svg:path"), paint(contender)];
  svg.attr("class", "swatch").attr("viewBox", "-8 -8 16 16").attr("aria-hidden", "true");
  path.attr("d", d3.symbol(shapeOf(contender), 70)()).attr("transform", `rotate(${turnOf(contender)})`);
  path.attr("fill", colour).attr("stroke", colour);
  svg.node().append(path.node());
  return svg.node();
}

/** The marks of the contenders of `some` results, and their names. */
function legend(some) {
  const named = [...new Set(some.map((one) => one.contender))];
  return row(...named.map((one) => element("span", { class: "chip note" }, swatch(one), one.name)));
}

/** The values of each field, by their places, and the contenders that are ticked. */
const chosen = new Map(fields.map((field) => [field.name, new Set(field.values.keys())]));
const shown = new Set([...contenders.values()].filter((one) => one.measured));
if (!shown.size) contenders.forEach((one) => shown.add(one));
const selectedWorkloads = () =>
  workloads.filter((one) => fields.every(({ name }) => chosen.get(name).has(one.value[name])));
/** Results that the filters leave. */
const resultsOf = (some) => some.flatMap((one) => one.results).filter((one) => shown.has(one.contender));

/** More values than this are ticked, and unticked, by a button too. */
const MANY_VALUES = 8;

/** Boxes that put `items`, [thing, text, mark, why] each, into `set` and take them away. */
function filter(name, label, items, set) {
  if (!items.length) return "";
  const boxes = items.map(([thing, text, mark]) => tick(text, set.has(thing), () => changed(), mark));
  const changed = (on) => {
    items.forEach(([thing], at) => {
      const box = boxes[at].firstChild;
      box.checked = on ?? box.checked;
      set[box.checked ? "add" : "delete"](thing);
    });
    redraw();
  };
  const buttons =
    items.length > MANY_VALUES &&
    row(
      button("all", () => changed(true)),
      button("none", () => changed(false)),
    );
  const told = boxes.map((box, at) => [box, items[at][3] ? note(items[at][3]) : ""]);
  const inside = items.length > 1 || items[0][2] ? told : items[0][1];
  return element("fieldset", { "data-field": name }, element("legend", {}, label), buttons || "", inside);
}

function showFilters() {
  const named = (measured) => [...contenders.values()].filter((one) => Boolean(one.measured) === measured);
  const why = (one) => results.find(({ contender, reason }) => contender === one && reason)?.reason;
  const marked = (some) => some.map((one) => [one, one.name, swatch(one), !one.measured && why(one)]);
  const never = named(false);
  const folded = `${plural(never.length, "backend")} ${never.length === 1 ? "was" : "were"} not measured here: why`;
  part("controls").replaceChildren(
    ...fields.map((one) => filter(one.name, one.label, [...one.values.entries()], chosen.get(one.name))),
    filter("backend", "backends", marked(named(true)), shown),
    never.length
      ? element(
          "details",
          {},
          element("summary", {}, folded),
          filter("never", "ticked: in the table", marked(never), shown),
        )
      : "",
  );
}
