// The page: one run of run_code, as its arguments and its result come from the host.
import { listing } from "./code.js";
import { announce, h, visible } from "./dom.js";
import { connect, host, notify, on, request } from "./host.js";
import { artifact, display, textBox } from "./shows.js";

const main = document.querySelector("main");
const WORDS = {
  ok: "Done", error: "Error", timeout: "Time was up", died: "Kernel died", out_of_memory: "Out of memory",
  limit: "Limit reached", cancelled: "Cancelled", shutdown: "Server was shut down",
};

const state = { code: "", result: null, cancelled: null };

function section(title, ...children) {
  return h("section", {}, h("h2", {}, title), ...children);
}

function textSection(title, text, className) {
  return text ? section(title, textBox(title, text, className)) : null;
}

function header(run) {
  const status = String(run.status ?? "");
  const seconds = Object.values(run.seconds ?? {}).reduce((sum, value) => sum + (Number(value) || 0), 0);
  const facts = [
    run.seconds && ["Time", `${seconds.toFixed(2)} s`],
    run.isolation && ["Isolation", run.isolation],
    run.session_id && ["Session", run.session_id],
  ].filter(Boolean);
  return h(
    "header",
    {},
    h("h1", {}, h("span", { class: status === "ok" ? "status good" : "status bad" }, WORDS[status] ?? visible(status))),
    h("dl", {}, facts.map(([term, value]) => h("div", {}, h("dt", {}, term), h("dd", {}, h("bdi", {}, visible(value)))))),
    fullScreen(),
  );
}

function fullScreen() {
  if (!host.context.availableDisplayModes?.includes("fullscreen")) return null;
  const full = host.context.displayMode === "fullscreen";
  const mode = full ? "inline" : "fullscreen";
  return h("button", { type: "button", onclick: () => request("ui/request-display-mode", { mode }).catch(() => {}) }, full ? "Smaller" : "Full screen");
}

function errorSection(error) {
  if (!error) return null;
  const where = error.line ? ` in line ${error.line}` : "";
  const said = h("p", { class: "error", role: "alert" }, h("strong", {}, visible(error.name)), where, ": ", visible(error.value).slice(0, 2000));
  return section("Error", said, error.traceback && h("details", {}, h("summary", {}, "Traceback"), textBox("Traceback", error.traceback, "text")));
}

/** What was printed and shown, in the order in which it happened; the value of the last expression by itself. */
function outputs(run, content) {
  const displays = Array.isArray(run.displays) ? run.displays : [];
  const images = content.filter((block) => block.type === "image" && typeof block.data === "string");
  const paired = new Map(displays.filter((shown) => shown.attached).map((shown, i) => [shown, images[i]]));
  // Python counts code points.
  const points = Array.from(String(run.stdout ?? ""));
  const story = [];
  let at = 0;
  const printed = (end) => {
    const text = points.slice(at, end).join("");
    if (text.trim()) story.push(textBox("Standard output", text));
    at = Math.max(at, end);
  };
  for (const shown of displays.filter((one) => !one.result)) {
    if (shown.after > at) printed(shown.after);
    story.push(display(shown, paired.get(shown)));
  }
  printed(points.length);
  const value = displays.find((one) => one.result);
  return [
    story.length ? section("Output", ...story) : null,
    value ? section("Result", display({ ...value, text: value.text ?? run.result }, paired.get(value))) : textSection("Result", run.result),
  ];
}

function filesSection(run) {
  const shown = new Set((run.displays ?? []).flatMap((one) => [one, ...(one.alternatives ?? [])]).map((one) => one.relative_path));
  const files = (run.artifacts ?? []).filter((file) => !shown.has(file.relative_path));
  return files.length ? section("Files", h("ul", { class: "files" }, files.map(artifact))) : null;
}

function render() {
  const { result, code, cancelled } = state;
  const run = result?.structuredContent;
  const content = Array.isArray(result?.content) ? result.content : [];
  const texts = content.filter((block) => block.type === "text").map((block) => block.text);
  const source = code ? section("Code", listing(code, run?.error?.line)) : null;
  if (!result) {
    const words = cancelled === null ? "Running…" : "Cancelled";
    main.replaceChildren(...[h("header", {}, h("h1", {}, h("span", { class: "status" }, words))), cancelled ? h("p", {}, visible(cancelled)) : null, source].filter(Boolean));
  } else if (!run) {
    const title = h("h1", {}, h("span", { class: result.isError ? "status bad" : "status" }, result.isError ? "Not run" : "Result"));
    main.replaceChildren(...[h("header", {}, title), textSection("Answer", texts.join("\n")), source].filter(Boolean));
  } else {
    const hints = run.feedback?.length ? section("Hints", h("ul", {}, run.feedback.map((hint) => h("li", {}, visible(hint))))) : null;
    const packages = run.packages?.length
      ? section("Environment", h("details", {}, h("summary", {}, `${run.packages.length} packages`), textBox("Packages", run.packages.join("\n"))))
      : null;
    main.replaceChildren(
      ...[
        header(run),
        source,
        ...outputs(run, content),
        textSection("Standard error", run.stderr, "text stderr"),
        errorSection(run.error),
        hints,
        filesSection(run),
        packages,
      ].filter(Boolean),
    );
  }
  main.removeAttribute("aria-busy");
}

function style(context) {
  Object.assign(host.context, context);
  const root = document.documentElement;
  const theme = host.context.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  root.dataset.theme = theme === "dark" ? "dark" : "light";
  for (const [key, value] of Object.entries(context.styles?.variables ?? {})) {
    if (/^--[\w-]+$/.test(key) && typeof value === "string") root.style.setProperty(key, value);
  }
  if (context.displayMode) main.querySelector("header > button")?.replaceWith(fullScreen() ?? "");
}

on("ui/notifications/tool-input-partial", ({ arguments: given }) => input(given));
on("ui/notifications/tool-input", ({ arguments: given }) => input(given));
on("ui/notifications/tool-result", (result) => {
  state.result = result;
  render();
  announce(`The run has ended: ${document.querySelector("h1").textContent}`);
});
on("ui/notifications/tool-cancelled", ({ reason }) => {
  state.cancelled = String(reason ?? "");
  render();
});
on("ui/notifications/host-context-changed", style);

function input(given) {
  state.code = typeof given?.code === "string" ? given.code : "";
  render();
}

let told = 0;
new ResizeObserver(() => {
  const height = Math.ceil(document.documentElement.getBoundingClientRect().height);
  if (height !== told && host.context) notify("ui/notifications/size-changed", { height: (told = height) });
}).observe(document.documentElement);

connect().then(
  () => {
    style(host.context);
    render();
  },
  (problem) => main.replaceChildren(h("p", {}, `This page shows a run inside of a client with MCP Apps: ${visible(problem.message)}.`)),
);
