// The other side: JSON-RPC 2.0 over postMessage with the host that shows this page (MCP Apps, SEP-1865).
// https://github.com/modelcontextprotocol/ext-apps/blob/main/specification/2026-01-26/apps.mdx

const PROTOCOL = "2026-01-26";
const ANSWER_SECONDS = 120;
// The server gives a file whole up to this size, and larger ones in parts of at most as many bytes.
const PART_BYTES = 400_000;

const waiting = new Map();
const listeners = new Map();
let last = 0;

export const host = { capabilities: {}, context: {} };

/** Call `listener(params)` for each notification of that name. */
export function on(method, listener) {
  listeners.set(method, listener);
}

export function notify(method, params = {}) {
  window.parent.postMessage({ jsonrpc: "2.0", method, params }, "*");
}

/** The result of a request; rejects with what the host says, or when it says nothing for two minutes. */
export function request(method, params = {}) {
  const id = ++last;
  return new Promise((resolve, reject) => {
    const timer = setTimeout(() => {
      waiting.delete(id);
      reject(new Error("the host did not answer"));
    }, ANSWER_SECONDS * 1000);
    waiting.set(id, { resolve, reject, timer });
    window.parent.postMessage({ jsonrpc: "2.0", id, method, params }, "*");
  });
}

function receive({ source, data }) {
  // Frames of outputs can send messages too; only the parent speaks for the host.
  if (source !== window.parent || data?.jsonrpc !== "2.0") return;
  if (typeof data.method === "string") {
    if (data.id === undefined) {
      listeners.get(data.method)?.(data.params ?? {});
    } else {
      const known = data.method === "ping" || data.method === "ui/resource-teardown";
      const answer = known ? { result: {} } : { error: { code: -32601, message: "Method not found" } };
      window.parent.postMessage({ jsonrpc: "2.0", id: data.id, ...answer }, "*");
    }
    return;
  }
  const call = waiting.get(data.id);
  if (!call) return;
  waiting.delete(data.id);
  clearTimeout(call.timer);
  if (data.error) call.reject(new Error(String(data.error.message ?? "the host refused")));
  else call.resolve(data.result ?? {});
}

/** Shake hands; `listeners` must have been set by then, as the host may send at once. */
export async function connect() {
  window.addEventListener("message", receive);
  const answer = await request("ui/initialize", {
    appInfo: { name: "prims", version: "1" },
    appCapabilities: { availableDisplayModes: ["inline", "fullscreen"] },
    protocolVersion: PROTOCOL,
  });
  host.capabilities = answer.hostCapabilities ?? {};
  host.context = answer.hostContext ?? {};
  notify("ui/notifications/initialized");
}

/** The bytes of a resource of the server. `size` is what it should have; more than `most` is refused. */
export async function readBytes(uri, size = 0, most = 16_000_000) {
  if (!host.capabilities.serverResources) throw new Error("this client gives no access to files");
  if (size > most) throw new Error("the file is too large to be shown here");
  if (size <= PART_BYTES) return readOnce(uri);
  const parts = [];
  for (let offset = 0; offset < size; offset += PART_BYTES) {
    parts.push(await readOnce(`${uri}?offset=${offset}&limit=${PART_BYTES}`));
  }
  return new Uint8Array(await new Blob(parts).arrayBuffer());
}

async function readOnce(uri) {
  const answer = await request("resources/read", { uri });
  const contents = answer.contents?.[0];
  if (typeof contents?.blob === "string") return fromBase64(contents.blob);
  if (typeof contents?.text === "string") return new TextEncoder().encode(contents.text);
  throw new Error("the server gave nothing");
}

export async function readText(uri, size, most) {
  return new TextDecoder().decode(await readBytes(uri, size, most));
}

/** The text of a gzipped resource of the server. */
export async function readPacked(uri) {
  const unpacked = new Blob([await readBytes(uri)]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(unpacked).text();
}

export function fromBase64(text) {
  const raw = atob(text);
  const bytes = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i++) bytes[i] = raw.charCodeAt(i);
  return bytes;
}

export function toBase64(bytes) {
  let raw = "";
  for (let i = 0; i < bytes.length; i += 0x8000) raw += String.fromCharCode(...bytes.subarray(i, i + 0x8000));
  return btoa(raw);
}
