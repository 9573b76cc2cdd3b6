// What is selected: values of every field, and contenders. An empty choice shows nothing, and the page says so.
const chosen = new Map(fields.map((field) => [field.name, new Set(field.values.keys())]));
const shown = new Set(contenders.filter((one) => one.measured));
if (!shown.size) contenders.forEach((one) => shown.add(one));

const selectedWorkloads = () =>
  workloads.filter((one) => fields.every((field) => chosen.get(field.name).has(one.value[field.name])));

/** Results that the filters leave, of workloads and contenders. */
const selectedResults = (from = selectedWorkloads()) =>
  from.flatMap((one) => [...one.results.values()].filter((result) => shown.has(result.contender)));

function chip(label, checked, onpick, mark = null) {
  const box = element("input", { type: "checkbox", checked, onchange: () => onpick(box.checked) });
  return element("label", { class: "chip" }, box, mark, element("span", {}, label));
}

/** More values than this are ticked, and unticked, by a button too. */
const MANY_VALUES = 8;

/** Two buttons that call `all` with true and with false. */
const allOrNone = (all) =>
  element(
    "div",
    { class: "row" },
    element("button", { type: "button", onclick: () => all(true) }, "all"),
    element("button", { type: "button", onclick: () => all(false) }, "none"),
  );

/** One field's values, or its only value as text. */
function fieldControl(field, changed) {
  const legend = element("legend", {}, field.name === "keys" ? "length n" : field.label);
  const set = chosen.get(field.name);
  const chips = field.values.map((label, index) =>
    chip(label, set.has(index), (on) => {
      on ? set.add(index) : set.delete(index);
      changed();
    }),
  );
  const all = (on) => {
    chips.forEach((one, index) => {
      one.firstChild.checked = on;
      on ? set.add(index) : set.delete(index);
    });
    changed();
  };
  const inside = chips.length === 1 ? element("span", { class: "only" }, field.values[0]) : chips;
  const buttons = chips.length > MANY_VALUES ? allOrNone(all) : null;
  return element("fieldset", { "data-field": field.name }, legend, buttons, inside);
}

function contenderControl(changed) {
  const boxes = new Map();
  const made = (one) => {
    const label = chip(
      one.name,
      shown.has(one),
      (on) => {
        on ? shown.add(one) : shown.delete(one);
        changed();
      },
      swatch(one),
    );
    boxes.set(one, label.firstChild);
    return label;
  };
  const all = (on) => {
    for (const [one, box] of boxes)
      if (one.measured || !on) {
        box.checked = on;
        on ? shown.add(one) : shown.delete(one);
      }
    changed();
  };
  const measured = contenders.filter((one) => one.measured);
  const others = contenders.filter((one) => !one.measured);
  return element(
    "fieldset",
    { "data-field": "backend" },
    element("legend", {}, "backends"),
    allOrNone(all),
    measured.map(made),
    others.length && measured.length ? element("p", { class: "note" }, "never measured here") : null,
    others.map(made),
  );
}

/** Fill the form of filters; `changed` is called after every change. */
function buildFilters(changed) {
  const form = document.getElementById("controls");
  form.addEventListener("submit", (event) => event.preventDefault());
  form.replaceChildren(
    ...fields.filter((one) => one.name === "run").map((one) => fieldControl(one, changed)),
    contenderControl(changed),
    ...fields.filter((one) => one.name !== "run").map((one) => fieldControl(one, changed)),
  );
}
