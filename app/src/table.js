// Tables: what is in them is read as text, and only the rows in sight are in the page.
import { announce, h, visible } from "./dom.js";

const ROW_PIXELS = 28;
const HEIGHT_PIXELS = 420;
const SPARE_ROWS = 12;
const MOST_ROWS = 500_000;
const MOST_COLUMNS = 200;
const MOST_CELL = 1000;
// Few bytes of HTML can span many cells.
const MOST_CELLS = 5_000_000;
const WIDEST = 42;

/**
 * A table as text: `names` of its columns, `rows` of cells, how many columns at the front are `labels` of rows, and
 * what its maker says of its size when not all of it is there.
 */
export class Table {
  constructor(names, rows, labels = 0, size = "") {
    this.size = size;
    this.columns = Math.max(names.length, ...rows.slice(0, 1000).map((row) => row.length));
    this.names = Array.from({ length: Math.min(this.columns, MOST_COLUMNS) }, (_, i) => names[i] ?? "");
    this.all = rows.length;
    this.rows = rows.length > MOST_ROWS ? rows.slice(0, MOST_ROWS) : rows;
    this.labels = Math.min(labels, this.names.length);
  }
}

function cellText(cell) {
  return cell.textContent.trim().slice(0, MOST_CELL);
}

/** Cells with those that span several rows or columns repeated. */
function unspanned(rows, most) {
  const grid = [];
  const hanging = [];
  let cells = 0;
  for (const row of rows) {
    if (cells > MOST_CELLS) break;
    const line = [];
    let column = 0;
    const fill = () => {
      while (hanging[column]?.rows > 0) {
        hanging[column].rows--;
        line[column] = hanging[column].text;
        column++;
      }
    };
    for (const cell of row.cells) {
      fill();
      if (column > most) break;
      const text = cellText(cell);
      for (let i = Math.min(cell.colSpan, most); i > 0; i--) {
        line[column] = text;
        if (cell.rowSpan > 1) hanging[column] = { rows: Math.min(cell.rowSpan, 100_000) - 1, text };
        column++;
      }
    }
    fill();
    cells += line.length;
    grid.push(line);
  }
  return grid;
}

/** The first table of a piece of HTML, or null. Nothing in it is run or loaded: the document has no window. */
export function fromHtml(html) {
  const page = new DOMParser().parseFromString(html, "text/html");
  for (const element of page.querySelectorAll("script, style, template")) element.remove();
  const found = page.querySelector("table");
  if (!found) return null;
  const body = [...found.rows].filter((row) => row.parentNode.tagName !== "THEAD");
  let head = found.tHead ? [...found.tHead.rows] : [];
  if (!head.length && body[0] && [...body[0].cells].every((cell) => cell.tagName === "TH")) head = [body.shift()];
  const names = [];
  for (const line of unspanned(head, MOST_COLUMNS)) {
    line.forEach((text, i) => {
      if (text && text !== names[i]?.at(-1)) (names[i] ??= []).push(text);
    });
  }
  const labels = body.length ? [...body[0].cells].findIndex((cell) => cell.tagName !== "TH") : 0;
  return new Table(
    Array.from(names, (parts) => (parts ?? []).join(" / ")),
    unspanned(body, MOST_COLUMNS),
    Math.max(0, labels),
    // As pandas writes it.
    found.parentNode.textContent.match(/\b\d+ rows × \d+ columns\b/)?.[0],
  );
}

/** Delimited text with quotes as in RFC 4180; the first line are the names. */
export function fromDelimited(text, delimiter) {
  const rows = [];
  let row = [];
  const cell = new RegExp(`(?:"((?:[^"]+|"")*)"|([^${delimiter}\\r\\n]*))(${delimiter}|\\r?\\n|\\r|$)`, "y");
  while (cell.lastIndex < text.length && rows.length <= MOST_ROWS) {
    const match = cell.exec(text);
    // A quote in the wrong place: the rest is not taken apart.
    if (!match) break;
    row.push((match[1] !== undefined ? match[1].replace(/""/g, '"') : match[2]).slice(0, MOST_CELL));
    if (match[3] !== delimiter) {
      rows.push(row);
      row = [];
    }
  }
  if (row.length) rows.push(row);
  return new Table(rows.shift() ?? [], rows);
}

const NUMBER = /^[-+−]?(?:\d[\d,_]*\.?\d*|\.\d+)(?:e[-+]?\d+)?\s*%?$/i;
const NOTHING = /^(?:|nan|none|null|<na>|nat|n\/a|\.\.\.|…)$/i;
const ENDLESS = { inf: Infinity, "-inf": -Infinity };

function toNumber(text) {
  const lower = text.toLowerCase();
  if (lower in ENDLESS) return ENDLESS[lower];
  return NUMBER.test(text) ? parseFloat(text.replace(/[,_%]/g, "").replace("−", "-")) : NaN;
}

