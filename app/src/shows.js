// One thing that the code showed, in the richest form that there is, with its text beside it.
import { bounded, bytes, h, scrolling, visible } from "./dom.js";
import { fileLine } from "./files.js";
import { htmlFrame, specFrame } from "./frames.js";
import { readBytes, readPacked, readText, toBase64 } from "./host.js";
import { fromDelimited, fromHtml, tableView } from "./table.js";

const MOST_TEXT_BYTES = 16_000_000;
// Larger ones are fetched, in parts, when a person asks.
const MOST_UNASKED_BYTES = 2_000_000;
const FROM_NETWORK = /<script[^>]+src\s*=\s*["']?(https?:)?\/\//i;
const PICTURES = /^image\/(png|jpeg|gif|webp)$/;
// What the bytes of a picture begin with, as Latin-1 text.
const MAGIC = { "image/png": /^\x89PNG/, "image/jpeg": /^\xff\xd8\xff/, "image/gif": /^GIF8/, "image/webp": /^RIFF[^]{4}WEBP/ };
const LIBRARIES = { plotly: "ui://prims/plotly.js", vega: "ui://prims/vega.js" };

const libraries = new Map();

/** The text of a library, read once. */
function library(which) {
  if (!libraries.has(which)) libraries.set(which, readPacked(LIBRARIES[which]));
  return libraries.get(which);
}

// How to show a file of a kind, the richest first. Each gives an element or a promise of one.
const WAYS = [
  [/^application\/vnd\.plotly\.v1\+json/, (file, label, failed) => plot("plotly", file, label, failed)],
  // With a dot as well, as altair has it.
  [/^application\/vnd\.vega(lite)?\.v\d[\d.]*[+.]json/, (file, label, failed) => plot("vega", file, label, failed)],
  [/^text\/html/, html],
  // As a picture an SVG runs nothing and loads nothing.
  [/^image\/svg\+xml/, async (file, label) => image(file, label, await readBytes(file.uri, file.size))],
  [PICTURES, picture],
  [/^(audio|video)\//, media],
  [/^text\/csv|\+csv$/, (file, label) => delimited(file, label, ",")],
  [/^text\/tab-separated-values/, (file, label) => delimited(file, label, "\t")],
  [/json$/, json],
  [/^text\/|^application\/(xml|x-python|javascript|x-sh|toml|yaml)/, text],
];

async function plot(which, file, label, failed) {
  const [script, spec] = await Promise.all([library(which), readText(file.uri, file.size, MOST_TEXT_BYTES)]);
  return specFrame(script, JSON.parse(spec), label, failed);
}

async function html(file, label, failed) {
  const source = await readText(file.uri, file.size, MOST_TEXT_BYTES);
  if (FROM_NETWORK.test(source)) throw new Error("it needs scripts from the network, which are not loaded here");
  const table = /<table[^>]*class=["'][^"']*\bdataframe\b/i.test(source) && fromHtml(source);
  return table ? tableView(table, "Table") : htmlFrame(source, label, failed);
}

async function picture(file, label) {
  const data = await readBytes(file.uri, file.size);
  if (!MAGIC[file.mime].test(String.fromCharCode(...data.subarray(0, 16)))) throw new Error("it is not what it says");
  return image(file, label, data);
}

function image(file, label, data) {
  return h("img", { src: `data:${file.mime};base64,${toBase64(data)}`, alt: label, width: file.width, height: file.height });
}

async function media(file, label) {
  const data = await readBytes(file.uri, file.size);
  const source = `data:${file.mime.replace(/[^\w/+.-]/g, "")};base64,${toBase64(data)}`;
  return h(file.mime.startsWith("audio") ? "audio" : "video", { controls: true, src: source, "aria-label": label });
}

async function delimited(file, label, delimiter) {
  return tableView(fromDelimited(await readText(file.uri, file.size, MOST_TEXT_BYTES), delimiter), label);
}

async function json(file, label) {
  const source = await readText(file.uri, file.size, MOST_TEXT_BYTES);
  let pretty = source;
  try {
    pretty = JSON.stringify(JSON.parse(source), null, 2);
  } catch {
    // Shown as it is.
  }
  return textBox(label, pretty);
}

async function text(file, label) {
  return textBox(label, await readText(file.uri, file.size, MOST_TEXT_BYTES));
}

export function textBox(label, content, className = "text") {
  return scrolling(label, className, h("pre", {}, visible(bounded(content))));
}

function rank(file) {
  const found = WAYS.findIndex(([mime]) => mime.test(file.mime));
  return found < 0 ? WAYS.length : found;
}

/** Fill `place` with the best of `files` that can be shown; false when none can be. `why` is why a better one was not. */
async function fill(place, files, label, why = "") {
  const left = files.filter((file) => file.uri && rank(file) < WAYS.length).sort((a, b) => rank(a) - rank(b));
  while (left.length) {
    const file = left.shift();
    try {
      // What fails only later, in its frame, is replaced by what is left then.
      place.replaceChildren(await WAYS[rank(file)][1](file, label, (said) => fallBack(place, left, label, said)));
      return true;
    } catch (problem) {
      why ||= problem.message;
    }
  }
  place.replaceChildren(...(why ? [h("p", { class: "note" }, `Not shown: ${visible(why)}.`)] : []));
  return false;
}

async function fallBack(place, left, label, why) {
  if (!(await fill(place, left, label, why))) place.closest("figure")?.querySelector("details")?.setAttribute("open", "");
}

/** Call `action` when `element` comes near to what the person sees. */
function whenNear(element, action) {
  new IntersectionObserver(
    (entries, observer) => {
      if (!entries.some((entry) => entry.isIntersecting)) return;
      observer.disconnect();
      action();
    },
    { rootMargin: "600px" },
  ).observe(element);
}

/** A display of the result. `inline` is the picture that came with the reply, if one did. */
export function display(shown, inline) {
  const label = visible(shown.text ?? "").replace(/\s+/g, " ").slice(0, 200) || visible(shown.name);
  // Plain texts have no file: the text is all there is.
  if (!shown.uri && !shown.alternatives?.length && !inline) return textBox(visible(shown.mime), shown.text ?? "");
  const place = h("div", { class: "place" }, h("p", { class: "note" }, "Loading…"));
  const twin = shown.text && h("details", {}, h("summary", {}, "As text"), textBox("As text", shown.text));
  const figure = h("figure", {}, place, twin, shown.uri && h("figcaption", {}, fileLine(shown)));
  const load = async () => {
    if (await fill(place, [shown, ...(shown.alternatives ?? [])], label)) return;
    if (inline) place.replaceChildren(inlineImage(inline, label));
    else twin?.setAttribute("open", "");
  };
  whenNear(place, () => {
    if (shown.size <= MOST_UNASKED_BYTES) return load();
    place.replaceChildren(h("button", { type: "button", onclick: load }, `Show (${bytes(shown.size)})`));
    if (inline) place.prepend(inlineImage(inline, label));
  });
  return figure;
}

function inlineImage(block, label) {
  const type = PICTURES.test(block.mimeType) ? block.mimeType : "image/png";
  return h("img", { src: `data:${type};base64,${block.data}`, alt: label });
}

/** A file of the run; what can be shown has a button for it. */
export function artifact(file) {
  const place = h("div", { class: "place" });
  const label = visible(file.name);
  const show = h(
    "button",
    {
      type: "button",
      "aria-expanded": "false",
      "aria-label": `Show ${label}`,
      async onclick() {
        const open = show.getAttribute("aria-expanded") === "true";
        show.setAttribute("aria-expanded", String(!open));
        show.textContent = open ? "Show" : "Hide";
        if (open) place.replaceChildren();
        else await fill(place, [file], label);
      },
    },
    "Show",
  );
  return h("li", {}, fileLine(file, file.uri && rank(file) < WAYS.length && show), place);
}
