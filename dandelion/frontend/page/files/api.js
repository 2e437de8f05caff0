// Requests to the node, with the token that the user entered. Paths are relative to the page, which
// a proxy may serve below a path.

const KEY = "dandelion-token";

export class Problem extends Error {
  constructor(status, detail) {
    super(detail);
    this.status = status;
  }
}

async function problemOf(response) {
  let detail = response.statusText;
  try {
    detail = (await response.json()).detail || detail;
  } catch { /* not a problem document */ }
  return new Problem(response.status, detail);
}

function ask(message) {
  const dialog = document.getElementById("login");
  document.getElementById("login-error").textContent = message;
  return new Promise(resolve => {
    dialog.addEventListener("close", () => {
      sessionStorage.setItem(KEY, document.getElementById("token").value.trim());
      resolve();
    }, { once: true });
    if (!dialog.open) dialog.showModal();
  });
}

let asking = null;  // several requests may find out at once that a token is needed

export async function request(path, options = {}) {
  for (;;) {
    const token = sessionStorage.getItem(KEY);
    const headers = { ...options.headers };
    const sendable = !token || /^[!-~]+$/.test(token);  // else fetch refuses the header
    if (token && sendable) headers.Authorization = `Bearer ${token}`;
    const response = sendable && await fetch(path, { ...options, headers });
    if (!response || response.status === 401) {
      if (sessionStorage.getItem(KEY) === token) {
        asking = asking || ask(token ? "This token is not valid." : "");
        await asking;
        asking = null;
      }
      continue;
    }
    if (!response.ok) throw await problemOf(response);
    return response;
  }
}

export async function json(path, options) {
  return (await request(path, options)).json();
}

// Calls back with each event of a stream, until the signal aborts it.
export async function events(path, signal, received) {
  const response = await request(path, { signal, headers: { Accept: "text/event-stream" } });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    for (const part of parts)
      if (part.startsWith("data: ")) received(JSON.parse(part.slice(6)));
  }
}
