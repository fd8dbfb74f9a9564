// Questions and answers. The tokens of an answer are buttons: one is in the tab order, arrow keys go to the others.

import * as api from "./api.js";
import { announce, calm, complain, light, make, one, percent } from "./dom.js";
import { joined } from "./look.js";

export class Chat {
  /** `chosen` gives the documents a question reads; `show` is called with an answer and the place of a token in it. */
  constructor({ model, chosen, show }) {
    this.model = model;
    this.chosen = chosen;
    this.show = show;
    this.turns = [];
    this.place = one("turns");
    one("ask").addEventListener("submit", (event) => {
      event.preventDefault();
      const text = one("question").value.trim();
      if (text && !this.running) this.ask(text, this.history());
    });
    one("question").addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      one("ask").requestSubmit();
    });
    one("stop").addEventListener("click", () => this.running?.abort());
    one("clear").addEventListener("click", () => this.clear());
  }

  get last() {
    return this.turns.at(-1);
  }

  get question() {
    return this.last?.question ?? one("question").value.trim();
  }

  history() {
    return this.turns
      .filter((turn) => turn.isDone && !turn.isOld)
      .flatMap((turn) => [{ role: "user", content: turn.question }, { role: "assistant", content: turn.text }]);
  }

  clear() {
    this.running?.abort();
    this.turns = [];
    this.place.replaceChildren();
    this.show(null);
    one("clear").hidden = true;
    one("question").focus();
  }

  /** Ask a question once more, of the documents as they are now. */
  again(turn) {
    if (this.running) return;
    turn.isOld = true;
    turn.element.classList.add("old");
    turn.element.querySelector(".again")?.remove();
    this.ask(turn.question, turn.before);
  }

  async ask(question, before) {
    calm();
    const turn = new Turn(question, before, (place) => this.show(turn, place));
    this.turns.push(turn);
    this.place.append(turn.element);
    this.show(null);
    one("question").value = "";
    one("clear").hidden = false;
    this.running = new AbortController();
    this.busy(true);
    const began = performance.now();
    try {
      const given = {
        model: this.model(),
        messages: [...before, { role: "user", content: question }],
        documents: this.chosen(),
        temperature: Number(one("temperature").value),
        max_tokens: Number(one("tokens").value),
        look: one("looking").checked,
      };
      for await (const choice of api.answer(given, this.running.signal)) {
        turn.take(choice);
        this.place.scrollTop = this.place.scrollHeight;
        if (turn.pieces.length) this.show(turn, turn.pieces.length - 1);
      }
      turn.isDone = true;
      turn.end(`${((performance.now() - began) / 1000).toFixed(1)} s`);
      announce(`The answer: ${turn.text}`);
    } catch (error) {
      turn.end(error.name === "AbortError" ? "stopped" : "not finished");
      complain(error);
    } finally {
      this.running = null;
      this.busy(false);
    }
    turn.offer(() => this.again(turn));
    if (turn.pieces.length && turn === this.last) this.show(turn, null);
  }

  busy(isBusy) {
    one("stop").hidden = !isBusy;
    one("send").disabled = isBusy;
    document.body.classList.toggle("busy", isBusy);
  }
}

class Turn {
  constructor(question, before, show) {
    Object.assign(this, { question, before, show, text: "", units: [], pieces: [], isDone: false, isOld: false });
    this.answer = make("div", { class: "answer waiting", role: "group", "aria-label": "Answer; arrow keys go from token to token" });
    this.tail = make("span", {});
    this.answer.append(this.tail);
    this.about = make("p", { class: "about note" });
    this.element = make("article", { class: "turn" }, make("p", { class: "question" }, question), this.answer, this.about);
    this.answer.addEventListener("keydown", (event) => this.move(event));
    this.answer.addEventListener("pointerleave", () => show(this.chosen ?? null));
  }

  take(choice) {
    const { delta, look } = choice;
    this.answer.classList.remove("waiting");
    if (look?.units) this.units = look.units;
    for (const token of look?.tokens ?? []) this.add(token);
    this.text += delta.content ?? "";
    // Text without a reading: all of it when nobody looks, the last of it while a token is held back.
    const told = this.pieces.reduce((sum, piece) => sum + piece.text.length, 0);
    this.tail.textContent = this.text.slice(told);
    if (choice.finish_reason === "length") this.isCut = true;
  }

  add(token) {
    const last = this.pieces.at(-1);
    if (last && last.start === token.start) {
      // Another token of the same characters.
      last.tokens.push(token);
      last.reading = joined(last.tokens);
      return;
    }
    const place = this.pieces.length;
    const element = make("span", {
      class: "token", role: "button", tabindex: place ? "-1" : "0", "aria-pressed": "false",
      onpointerenter: () => this.show(place), onfocus: () => this.focus(place), onclick: () => this.choose(place),
    }, token.text);
    this.pieces.push({ start: token.start, text: token.text, tokens: [token], reading: joined([token]), element });
    this.answer.insertBefore(element, this.tail);
  }

  get whole() {
    return joined(this.pieces.flatMap((piece) => piece.tokens));
  }

  focus(place) {
    this.pieces.forEach((piece, n) => piece.element.setAttribute("tabindex", n === place ? "0" : "-1"));
    this.show(place);
  }

  choose(place) {
    this.chosen = this.chosen === place ? undefined : place;
    this.pieces.forEach((piece, n) => piece.element.setAttribute("aria-pressed", String(n === this.chosen)));
    this.show(this.chosen ?? null);
  }

  move(event) {
    const here = this.pieces.findIndex((piece) => piece.element === document.activeElement);
    if (here < 0) return;
    const to = { ArrowRight: here + 1, ArrowLeft: here - 1, Home: 0, End: this.pieces.length - 1 }[event.key];
    if (event.key === "Enter" || event.key === " ") this.choose(here);
    else if (to === undefined) return;
    else this.pieces[Math.max(0, Math.min(this.pieces.length - 1, to))].element.focus();
    event.preventDefault();
  }

  /** Light the tokens that read a unit; null: none. */
  shade(key) {
    const number = key === null ? -1 : this.units.indexOf(key);
    const most = Math.max(...this.pieces.map((piece) => piece.reading.strongest[number] ?? 0), 1e-9);
    for (const piece of this.pieces) {
      const share = piece.reading.strongest[number];
      light(piece.element, share === undefined ? 0 : (share / most) ** 2);
      piece.element.title = share === undefined ? "" : percent(share);
    }
  }

  mark(place) {
    this.pieces.forEach((piece, n) => piece.element.classList.toggle("shown", n === place));
  }

  end(how) {
    this.answer.classList.remove("waiting");
    this.about.textContent = [how, this.isCut ? "cut at the longest answer" : ""].filter(Boolean).join(" · ");
  }

  offer(act) {
    this.about.append(" ", make("button", { type: "button", class: "quiet again", onclick: act }, "Ask again"));
  }
}
