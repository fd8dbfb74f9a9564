// Elements. Text of others becomes text nodes only; nothing here reads markup.

export const one = (id) => document.getElementById(id);

/** An element: `make("button", {class: "quiet", onclick: act}, "Save")`. */
export function make(name, given = {}, ...inside) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(given)) {
    if (value === undefined || value === false) continue;
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (value === true) made.setAttribute(key, "");
    else made.setAttribute(key, value);
  }
  made.append(...inside.flat().filter((part) => part !== null && part !== undefined));
  return made;
}

export const count = (number, word) => `${number.toLocaleString("en")} ${word}${number === 1 ? "" : "s"}`;

export const percent = (share) => `${(100 * share).toFixed(share < 0.0995 ? 1 : 0)}%`;

export function seconds(value) {
  return value < 0.0995 ? `${(1000 * value).toFixed(value < 0.00995 ? 1 : 0)} ms` : `${value.toFixed(value < 9.95 ? 2 : 0)} s`;
}

/** How strongly something is lit, from 0 to 1. */
export function light(element, strength) {
  element.style.setProperty("--light", strength.toFixed(3));
  element.classList.toggle("lit", strength > 0);
}

/** A number from 0 to 1 that CSS draws as the length of a bar. */
export function bar(share) {
  const made = make("span", { class: "share", "aria-hidden": "true" });
  made.style.setProperty("--share", share.toFixed(4));
  return made;
}

export function announce(text) {
  one("said").textContent = text;
}

export function complain(error) {
  if (error.name === "AbortError") return;
  const place = one("alert");
  place.firstElementChild.textContent = error.message;
  place.hidden = false;
  place.scrollIntoView({ block: "nearest" });
}

export function calm() {
  one("alert").hidden = true;
}
