// What the service is asked. Every address is its own.

const KEY = "contentrope-key";

export class Refused extends Error {
  constructor(status, body) {
    const told = body?.error?.message ?? "the service answered without saying why";
    super(`${headline(status)}: ${told}`);
    this.status = status;
  }
}

function headline(status) {
  const known = {
    401: "The key was not accepted",
    404: "Not found",
    413: "Too large",
    429: "The service is busy",
    503: "The service is not ready",
    504: "It took too long",
    507: "The store is full",
  };
  return known[status] ?? (status >= 500 ? "The service failed" : "Refused");
}

export function useKey(key) {
  if (key) sessionStorage.setItem(KEY, key);
  else sessionStorage.removeItem(KEY);
}

async function ask(method, path, body, signal) {
  const headers = body === undefined ? {} : { "Content-Type": "application/json" };
  const key = sessionStorage.getItem(KEY);
  if (key) headers.Authorization = `Bearer ${key}`;
  let found;
  try {
    found = await fetch(path, { method, headers, signal, body: body === undefined ? undefined : JSON.stringify(body) });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("The service cannot be reached. Is it still running?");
  }
  if (!found.ok) {
    const refused = new Refused(found.status, await found.json().catch(() => null));
    if (found.status === 401) document.dispatchEvent(new CustomEvent("key-needed"));
    throw refused;
  }
  return found;
}

const json = async (...given) => (await ask(...given)).json();
const place = (id) => `v1/documents/${encodeURIComponent(id)}`;

export const model = async () => (await json("GET", "v1/models")).data[0].id;
export const documents = async () => (await json("GET", "v1/documents")).data;
export const text = async (id) => (await json("GET", place(id))).text;
export const units = async (id) => (await json("GET", `${place(id)}/units`)).data;
export const add = (given) => json("POST", "v1/documents", given);
export const change = (id, given) => json("PUT", place(id), given);
export const remove = (id) => json("DELETE", place(id));
export const order = (given) => json("POST", "v1/order", given);

/** The choices of a streamed answer, as they come. */
export async function* answer(given, signal) {
  const found = await ask("POST", "v1/chat/completions", { ...given, stream: true }, signal);
  const reader = found.body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) throw new Error("The answer broke off: the service has gone.");
    const lines = (held + value).split("\n");
    held = lines.pop();
    for (const line of lines) {
      if (line === "data: [DONE]") return;
      if (!line.startsWith("data: ")) continue;
      const said = JSON.parse(line.slice(6));
      if (said.error) throw new Refused(said.error.code === "timeout" ? 504 : 500, said);
      if (said.choices.length) yield said.choices[0];
    }
  }
}
