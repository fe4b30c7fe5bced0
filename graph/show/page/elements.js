"use strict";
// Elements of a page from its data. Data only ever becomes text nodes and attribute values, never markup.

function read(text) {
  const data = JSON.parse(text);
  for (const [name, value] of Object.entries(data)) {
    if (value?.columns && value.rows) {
      data[name] = value.rows.map((row) => Object.fromEntries(value.columns.map((column, place) => [column, row[place]])));
    }
  }
  return data;
}

const page = {
  data: read(document.getElementById("data").textContent),
  found: null, // ids that the search has found; null where it is empty
  tables: [],
  drawn: new Map(), // holder -> how its chart is drawn at a width
};

function el(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value === true) made.setAttribute(name, "");
    else if (value !== false && value != null) made.setAttribute(name, value);
  }
  made.append(...children.flat().filter((child) => child != null));
  return made;
}

const known = (value) => value !== null && value !== undefined;
const times = (value) => (known(value) ? `${value.toFixed(value < 10 ? 2 : 1)}x` : "–");
const percent = (value) => (known(value) ? `${(100 * value).toFixed(0)} %` : "–");
const ms = (value) => (known(value) ? `${Number(value.toPrecision(4))} ms` : "–");
const count = (value) => (known(value) ? value.toLocaleString("en") : "–");
const rate = (value, unit) => (known(value) ? `${d3.format(".3s")(value)}${unit}`.replace(/(\D+)$/, " $1") : "–");
const interval = (one) => (known(one.low) ? `${one.low.toFixed(2)} to ${one.high.toFixed(2)}` : "");
const seconds = (value) =>
  !known(value) ? "–" : value < 100 ? `${value.toFixed(1)} s` : `${Math.floor(value / 60)} min ${Math.round(value % 60)} s`;

function section(id, title, ...children) {
  return el("section", { id, "aria-labelledby": `${id}-title` }, el("h2", { id: `${id}-title` }, title), ...children);
}

function pairs(entries) {
  const shown = entries.filter(([, value]) => known(value) && value !== "");
  return el("dl", {}, shown.flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]));
}

// A table that sorts by its heads. `columns`: {name, value, show, number, wide}. `key` names a row for the search, `open`
// makes its first cell a button.
function table(label, columns, rows, { key = null, open = null, searched = null } = {}) {
  const body = el("tbody");
  const heads = columns.map((column, place) =>
    el("th", { scope: "col", class: column.number ? "number" : null },
      el("button", { type: "button", class: "plain", onclick: () => sort(place) }, column.name)),
  );
  let order = { place: -1, down: false };
  const made = rows.map((row) => {
    const cells = columns.map((column, place) => {
      const shown = column.show ? column.show(row) : column.value(row);
      const inner = open && place === 0
        ? el("button", { type: "button", class: "plain row", "aria-haspopup": "dialog", onclick: () => open(row) }, shown)
        : known(shown) ? shown : "–";
      return el("td", { class: column.number ? "number" : column.wide ? "wide" : null }, inner);
    });
    return { row, tr: el("tr", {}, cells), text: searched ? searched(row).toLowerCase() : "" };
  });
  function sort(place) {
    order = { place, down: order.place === place ? !order.down : Boolean(columns[place].number) };
    const sign = order.down ? -1 : 1;
    const value = (item) => columns[place].value(item.row);
    made.sort((a, b) => {
      const [x, y] = [value(a), value(b)];
      return known(x) && known(y) ? sign * d3.ascending(x, y) : Number(known(y)) - Number(known(x));
    });
    heads.forEach((head, index) => head.removeAttribute("aria-sort") ?? (index === place
      && head.setAttribute("aria-sort", order.down ? "descending" : "ascending")));
    body.replaceChildren(...made.map((item) => item.tr));
  }
  body.append(...made.map((item) => item.tr));
  if (searched) page.tables.push({ made, key });
  const grid = el("table", {}, el("caption", {}, label), el("thead", {}, el("tr", {}, heads)), body);
  return el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": label }, grid);
}

function search(words) {
  const wanted = words.toLowerCase().split(/\s+/).filter(Boolean);
  page.found = wanted.length ? new Set() : null;
  let shown = 0;
  for (const { made, key } of page.tables) {
    for (const item of made) {
      const fits = wanted.every((word) => item.text.includes(word));
      item.tr.hidden = !fits;
      shown += fits;
      if (fits && page.found && key) page.found.add(key(item.row));
    }
  }
  document.getElementById("found").textContent = wanted.length ? `${shown} found` : "";
  drawAll();
}

// A chart, drawn when it comes near the screen, and anew when its width, the search or the data change.
function chart(label, draw) {
  const holder = el("figure", { role: "group", "aria-label": label, class: "chart" });
  page.drawn.set(holder, { draw, isNear: false, isStale: true });
  nearby.observe(holder);
  return holder;
}

