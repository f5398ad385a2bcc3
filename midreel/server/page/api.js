// Requests to the server, and its errors.

export class Problem extends Error {
  constructor({ title = "Request failed", detail = "", status = 0, type = "" }) {
    super(detail || title);
    Object.assign(this, { title, detail, status, type });
  }
}

const UNREACHABLE = { title: "Cannot reach the server", detail: "Is midreel serve still running?", type: "unreachable" };
const RETRY_FOR = 3; // seconds for which requests to a busy server are retried

// Sends a request and returns the JSON of the response. Throws a Problem if the server answers with an error or not at all.
export async function request(address, { method = "GET", body, signal } = {}) {
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
    if (response.status === 503 && waited + pause <= RETRY_FOR) {
      waited += pause;
      await new Promise((resolve) => setTimeout(resolve, 1000 * pause));
      if (signal?.aborted) throw new DOMException("", "AbortError");
      continue;
    }
    throw new Problem({ title: response.statusText, ...(await response.json().catch(() => null)), status: response.status });
  }
}

export const search = (body, signal) => request("/v1/search", { method: "POST", body, signal });
export const feedback = (query) => request(`/v1/feedback?${new URLSearchParams({ query, limit: 200 })}`);
export const giveFeedback = (body) => request("/v1/feedback", { method: "POST", body });
export const removeFeedback = (id) => request(`/v1/feedback/${id}`, { method: "DELETE" });
export const library = () => request("/v1/library");
export const video = (id) => request(`/v1/videos/${encodeURIComponent(id)}`);
export const remove = (id) => request(`/v1/videos/${encodeURIComponent(id)}`, { method: "DELETE" });
export const quarantine = (offset = 0) => request(`/v1/quarantine?offset=${offset}`);
export const jobs = () => request("/v1/jobs");
export const index = (path) => request("/v1/index", { method: "POST", body: { path } });
export const cancel = (id) => request(`/v1/jobs/${encodeURIComponent(id)}`, { method: "DELETE" });
export const signIn = (token) => request("/v1/session", { method: "POST", body: { token } });

export function videos({ text, folder, offset = 0, limit = 48 }) {
  const params = new URLSearchParams({ offset, limit });
  if (text) params.set("text", text);
  if (folder) params.set("folder", folder);
  return request(`/v1/videos?${params}`);
}

// Returns why the browser cannot play a file. The video element does not say, but the server may.
// null if the server can read the file: then the browser cannot play it.
export async function whyUnreadable(address) {
  try {
    await request(address, { method: "HEAD" });
  } catch (problem) {
    if ([404, 410].includes(problem.status)) return "The file was changed or removed after it was indexed. Index its folder again.";
    if (problem.status === 401) return "Your session has ended. Reload the page to sign in.";
    if (problem.type === UNREACHABLE.type) return `${problem.title}. ${problem.detail}`;
    return "The server cannot read the file. Try again later.";
  }
  return null;
}

// A part of a video that every browser can play, of whole seconds.
export const proxy = (video, start, end) => `/v1/videos/${encodeURIComponent(video.id)}/proxy?start=${start}&end=${end}`;

// Follows a job and returns a function that stops it. Calls:
// - onProgress(job) each time the job changes,
// - onDisconnect(reason) when the server cannot be reached; the browser keeps trying to reconnect,
// - onLost() when the server does not know the job any more, as after a restart.
export function follow(id, { onProgress, onDisconnect, onLost }) {
  const source = new EventSource(`/v1/jobs/${encodeURIComponent(id)}/events`);
  let misses = 0; // the first is only the end of the connection
  source.onerror = () => {
    misses += 1;
    if (source.readyState === EventSource.CLOSED) onLost();
    else if (misses === 2) onDisconnect(`${UNREACHABLE.title}. ${UNREACHABLE.detail}`);
  };
  source.onmessage = (event) => {
    const job = JSON.parse(event.data);
    misses = 0;
    if (isOver(job)) source.close();
    onProgress(job);
  };
  return () => source.close();
}

export const isOver = (job) => !["queued", "running"].includes(job.state);

export const picture = (address, width) => `${address}${address.includes("?") ? "&" : "?"}width=${width}`;
