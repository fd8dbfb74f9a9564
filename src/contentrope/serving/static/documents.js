// The list of documents: what is stored, which are read, and what an edit computed.

import * as api from "./api.js";
import { calm, complain, count, light, make, one, seconds } from "./dom.js";

const KINDS = /\.(txt|md)$/i;

export class Documents {
  /** `changed` is called when there are others than before; `chose` with the key of a unit. */
  constructor({ changed, chose }) {
    this.items = new Map();
    this.units = new Map();
    this.lit = new Map();
    this.changed = changed;
    this.chose = chose;
    this.list = one("list");
    this.watch = new IntersectionObserver((seen) => seen.forEach((entry) => entry.isIntersecting && this.read(entry.target.id)), { rootMargin: "400px" });
    one("all").addEventListener("change", (event) => this.select(event.target.checked));
    one("add").addEventListener("submit", (event) => this.submit(event));
    one("files").addEventListener("change", (event) => this.take(event.target.files).then(() => (event.target.value = "")));
    this.drops();
  }

  async load() {
    const found = await api.documents();
    this.list.replaceChildren();
    this.items.clear();
    for (const described of found) this.put(described);
    this.note();
  }

  // --- what is read ---

  /** As the service takes it. */
  chosen() {
    const chosen = [...this.items.values()].filter((item) => item.isRead).map((item) => item.id);
    return chosen.length === this.items.size ? "all" : chosen;
  }

  select(isRead) {
    for (const item of this.items.values()) item.read(isRead);
    this.note();
  }

  title(key) {
    const item = this.units.get(key);
    if (!item) return "a document that is gone";
    const place = item.described.units.indexOf(key);
    return item.described.units.length > 1 ? `${item.title}, part ${place + 1}` : item.title;
  }

  /** `strengths` by key of a unit. */
  light(strengths, chosen) {
    this.lit = strengths;
    for (const item of this.items.values()) item.light(strengths, chosen);
    for (const dot of one("map").children) light(dot, strengths.get(dot.dataset.unit) ?? 0);
  }

  // --- what is there ---

  put(described, before) {
    const item = new Item(described, this);
    const old = before?.element;
    this.items.set(item.id, item);
    if (old) old.replaceWith(item.element);
    else this.list.append(item.element);
    this.watch.observe(item.element);
    return item;
  }

  async read(element) {
    const item = this.items.get(element.slice(4));
    if (!item || item.isFilled) return;
    this.watch.unobserve(item.element);
    item.isFilled = true;
    try {
      item.fill(await api.units(item.id));
      item.light(this.lit);
    } catch (error) {
      item.isFilled = false;
      if (error.status !== 404) complain(error);
    }
  }

  note() {
    const items = [...this.items.values()];
    this.units = new Map(items.flatMap((item) => item.described.units.map((key) => [key, item])));
    const read = items.filter((item) => item.isRead);
    const tokens = read.reduce((sum, item) => sum + item.described.tokens, 0);
    one("empty").hidden = items.length > 0;
    if (!items.length) one("adding").open = true;
    one("selection").hidden = !items.length;
    one("count").textContent = items.length ? count(items.length, "document") : "";
    one("selected").textContent = `${read.length} of ${items.length}, ${count(tokens, "token")}`;
    one("all").checked = read.length === items.length;
    one("all").indeterminate = read.length > 0 && read.length < items.length;
    one("shuffle").disabled = items.length < 2;
    one("map").replaceChildren(...[...this.units].map(([key, item]) => this.dot(key, item)));
    this.changed();
  }

  dot(key, item) {
    const made = make("span", { class: item.isRead ? "dot" : "dot off", "data-unit": key, title: this.title(key), onclick: () => this.chose(key) });
    light(made, this.lit.get(key) ?? 0);
    return made;
  }

  /** Bring the list into another order, where documents glide to their places. */
  reorder(ids) {
    const moved = ids.map((id) => this.items.get(id)).filter(Boolean);
    const before = new Map(moved.map((item) => [item, item.element.getBoundingClientRect().top]));
    const others = [...this.items.values()].filter((item) => !moved.includes(item));
    this.items = new Map([...moved, ...others].map((item) => [item.id, item]));
    this.list.append(...[...this.items.values()].map((item) => item.element));
    this.note();
    if (matchMedia("(prefers-reduced-motion: reduce)").matches) return;
    for (const [item, top] of before) {
      const by = top - item.element.getBoundingClientRect().top;
      if (Math.abs(by) < 4000) item.element.animate([{ transform: `translateY(${by}px)` }, { transform: "none" }], { duration: 600, easing: "ease-in-out" });
    }
  }

  // --- changes ---

  async submit(event) {
    event.preventDefault();
    const given = { text: one("add-text").value };
    if (one("add-name").value.trim()) given.name = one("add-name").value.trim();
    if (await this.add(given)) event.target.reset();
  }

