// The server, and what it says when it cannot.

export class Problem extends Error {
  constructor({ title = "Something went wrong", detail = "", status = 0, type = "" }) {
    super(detail || title);
    Object.assign(this, { title, detail, status, type });
  }
}

const UNREACHABLE = { title: "The server cannot be reached", detail: "Is midreel serve still running?", type: "unreachable" };
const PATIENCE = 3; // seconds for which a busy server is asked again

export async function ask(address, { method = "GET", body, signal } = {}) {
  for (let waited = 0; ; ) {
    let response;
    try {
      response = await fetch(address, {
        method,
        signal,
        headers: body === undefined ? {} : { "Content-Type": "application/json" },
        body: body === undefined ? undefined : JSON.stringify(body),
      });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new Problem(UNREACHABLE);
    }
    if (response.ok) return response.status === 204 || method === "HEAD" ? null : response.json();
    const pause = Number(response.headers.get("Retry-After")) || 1;
    if (response.status === 503 && waited + pause <= PATIENCE) {
      waited += pause;
      await new Promise((resolve) => setTimeout(resolve, 1000 * pause));
      if (signal?.aborted) throw new DOMException("", "AbortError");
      continue;
    }
    throw new Problem({ title: response.statusText, ...(await response.json().catch(() => null)), status: response.status });
  }
}

export const search = (body, signal) => ask("/v1/search", { method: "POST", body, signal });
export const library = () => ask("/v1/library");
export const video = (id) => ask(`/v1/videos/${encodeURIComponent(id)}`);
export const forget = (id) => ask(`/v1/videos/${encodeURIComponent(id)}`, { method: "DELETE" });
export const quarantine = (offset = 0) => ask(`/v1/quarantine?offset=${offset}`);
export const jobs = () => ask("/v1/jobs");
export const index = (path) => ask("/v1/index", { method: "POST", body: { path } });
export const cancel = (id) => ask(`/v1/jobs/${encodeURIComponent(id)}`, { method: "DELETE" });
export const enter = (token) => ask("/v1/session", { method: "POST", body: { token } });

export function videos({ text, folder, offset = 0, limit = 48 }) {
  const words = new URLSearchParams({ offset, limit });
  if (text) words.set("text", text);
  if (folder) words.set("folder", folder);
  return ask(`/v1/videos?${words}`);
}

// Why a browser could not play a file: its element does not say, but the server may.
export async function whyUnplayable(address) {
  try {
    await ask(address, { method: "HEAD" });
  } catch (problem) {
    if ([404, 410].includes(problem.status)) return "The file has changed since it was indexed, or is gone. Index its folder again.";
    if (problem.status === 401) return "A token is needed again. Load the page anew.";
    if (problem.type === UNREACHABLE.type) return `${problem.title}. ${problem.detail}`;
    return "The server cannot read the file now. Try again in a while.";
  }
  return "This browser cannot play the file. Save it, and open it with a player.";
}

// Calls `told` with the job whenever it has changed, `waits` with the reason when the server cannot be reached, which the
// browser itself tries again and again, and `lost` when nothing more is to be learnt of the job, as when the server was
// started anew; returns a function that ends it.
export function watch(id, { told, waits, lost }) {
  const source = new EventSource(`/v1/jobs/${encodeURIComponent(id)}/events`);
  let misses = 0; // the first is only the end of what was there
  source.onerror = () => {
    misses += 1;
    if (source.readyState === EventSource.CLOSED) lost();
    else if (misses === 2) waits(`${UNREACHABLE.title}. ${UNREACHABLE.detail}`);
  };
  source.onmessage = (event) => {
    const job = JSON.parse(event.data);
    misses = 0;
    if (isOver(job)) source.close();
    told(job);
  };
  return () => source.close();
}

export const isOver = (job) => !["queued", "running"].includes(job.state);

export const picture = (address, width) => `${address}${address.includes("?") ? "&" : "?"}width=${width}`;
