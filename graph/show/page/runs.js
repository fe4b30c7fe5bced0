"use strict";
// The list of runs; its page is a server's.

function draw() {
  header("Runs", page.data.folder);
  show(() => [section("runs", "Runs", page.data.runs.length ? table("Every run, the newest first", [
    { name: "run", value: (row) => row.id, show: (row) => el("a", { class: "row", href: `/runs/${encodeURIComponent(row.id)}` }, row.id) },
    { name: "task", value: (row) => row.task }, { name: "verdict", value: (row) => row.verdict },
    { name: "speedup", number: true, value: (row) => row.speedup, show: (row) => times(row.speedup) },
    { name: "evaluations", number: true, value: (row) => row.evaluations },
    { name: "experts", value: (row) => row.brain }, { name: "device", value: (row) => row.device },
    { name: "began", value: (row) => row.created },
  ], page.data.runs, { searched: (row) => JSON.stringify(row) }) : el("p", { class: "quiet" }, "There is no run yet: foundry agent solve TASK"))]);
}

draw();
