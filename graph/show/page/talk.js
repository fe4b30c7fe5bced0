"use strict";
// A box to talk to the experts of a run, above its page.

const talk = el("ul", { class: "said-list", id: "talk", "aria-live": "polite" });
const line = el("input", { id: "words", "aria-label": "Say to the experts", placeholder: "@tiling unroll 4, pause, why c17, best, ...", autocomplete: "off" });

async function speak(event) {
  event.preventDefault();
  const words = line.value.trim();
  if (!words) return;
  line.value = "";
  const answer = await fetch(`${here}/say`, {
    method: "POST", credentials: "same-origin", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ words }),
  });
  const told = answer.ok ? (await answer.json()).text : await answer.text();
  talk.append(el("li", {}, el("strong", {}, words), el("pre", {}, told)));
  talk.scrollTop = talk.scrollHeight;
}

document.getElementById("main").before(
  el("section", { class: "talking", "aria-label": "Talk to the experts" }, talk,
    el("form", { class: "talk", onsubmit: speak }, line, el("button", { type: "submit" }, "Say"))),
);
