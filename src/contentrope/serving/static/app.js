// The page: documents on the left, questions on the right, and between them what was read.

import * as api from "./api.js";
import { Chat } from "./chat.js";
import { calm, complain, make, one } from "./dom.js";
import { Documents } from "./documents.js";
import { Panel, lights } from "./look.js";
import { shuffle } from "./order.js";
import { QUESTIONS, SAMPLES } from "./samples.js";

const AGAIN = 1500; // milliseconds, while the service loads its model

let model = "";
let shown = null;
let unit = null;

const documents = new Documents({ changed: () => offer(), chose: (key) => choose(key) });
const panel = new Panel((key) => documents.title(key), (key) => choose(key), () => shown && show(shown.turn, shown.place));
const chat = new Chat({ model: () => model, chosen: () => documents.chosen(), show });

/** What a token of an answer read, or all of it (`place` null); nothing without a turn. */
function show(turn, place = null) {
  shown?.turn.mark(null);
  if (!turn || !turn.pieces.length) {
    shown = null;
    panel.hide();
    documents.light(new Map());
    return;
  }
  shown = { turn, place };
  const piece = turn.pieces[place];
  const reading = piece?.reading ?? turn.whole;
  if (!turn.units.includes(unit)) unit = null;
  turn.mark(place);
  documents.light(lights(turn.units, reading, panel.by), unit);
  panel.show(piece ? piece.text.trim() || "↵" : null, turn.units, reading, unit);
}

/** A unit, whose readers light up; chosen again, none is. */
function choose(key) {
  unit = unit === key ? null : key;
  const turn = shown?.turn ?? chat.last;
  if (!turn?.pieces.length) return;
  if (!turn.units.includes(unit)) unit = null;
  turn.shade(unit);
  show(turn, shown?.place ?? null);
}

/** Questions to begin with, where the examples are. */
function offer() {
  if (chat.turns.length || !documents.items.size) return;
  const named = new Set([...documents.items.values()].map((item) => item.title));
  const isExample = SAMPLES.every(([name]) => named.has(name));
  const asks = isExample ? QUESTIONS : [];
  one("turns").replaceChildren(make("div", { class: "begin" },
    make("p", {}, "Ask a question: it is read behind the stored documents, which are not read again. Then point at a word of the answer to see what it read."),
    asks.map((text) => make("button", { type: "button", class: "quiet", onclick: () => begin(text) }, text))));
}

function begin(text) {
  one("question").value = text;
  one("ask").requestSubmit();
}

async function open() {
  try {
    model = await api.model();
    await documents.load();
    one("model").textContent = model;
    one("key").hidden = true;
    one("work").hidden = false;
    calm();
  } catch (error) {
    one("model").textContent = error.status === 401 ? "locked" : "not connected";
    if (error.status === 503) setTimeout(open, AGAIN);
    if (error.status !== 401 || sessionStorage.length) complain(error);
  }
}

document.addEventListener("key-needed", () => {
  one("key").hidden = false;
  one("work").hidden = true;
  one("key-text").focus();
});
one("key").addEventListener("submit", (event) => {
  event.preventDefault();
  api.useKey(one("key-text").value.trim());
  one("key-text").value = "";
  open();
});
one("alert").querySelector("button").addEventListener("click", calm);
one("shuffle").addEventListener("click", () => shuffle(documents, chat.question));
one("samples").addEventListener("click", async (event) => {
  event.target.disabled = true;
  for (const [name, text] of SAMPLES) if (!(await documents.add({ name, text }))) break;
  one("adding").open = false;
  event.target.disabled = false;
});
one("clear").addEventListener("click", offer);
one("ask").addEventListener("submit", () => one("turns").querySelector(".begin")?.remove(), { capture: true });
open();
