"use strict";
// Keeps a page as it is now: the server says when something has happened, the page asks for it and is drawn anew, with
// what the reader had opened, chosen and typed.

const here = location.pathname.replace(/\/$/, "");
const liveness = el("span", { class: "said", role: "status", id: "live" }, "live");
let waiting = false;

async function refresh() {
  if (document.querySelector("dialog[open]")) { waiting = true; return; }
  waiting = false;
  const answer = await fetch(`${here}/data`, { credentials: "same-origin" });
  if (!answer.ok) { liveness.textContent = await answer.text(); return; }
  const kept = {
    words: document.getElementById("search").value, top: scrollY,
    open: new Set([...document.querySelectorAll("main details[open] > summary")].map((summary) => summary.textContent)),
    chosen: [...document.querySelectorAll("main select")].map((select) => [select.id, select.value]),
    focus: document.activeElement.id, row: document.activeElement.classList.contains("row") ? document.activeElement.textContent : "",
  };
  page.data = read(await answer.text());
  draw();
  document.getElementById("top").append(liveness);
  for (const [id, value] of kept.chosen) document.getElementById(id).value = value;
  for (const summary of document.querySelectorAll("main details > summary")) {
    if (kept.open.has(summary.textContent)) summary.parentElement.open = true;
  }
  const box = document.getElementById("search");
  box.value = kept.words;
  if (kept.words) search(kept.words);
  drawAll({ far: true }); // so that the page is as long as it was
  if (kept.focus) document.getElementById(kept.focus)?.focus({ preventScroll: true });
  else if (kept.row) [...document.querySelectorAll("main .row")].find((one) => one.textContent === kept.row)?.focus({ preventScroll: true });
  scrollTo(0, kept.top);
  liveness.textContent = `live, ${new Date().toLocaleTimeString()}`;
}

document.getElementById("top").append(liveness);
document.addEventListener("close", () => waiting && refresh(), true);
const news = new EventSource(`${here}/news`);
news.addEventListener("state", (event) => event.data !== page.data.change && refresh());
news.addEventListener("error", () => { liveness.textContent = "the server does not answer; it is asked again"; });
news.addEventListener("open", () => { liveness.textContent = "live"; });
