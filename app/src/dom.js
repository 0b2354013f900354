// Elements from code only: what kernels say becomes text nodes and never markup.

/** An element; `on…` attributes are listeners, `true` an empty attribute, `false` and `null` none. */
export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== false && value != null) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child != null && child !== false));
  return element;
}

const HIDDEN =
  /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\u{e0000}-\u{e007f}]/gu;

/** Text in which controls and what would turn the direction of reading are spelled out. */
export function visible(text) {
  return String(text ?? "").replace(/\r\n/g, "\n").replace(HIDDEN, (c) => `\\u{${c.codePointAt(0).toString(16)}}`);
}

/** A name on one line, its direction its own affair. */
export function name(text, most = 120) {
  const line = visible(text).replace(/\s+/g, " ");
  return h("bdi", { class: "name" }, line.length > most ? `${line.slice(0, most - 20)}…${line.slice(-18)}` : line);
}

const MOST_CHARS = 400_000;
const MOST_LINES = 5000;

/** Text that a page can bear: beginning and end of what is too long, with a line that says so. */
export function bounded(text) {
  let kept = text;
  if (kept.length > MOST_CHARS) {
    const cut = kept.length - MOST_CHARS;
    kept = `${kept.slice(0, MOST_CHARS / 2)}\n… ${cut.toLocaleString("en")} characters are not shown …\n${kept.slice(-MOST_CHARS / 2)}`;
  }
  const lines = kept.split("\n");
  if (lines.length > MOST_LINES) {
    const cut = lines.length - MOST_LINES;
    lines.splice(MOST_LINES / 2, cut, `… ${cut.toLocaleString("en")} lines are not shown …`);
    kept = lines.join("\n");
  }
  return kept;
}

export function bytes(count) {
  if (!(count >= 0)) return "";
  if (count < 10_000) return `${count} bytes`;
  return count < 1e6 ? `${Math.round(count / 1e3)} KB` : `${(count / 1e6).toFixed(1)} MB`;
}

/** Something that scrolls by itself, so it can be reached by keyboard and has a name. */
export function scrolling(label, className, ...children) {
  return h("div", { class: `scrolling ${className}`, role: "group", tabindex: "0", "aria-label": label }, ...children);
}

const live = h("div", { role: "status", "aria-live": "polite", class: "unseen" });

/** Tell those who cannot see what has changed. */
export function announce(text) {
  if (!live.isConnected) document.body.append(live);
  live.textContent = text;
}
