// Frames for what is not ours: HTML of kernels, and the libraries that draw their specs.
//
// Each frame is a document of its own without an origin. Its policy, together with that of this page, which it
// inherits, allows no request; and a frame of this page cannot be navigated anywhere (frame-src 'none').
import { h, visible } from "./dom.js";
import { host, request } from "./host.js";
import page from "./inside/page.js?text";

const LEAST_PIXELS = 40;
const MOST_PIXELS = 2400;
const MOST_ADDRESS = 2000;

const WAIT_SECONDS = 30;

const frames = [];

window.addEventListener("message", ({ source, data }) => {
  const frame = frames.find(({ element }) => element.contentWindow === source);
  // Whatever runs in there can send anything: only these messages are known, and checked.
  if (!source || !frame || typeof data?.prims !== "string") return;
  frame.alive = true;
  if (data.prims === "height" && data.value > 0) {
    const height = Math.min(MOST_PIXELS, Math.max(LEAST_PIXELS, Math.ceil(data.value)));
    if (Math.abs(height - frame.height) > 1) frame.element.style.height = `${(frame.height = height)}px`;
  } else if (data.prims === "link" && typeof data.value === "string") {
    offerLink(frame, data.value.slice(0, MOST_ADDRESS));
  } else if (data.prims === "ready" || data.prims === "failed") {
    frame[data.prims]?.(String(data.value ?? "").slice(0, 500));
  }
});

/** A frame with `body`, of which `policy` says which scripts run; `failed(why)` when it stays silent. */
function open(label, policy, body, failed, ready) {
  const head =
    `<!doctype html><html><head><meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="default-src ` +
    `'none'; script-src ${policy}; style-src 'unsafe-inline'; img-src data:; font-src data:; media-src data:; ` +
    `base-uri 'none'; form-action 'none'"><meta http-equiv="x-dns-prefetch-control" content="off">`;
  const element = h("iframe", {
    title: label,
    sandbox: "allow-scripts",
    referrerpolicy: "no-referrer",
    class: "frame",
    srcdoc: head + body,
  });
  const links = h("div", { class: "links", role: "status" });
  // HTML of a kernel cannot say that it is not there.
  const frame = { element, links, height: 0, ready, failed: ready && failed, alive: false };
  frames.push(frame);
  setTimeout(() => frame.alive || failed("this client shows no frames"), WAIT_SECONDS * 1000);
  return { element, box: h("div", { class: "paper" }, element, links) };
}

/** A link is followed by the host alone, after a person has seen where it leads. */
function offerLink(frame, text) {
  let url;
  try {
    url = new URL(text);
  } catch {
    return;
  }
  if (!/^https?:$/.test(url.protocol)) return;
  const close = () => frame.links.replaceChildren();
  frame.links.replaceChildren(
    h("span", {}, "The output links to "),
    h("code", {}, h("bdi", {}, visible(url.href))),
    host.capabilities.openLinks &&
      h("button", { type: "button", onclick: () => request("ui/open-link", { url: url.href }).then(close, close) }, "Open"),
    h("button", { type: "button", onclick: close }, "Close"),
  );
}

const SCRIPTED = /<script|\son\w+\s*=|javascript:/i;
const LOADING = "link, meta, base, iframe, frame, object, embed";

/** HTML in a frame. Its scripts run only when a person says so, as they may find ways out that no policy closes. */
export function htmlFrame(html, label, failed) {
  const scripted = SCRIPTED.test(html);
  const parsed = new DOMParser().parseFromString(html, "text/html");
  for (const element of parsed.querySelectorAll(LOADING)) element.remove();
  const content = parsed.head.innerHTML + parsed.body.innerHTML;
  const nonce = toHex(crypto.getRandomValues(new Uint8Array(16)));
  const still = `<script nonce="${nonce}">${page}</script></head><body>${content}`;
  const { box } = open(label, `'nonce-${nonce}'`, still, failed);
  if (!scripted) return box;
  const run = h(
    "button",
    {
      type: "button",
      onclick: () => box.replaceWith(open(label, "'unsafe-inline'", `<script>${page}</script></head><body>${content}`, failed).box),
    },
    "Run its scripts",
  );
  box.append(h("p", { class: "note" }, "Scripts of this output were not run. ", run, " if you trust the code that made it."));
  return box;
}

/** A spec drawn by `library`, the text of a script that waits for it; `failed` is called when it cannot be. */
export function specFrame(library, spec, label, failed) {
  const shown = open(
    label,
    "'unsafe-inline'",
    `<style>body{margin:0;overflow:auto}#plot{width:100%}</style></head><body><div id="plot"></div><script>${library}</script>`,
    failed,
    () => shown.element.contentWindow.postMessage({ prims: "spec", value: spec }, "*"),
  );
  return shown.box;
}

function toHex(bytes) {
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}