  async add(given) {
    calm();
    one("added").textContent = "reading";
    try {
      const made = await api.add(given);
      this.put(made).tell(made.computed, one("added"));
      this.note();
      return true;
    } catch (error) {
      one("added").textContent = "";
      complain(error);
      return false;
    }
  }

  async take(files) {
    for (const file of files) {
      if (!KINDS.test(file.name)) complain(new Error(`${file.name} is no .txt or .md file, and was left out.`));
      else await this.add({ text: await file.text(), name: file.name.slice(0, 200) });
    }
  }

  drops() {
    const area = document.querySelector(".documents");
    const over = (isOver) => area.classList.toggle("over", isOver);
    area.addEventListener("dragover", (event) => {
      event.preventDefault();
      over(true);
    });
    area.addEventListener("dragleave", (event) => area.contains(event.relatedTarget) || over(false));
    area.addEventListener("drop", (event) => {
      event.preventDefault();
      over(false);
      this.take([...event.dataTransfer.files]);
    });
  }

  async change(item, text) {
    calm();
    try {
      const made = await api.change(item.id, { text });
      const now = this.put(made, item);
      now.read(item.isRead);
      this.note();
      now.tell(made.computed);
      now.focus();
    } catch (error) {
      complain(error);
    }
  }

  async remove(item) {
    calm();
    try {
      const text = await api.text(item.id);
      await api.remove(item.id);
      const next = item.element.nextElementSibling ?? item.element.previousElementSibling;
      item.element.remove();
      this.items.delete(item.id);
      this.note();
      (next?.querySelector("button") ?? one("add-text")).focus();
      this.offerBack({ id: item.id, text, name: item.described.name ?? undefined, metadata: item.described.metadata });
    } catch (error) {
      complain(error);
    }
  }

  offerBack(given) {
    const back = make("button", { type: "button", class: "quiet", onclick: () => this.add(given) }, "Undo");
    one("added").replaceChildren(`${given.name ?? given.id} is removed. `, back);
  }
}

class Item {
  constructor(described, all) {
    Object.assign(this, { described, all, id: described.id, isRead: true, isFilled: false, spans: new Map() });
    this.box = make("input", { type: "checkbox", checked: true, onchange: () => { this.read(this.box.checked); all.note(); } });
    this.text = make("p", { class: "text" });
    this.told = make("p", { class: "told note", role: "status" });
    this.buttons = make("span", { class: "buttons" },
      make("button", { type: "button", class: "quiet", "aria-label": `Edit ${this.title}`, onclick: () => this.edit() }, "Edit"),
      make("button", { type: "button", class: "quiet", "aria-label": `Remove ${this.title}`, onclick: () => all.remove(this) }, "Remove"));
    const label = make("label", {}, this.box, " ", make("strong", {}, this.title), " ", make("span", { class: "note size" }, this.size));
    this.element = make("li", { id: `doc-${this.id}`, class: "document" }, make("div", { class: "row" }, label, this.buttons), this.text, this.told);
  }

  get title() {
    return this.described.name || this.described.id;
  }

  get size() {
    const { units, tokens } = this.described;
    return units.length > 1 ? `${count(tokens, "token")} in ${count(units.length, "unit")}` : count(tokens, "token");
  }

  read(isRead) {
    this.isRead = this.box.checked = isRead;
    this.element.classList.toggle("off", !isRead);
  }

  fill(units) {
    for (const { key, text } of units) {
      const span = make("span", { class: "unit", onclick: () => this.all.chose(key) }, text);
      this.spans.set(span, key);
      this.text.append(span);
    }
  }

  light(strengths, chosen) {
    let most = 0;
    for (const [span, key] of this.spans) {
      light(span, strengths.get(key) ?? 0);
      span.classList.toggle("chosen", key === chosen);
    }
    for (const key of this.described.units) most = Math.max(most, strengths.get(key) ?? 0);
    light(this.element, most);
  }

  edit() {
    const area = make("textarea", { rows: "4", "aria-label": `Text of ${this.title}`, required: true });
    const stop = () => { form.replaceWith(this.text); this.focus(); };
    const form = make("form", { class: "edit" }, area,
      make("div", { class: "row" },
        make("button", { type: "button", class: "quiet", onclick: stop }, "Cancel"),
        make("button", {}, "Save")));
    form.addEventListener("submit", (event) => { event.preventDefault(); this.all.change(this, area.value); });
    area.addEventListener("keydown", (event) => {
      if (event.key === "Escape") stop();
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
    });
    api.text(this.id).then((text) => { area.value = text; this.text.replaceWith(form); area.focus(); }, complain);
  }

  focus() {
    this.buttons.firstElementChild.focus();
  }

  /** What a change computed, and what it did not. */
  tell(work, place = this.told) {
    const made = work.units ? `computed ${count(work.units, "unit")}, ${count(work.tokens, "token")}, in ${seconds(work.seconds)}` : `stored already: nothing to compute, ${seconds(work.seconds)}`;
    place.textContent = `${made} · ${work.changed} of ${work.others.toLocaleString("en")} stored units recomputed`;
  }
}
