/** An element with attributes, listeners (`onclick`: a function) and children. Every text in it is text, never HTML. */
function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (typeof value === "function") made.addEventListener(key.slice(2), value);
    else if (value === true) made.setAttribute(key, "");
    else if (value !== false && value != null) made.setAttribute(key, value);
  }
  made.append(...children.flat().filter((one) => one != null));
  return made;
}

/** A line of smaller text. */
const note = (...said) => element("p", { class: "note" }, ...said);

let pickers = 0;

/** A select with its label; `options` are [value, text], `onpick` is called with the value. */
function picker(label, options, value, onpick) {
  const made = options.map(([one, text]) =>
    element("option", { value: one, selected: String(one) === String(value) }, text),
  );
  const id = `picker-${(pickers += 1)}`;
  return element(
    "div",
    { class: "picker" },
    element("label", { for: id }, label),
    element("select", { id, onchange: (event) => onpick(event.target.value) }, made),
  );
}

/** A box to tick, beside its text. */
function tick(text, checked, onpick) {
  const box = element("input", {
    type: "checkbox",
    checked,
    onchange: (event) => onpick(event.target.checked),
  });
  return element("label", { class: "picker" }, box, element("span", {}, text));
}

const DARK = matchMedia("(prefers-color-scheme: dark)");

/** A colour of the figures, which reads on white; on dark ground one of its hue that reads there, in the same order. */
function shade(colour) {
  if (!DARK.matches) return colour;
  const { h, c, l } = d3.hcl(colour);
  return c < 5 ? d3.hcl(0, 0, 105 - l).formatHex() : d3.hcl(h, c * 0.85, 52 + 0.4 * l).formatHex();
}

/** Black or white, whichever is easier to read on `colour`. */
const inkOn = (colour) => (d3.lab(colour).l > 58 ? "#111" : "#fff");

/** A regular polygon with its first corner at `turn` degrees, as a symbol of d3. */
const regular = (corners, turn) => ({
  draw(context, size) {
    const radius = Math.sqrt((2 * size) / (corners * Math.sin((2 * Math.PI) / corners)));
    for (let corner = 0; corner < corners; corner += 1) {
      const angle = (turn * Math.PI) / 180 + (2 * Math.PI * corner) / corners;
      context[corner ? "lineTo" : "moveTo"](radius * Math.cos(angle), radius * Math.sin(angle));
    }
    context.closePath();
  },
});

const SYMBOLS = {
  circle: d3.symbolCircle,
  square: d3.symbolSquare,
  diamond: d3.symbolDiamond,
  up: regular(3, -90),
  down: regular(3, 90),
  plus: d3.symbolCross,
  times: d3.symbolTimes,
  left: regular(3, 180),
  right: regular(3, 0),
  hexagon: regular(6, 0),
};

/** A contender's mark, as the figures draw it. */
function swatch(contender) {
  const svg = d3
    .create("svg")
    .attr("class", "swatch")
    .attr("viewBox", "-8 -8 16 16")
    .attr("aria-hidden", "true");
  svg
    .append("path")
    .attr("d", d3.symbol(SYMBOLS[contender.symbol], 70)())
    .attr("fill", shade(contender.colour))
    .attr("stroke", shade(contender.colour));
  return svg.node();
}

const counted = (count) => count.toLocaleString("en-US");
const plural = (count, noun) => `${counted(count)} ${noun}${count === 1 ? "" : "s"}`;
