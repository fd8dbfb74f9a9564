// What tokens read: shares as numbers, units that light up, and where in the model a unit was read.

import { bar, make, one, percent } from "./dom.js";

const SHOWN = 5;
// Nearly all heads look at every unit a little, so their mean differs less than what it means.
const CONTRAST = { strongest: 2, units: 4 };

const known = new WeakMap();

/** Numbers of a look's detail: layers, heads, units. */
function decoded(detail) {
  if (!known.has(detail)) known.set(detail, decode(detail));
  return known.get(detail);
}

function decode(detail) {
  const [layers, heads, units] = detail.shape;
  const bytes = Uint8Array.from(atob(detail.data), (letter) => letter.charCodeAt(0));
  const view = new DataView(bytes.buffer);
  const at = (layer, head, unit) => half(view.getUint16(2 * ((layer * heads + head) * units + unit), true));
  return { layers, heads, at };
}

/** A number of 16 bits; shares have no sign. */
function half(bits) {
  const exponent = (bits >> 10) & 31;
  const fraction = bits & 1023;
  return exponent ? 2 ** (exponent - 15) * (1 + fraction / 1024) : (2 ** -14 * fraction) / 1024;
}

/** Tokens of one piece of text, as one reading: their mean. */
export function joined(tokens) {
  const mean = (values) => values.reduce((sum, value) => sum + value, 0) / (values.length || 1);
  const each = (name) => tokens[0][name].map((_, n) => mean(tokens.map((token) => token[name][n])));
  return { units: each("units"), strongest: each("strongest"), rest: mean(tokens.map((token) => token.rest)), tokens };
}

/** By key, how strongly each unit is lit: its share against the largest, which falls off with a power of it. `by`:
 * "strongest", of the head that read it most, or "units", of all heads. */
export function lights(keys, reading, by) {
  const most = Math.max(...reading[by], 1e-9);
  return new Map(keys.map((key, n) => [key, (reading[by][n] / most) ** CONTRAST[by]]));
}

/** The panel below an answer. `titles`: of units by key; `choose`: called with the key of a unit; `again`: to show the
 * same by other shares. */
export class Panel {
  constructor(titles, choose, again) {
    this.titles = titles;
    this.choose = choose;
    this.again = again;
    this.by = "strongest";
    this.place = one("look");
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.redraw?.());
  }

  hide() {
    this.place.hidden = true;
  }

  show(what, keys, reading, chosen) {
    const ranked = keys.map((key, n) => ({ key, n, share: reading[this.by][n] })).sort((a, b) => b.share - a.share);
    const unit = ranked.find((entry) => entry.key === chosen) ?? ranked[0];
    const shown = ranked.slice(0, SHOWN);
    if (unit && !shown.includes(unit)) shown.splice(-1, 1, unit);
    const rows = shown.map((entry) => this.row(entry, entry === unit));
    const others = ranked.filter((entry) => !shown.includes(entry));
    if (this.by === "units") {
      if (others.length) rows.push(plain(`${others.length} more`, others.reduce((sum, entry) => sum + entry.share, 0)));
      rows.push(plain("no document", reading.rest));
    } else if (others.length) rows.push(make("li", { class: "other" }, `${others.length} more, less`));
    this.place.replaceChildren(
      make("div", { class: "row" },
        make("h3", {}, "What ", what === null ? "the whole answer" : make("q", {}, what), " read"), this.choice()),
      make("div", { class: "parts" }, make("ul", { class: "shares" }, rows), unit ? this.grid(reading, unit) : null),
    );
    this.place.hidden = false;
  }

  choice() {
    const made = make("select", { "aria-label": "Shares of" },
      make("option", { value: "strongest" }, "by the strongest head"),
      make("option", { value: "units" }, "by all heads, on average"));
    made.value = this.by;
    made.addEventListener("change", () => {
      this.by = made.value;
      this.again();
      this.place.querySelector("select").focus();
    });
    return made;
  }

  row({ key, share }, isChosen) {
    const act = () => {
      this.choose(key);
      this.place.querySelector('[aria-pressed="true"]')?.focus();
    };
    const label = make("span", { class: "name" }, this.titles(key));
    const number = make("span", { class: "number" }, percent(share));
    return make("li", {}, make("button", { type: "button", "aria-pressed": String(isChosen), onclick: act }, label, bar(share), number));
  }

  grid(reading, unit) {
    const title = this.titles(unit.key);
    const details = reading.tokens.filter((token) => token.detail.units.includes(unit.n));
    if (!details.length) {
      return make("p", { class: "note" }, `${title} was read too little for its layers and heads to be sent.`);
    }
    const parts = details.map((token) => ({ ...decoded(token.detail), place: token.detail.units.indexOf(unit.n) }));
    const { layers, heads } = parts[0];
    const values = (layer, head) => parts.reduce((sum, part) => sum + part.at(layer, head, part.place), 0) / parts.length;
    const cells = Array.from({ length: layers }, (_, layer) => Array.from({ length: heads }, (_, head) => values(layer, head)));
    return figure(title, cells, (redraw) => (this.redraw = redraw));
  }
}

const plain = (label, share) =>
  make("li", { class: "other" }, make("span", { class: "name" }, label), bar(share), make("span", { class: "number" }, percent(share)));

/** Layers from left to right, heads from top to bottom. */
function figure(title, cells, keep) {
  const [layers, heads] = [cells.length, cells[0].length];
  const flat = cells.flatMap((row, layer) => row.map((share, head) => ({ share, layer, head })));
  const top = flat.reduce((best, cell) => (cell.share > best.share ? cell : best));
  const where = (cell) => `layer ${cell.layer + 1}, head ${cell.head + 1}: ${percent(cell.share)}`;
  const size = Math.max(4, Math.min(14, Math.floor(420 / layers), Math.floor(240 / heads)));
  const canvas = make("canvas", {
    width: String(2 * layers * size), height: String(2 * heads * size), role: "img",
    "aria-label": `Where ${title} was read, ${layers} layers by ${heads} heads; most in ${where(top)}`,
  });
  const caption = make("figcaption", {}, make("span", {}, title), make("span", { class: "where" }, `most: ${where(top)}`));
  const draw = () => {
    const style = getComputedStyle(document.documentElement);
    const pen = canvas.getContext("2d");
    pen.clearRect(0, 0, canvas.width, canvas.height);
    for (const { share, layer, head } of flat) {
      const box = [2 * layer * size + 1, 2 * head * size + 1, 2 * size - 2, 2 * size - 2];
      pen.globalAlpha = 1;
      pen.fillStyle = style.getPropertyValue("--cell");
      pen.fillRect(...box);
      pen.globalAlpha = share ** 0.75;
      pen.fillStyle = style.getPropertyValue("--glow");
      pen.fillRect(...box);
    }
  };
  canvas.addEventListener("pointermove", (event) => {
    const box = canvas.getBoundingClientRect();
    const layer = Math.min(layers - 1, Math.floor(((event.clientX - box.left) / box.width) * layers));
    const head = Math.min(heads - 1, Math.floor(((event.clientY - box.top) / box.height) * heads));
    if (layer >= 0 && head >= 0) caption.lastChild.textContent = where({ layer, head, share: cells[layer][head] });
  });
  canvas.addEventListener("pointerleave", () => (caption.lastChild.textContent = `most: ${where(top)}`));
  keep(draw);
  draw();
  return make("figure", {}, caption, canvas, make("p", { class: "axes" }, make("span", {}, "first layer"), make("span", {}, "last layer")));
}