const nearby = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) {
    const known = page.drawn.get(target);
    if (!known) continue;
    known.isNear = isIntersecting;
    if (isIntersecting && known.isStale) drawOne(target, known);
  }
}, { rootMargin: "600px" });

function drawOne(holder, known) {
  known.isStale = false;
  holder.replaceChildren(...[known.draw(Math.max(280, holder.clientWidth - 2))].flat());
}

function drawAll({ far = false } = {}) {
  for (const [holder, known] of page.drawn) {
    known.isStale = true;
    if (!holder.isConnected) page.drawn.delete(holder);
    else if (known.isNear || far) drawOne(holder, known);
  }
}

addEventListener("beforeprint", () => drawAll({ far: true }));

function dialogOf(title, ...children) {
  const close = el("button", { type: "button", onclick: () => made.close() }, "Close");
  const made = el("dialog", { "aria-label": title }, el("div", { class: "bar" }, el("h2", {}, title), close), ...children);
  made.addEventListener("close", () => made.remove());
  made.addEventListener("click", (event) => event.target === made && made.close());
  document.body.append(made);
  made.showModal();
}

function codeBlock(label, text, { isDiff = false } = {}) {
  const lines = text.split("\n").map((line) => {
    const kind = !isDiff ? null : /^\+(?!\+\+ )/.test(line) ? "added" : /^-(?!-- )/.test(line) ? "removed" : null;
    return el("span", { class: kind }, `${line}\n`);
  });
  return el("pre", { tabindex: "0", role: "region", "aria-label": label }, el("code", {}, lines));
}

const HELP = [
  ["/", "search"], ["j and k, or the arrows", "next and previous row of a table"], ["Enter", "open the row"],
  ["1 to 9", "go to a section"], ["t", "light or dark"], ["?", "this list"], ["Esc", "close, or clear the search"],
];

function header(title, said) {
  const box = el("input", {
    type: "search", id: "search", placeholder: "Search ( / )", "aria-label": "Search", autocomplete: "off",
    oninput: (event) => { clearTimeout(page.typing); page.typing = setTimeout(() => search(event.target.value), 120); },
  });
  const theme = el("button", { type: "button", onclick: flip, title: "Light or dark (t)" }, "Light / dark");
  const help = el("button", { type: "button", onclick: showHelp, title: "Keys (?)" }, "Keys");
  const tools = el("div", { class: "tools" }, box, el("span", { id: "found", role: "status" }), theme, help);
  document.getElementById("top").replaceChildren(
    el("div", { class: "bar" }, el("div", {}, el("h1", {}, title), el("p", { class: "said" }, said)), tools),
    el("nav", { "aria-label": "Sections", id: "sections" }),
  );
}

function flip() {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
}

const showHelp = () => dialogOf("Keys", pairs(HELP));

// Puts sections onto the page, made by a function because the tables and charts in them register themselves.
function show(make) {
  page.tables = [];
  page.drawn.clear();
  const main = document.getElementById("main");
  main.replaceChildren(...make().filter(Boolean));
  const titles = [...main.querySelectorAll("section > h2")];
  document.getElementById("sections").replaceChildren(
    ...titles.map((title) => el("a", { href: `#${title.parentElement.id}` }, title.textContent)),
  );
  drawAll();
}

function step(by) {
  const here = document.activeElement.closest?.("table") ?? document.querySelector("main table:has(.row)");
  const rows = [...(here?.querySelectorAll(".row") ?? [])].filter((button) => !button.closest("tr").hidden);
  const at = rows.indexOf(document.activeElement);
  rows[Math.max(0, Math.min(rows.length - 1, at + by))]?.focus();
}

document.addEventListener("keydown", (event) => {
  const typing = /^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName);
  if (event.key === "Escape" && event.target.id === "search") { event.target.value = ""; search(""); event.target.blur(); }
  if (typing || event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  const inRow = event.target.classList?.contains("row");
  if (event.key === "/") document.getElementById("search").focus();
  else if (event.key === "t") flip();
  else if (event.key === "?") showHelp();
  else if (event.key === "j" || (inRow && event.key === "ArrowDown")) step(1);
  else if (event.key === "k" || (inRow && event.key === "ArrowUp")) step(-1);
  else if (/^[1-9]$/.test(event.key)) document.querySelectorAll("#sections a")[event.key - 1]?.click();
  else return;
  event.preventDefault();
});

let width = null; // the first report is of what is drawn already
new ResizeObserver(([{ contentRect }]) => {
  const before = width;
  width = contentRect.width;
  if (before !== null && Math.abs(width - before) > 4) drawAll();
}).observe(document.getElementById("main"));
