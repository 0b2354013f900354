// The code that was run, with numbered lines; the line of an error is marked.
import { h, scrolling, visible } from "./dom.js";

const MOST_LINES = 3000;
const WORDS =
  "False|None|True|and|as|assert|async|await|break|class|continue|def|del|elif|else|except|finally|for|from|global|if|" +
  "import|in|is|lambda|match|case|nonlocal|not|or|pass|raise|return|try|while|with|yield";
const TOKEN = new RegExp(
  [
    /(?<comment>#[^\n]*)/.source,
    /(?<string>(?:\b[rRbBfFuUtT]{1,2})?(?:"""[^]*?(?:"""|$)|'''[^]*?(?:'''|$)|"(?:\\[^]|[^"\\\n])*"?|'(?:\\[^]|[^'\\\n])*'?))/
      .source,
    `(?<keyword>\\b(?:${WORDS})\\b)`,
    /(?<number>\b\d[\w.]*)/.source,
  ].join("|"),
  "g",
);

/** Spans of [kind, text]; all of them together are the source. */
function* spans(source) {
  let end = 0;
  for (const match of source.matchAll(TOKEN)) {
    if (match.index > end) yield ["", source.slice(end, match.index)];
    yield [Object.keys(match.groups).find((kind) => match.groups[kind] !== undefined), match[0]];
    end = match.index + match[0].length;
  }
  if (end < source.length) yield ["", source.slice(end)];
}

/** The listing; `wrong` is the number of the line at which an error happened. */
export function listing(source, wrong) {
  const lines = [[]];
  for (const [kind, text] of spans(visible(source).replace(/\n$/, ""))) {
    text.split("\n").forEach((piece, i) => {
      if (i) lines.push([]);
      if (piece) lines.at(-1).push(kind ? h("span", { class: kind }, piece) : piece);
    });
  }
  const first = Math.max(0, Math.min((wrong ?? 1) - MOST_LINES / 2, lines.length - MOST_LINES));
  const shown = lines.slice(first, first + MOST_LINES).map((pieces, i) => {
    const number = first + i + 1;
    const marked = number === wrong;
    return h(
      marked ? "mark" : "span",
      { class: marked ? "line wrong" : "line", "data-number": number },
      marked && h("span", { class: "unseen" }, "Error in this line: "),
      ...pieces,
      "\n",
    );
  });
  const rest = lines.length - shown.length;
  const box = scrolling("Code", "code", h("pre", {}, h("code", {}, ...shown)));
  const note = rest > 0 && h("p", { class: "note" }, `${rest.toLocaleString("en")} more lines are not shown.`);
  const marked = box.querySelector(".wrong");
  // Scrolled within its own box only: the page of the host must not jump.
  if (marked) requestAnimationFrame(() => (box.scrollTop = marked.offsetTop - box.clientHeight / 2));
  return h("div", {}, box, note);
}
