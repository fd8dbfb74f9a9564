// The order of documents does not matter: shown by the service, on the model itself.

import * as api from "./api.js";
import { complain, count, make, one, seconds } from "./dom.js";

const QUESTION = "What do these texts say?";

export async function shuffle(documents, question) {
  const button = one("shuffle");
  button.disabled = true;
  button.textContent = "Shuffling";
  try {
    const messages = [{ role: "user", content: question || QUESTION }];
    const found = await api.order({ messages, documents: documents.chosen() });
    documents.reorder(found.documents);
    show(found);
  } catch (error) {
    complain(error);
  } finally {
    button.textContent = "Shuffle";
    button.disabled = documents.items.size < 2;
  }
}

function show(found) {
  const control = found.control.difference;
  const place = one("order");
  const close = make("button", { type: "button", class: "quiet", onclick: () => (place.hidden = true) }, "Close");
  place.replaceChildren(
    make("h3", {}, `${count(found.documents.length, "document")}, in another order`),
    measured("As stored units, logits moved by", found.difference, control, "own"),
    measured("Read as one running text, by", control, control, "control"),
    make("p", { class: "note" },
      "The largest difference among the logits of the next token. The set was put together anew from an empty one, in the order ",
      `of the list below; ${count(found.tokens, "token")}, ${seconds(found.seconds)}.`, " ", close),
  );
  place.hidden = false;
}

function measured(what, value, most, name) {
  const line = make("p", { class: `measured ${name}` }, make("span", {}, what), make("output", {}, written(value)));
  const ruler = make("span", { class: "ruler", "aria-hidden": "true" });
  ruler.style.setProperty("--share", String(most ? value / most : 0));
  line.append(ruler);
  return line;
}

const written = (value) => (value === 0 ? "0" : value.toPrecision(3));