/** What the cells of a column are compared by; null for those without a value, which come last. */
function keys(table, column) {
  const texts = table.rows.map((row) => row[column] ?? "");
  const numbers = texts.map((text) => (NOTHING.test(text) ? null : toNumber(text)));
  return numbers.every((n) => n === null || !Number.isNaN(n)) ? numbers : texts.map((t) => (NOTHING.test(t) ? null : t));
}

const byText = new Intl.Collator(undefined, { numeric: true }).compare;

function sorted(table, column, direction) {
  const order = Array.from(table.rows.keys());
  if (!direction) return order;
  const by = keys(table, column);
  const compare = by.some((key) => typeof key === "string") ? byText : (a, b) => a - b;
  return order.sort((i, j) => {
    if (by[i] === null || by[j] === null) return (by[i] === null) - (by[j] === null) || i - j;
    return direction * compare(by[i], by[j]) || i - j;
  });
}

/** The element that shows a table. */
export function tableView(table, label) {
  const sample = table.rows.slice(0, 400);
  const widths = table.names.map((text, i) =>
    sample.reduce((most, row) => Math.max(most, Math.min(WIDEST, (row[i] ?? "").length)), Math.min(WIDEST, text.length + 3)),
  );
  const numeric = table.names.map((_, i) => sample.length > 0 && sample.every((row) => NOTHING.test(row[i] ?? "") || !Number.isNaN(toNumber(row[i]))));
  let order = sorted(table);
  let sort = { column: -1, direction: 0 };

  const heads = table.names.map((text, column) =>
    h(
      "th",
      { scope: "col", class: numeric[column] ? "number" : null, "aria-sort": "none" },
      h(
        "button",
        { type: "button", title: visible(text) || null, onclick: () => sortBy(column) },
        text ? h("bdi", {}, visible(text)) : h("span", { class: "unseen" }, column < table.labels ? "Index" : `Column ${column + 1}`),
        h("span", { class: "arrow", "aria-hidden": "true" }),
      ),
    ),
  );
  const body = h("tbody");
  const columns = h("colgroup", {}, widths.map((width) => h("col", { style: `width:calc(${width}ch + 1.5rem)` })));
  const shown = h(
    "table",
    { "aria-rowcount": table.rows.length + 1, "aria-colcount": table.columns, "aria-label": label },
    columns,
    h("thead", {}, h("tr", { "aria-rowindex": 1 }, heads)),
    body,
  );
  const box = h("div", { class: "scrolling table", role: "group", tabindex: "0", "aria-label": label, onscroll: () => requestAnimationFrame(fill) }, shown);
  let first = -1;

  function fill() {
    const start = Math.max(0, Math.floor(box.scrollTop / ROW_PIXELS) - SPARE_ROWS);
    if (start === first) return;
    first = start;
    const end = Math.min(order.length, start + Math.ceil(HEIGHT_PIXELS / ROW_PIXELS) + 2 * SPARE_ROWS);
    const gap = (rows) => rows > 0 && h("tr", { class: "gap", "aria-hidden": "true", style: `height:${rows * ROW_PIXELS}px` });
    const rows = order.slice(start, end).map((index, i) =>
      h(
        "tr",
        { "aria-rowindex": start + i + 2 },
        table.names.map((_, column) => {
          const text = visible(table.rows[index][column] ?? "");
          const long = text.length > widths[column] ? text : null;
          const attributes = { class: numeric[column] ? "number" : null, title: long };
          if (column >= table.labels) return h("td", attributes, text);
          return h("th", { scope: "row", ...attributes }, text);
        }),
      ),
    );
    body.replaceChildren(...[gap(start), ...rows, gap(order.length - end)].filter(Boolean));
  }

  function sortBy(column) {
    const direction = sort.column !== column ? 1 : sort.direction === 1 ? -1 : sort.direction === -1 ? 0 : 1;
    sort = { column, direction };
    order = sorted(table, column, direction);
    const words = { 1: "ascending", [-1]: "descending", 0: "none" };
    heads.forEach((head, i) => head.setAttribute("aria-sort", i === column ? words[direction] : "none"));
    announce(direction ? `Sorted by ${heads[column].textContent}, ${words[direction]}` : "In the original order");
    first = -1;
    fill();
  }

  fill();
  const count = (n, what) => `${n.toLocaleString("en")} ${what}${n === 1 ? "" : "s"}`;
  const counts = [table.size || `${count(table.all, "row")} × ${count(table.columns - table.labels, "column")}`];
  if (table.size || table.all > table.rows.length) counts.push(`${count(table.rows.length, "row")} shown`);
  if (table.columns > table.names.length) counts.push(`the first ${MOST_COLUMNS} columns shown`);
  return h("div", {}, box, h("p", { class: "note" }, counts.join("; ")));
}
