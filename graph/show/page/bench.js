"use strict";
// The page of a bench.

const number = (value) => (known(value) ? value.toFixed(1) : "–");
const OURS = "#3b82c4", THEIRS = "#d9822b";

function openTask({ result, page: link }) {
  dialogOf(result.task, link ? el("p", {}, el("a", { href: encodeURI(`./${link}`) }, "The page of its run")) : null, pairs([
    ["verdict", result.verdict], ["why there is no kernel", result.reason], ["does not count", result.excluded],
    ["speedup over eager", known(result.speedup) ? `${times(result.speedup)} ${result.speedup_ci95 ? `(95 %: ${result.speedup_ci95.map((bound) => bound.toFixed(2)).join(" to ")})` : ""}` : ""],
    ["times", known(result.candidate_ms) ? `${ms(result.candidate_ms)} against ${ms(result.baseline_ms)} eager` : ""],
    ["over eager, default arithmetic", times(result.speedup_vs_eager)], ["over torch.compile", times(result.speedup_vs_compile)],
    ["over torch.compile, max-autotune", times(result.speedup_vs_autotune)],
    ["of the roofline floor", percent(result.fraction_of_floor)], ["peak memory over eager's", times(result.peak_memory_ratio)],
    ["accuracy class", result.accuracy_class], ["labels", result.labels.join(", ")],
    ["by other rules", result.foreign ? `${result.foreign.rules}: ${result.foreign.correct ? "correct" : `${result.foreign.trials}: ${result.foreign.evidence}`}` : ""],
    ["evaluations", String(result.evaluations)], ["wall time", seconds(result.wall_s)],
    ["spent", Object.entries(result.spent_s).map(([name, value]) => `${name} ${value.toFixed(1)} s`).join(", ")],
    ["notes", result.notes.join("; ")], ["run", result.run], ["finished", result.finished],
  ]));
}

function opened(plot) {
  plot.addEventListener("click", () => plot.value && openTask(plot.value));
  return plot;
}

const shown = (one) => !page.found || page.found.has(one.result.task);

function speedups(tasks, width) {
  const rows = d3.sort(tasks.filter((one) => one.is_accepted && shown(one)), (one) => one.result.speedup);
  if (!rows.length) return el("p", { class: "quiet" }, "No task has an accepted kernel.");
  rows.forEach((one, index) => { one.n = index + 1; });
  const timed = rows.filter((one) => known(one.result.compile_speedup));
  const title = (one) => `${one.result.task}\n${times(one.result.speedup)} over eager${known(one.result.speedup_vs_compile) ? `, ${times(one.result.speedup_vs_compile)} over torch.compile` : ""}`;
  return opened(Plot.plot({
    style: { background: "transparent", fontSize: "12px" }, width, height: 360, marginLeft: 50, marginBottom: 42, grid: true,
    x: { label: "tasks, the slowest gain first" }, y: { type: "log", label: "speedup over PyTorch eager", ticks: 6, tickFormat: (value) => `${Number(value.toPrecision(3))}x` },
    color: { domain: ["this kernel", "torch.compile"], range: [OURS, THEIRS], legend: true },
    marks: [
      Plot.ruleY([1], { strokeDasharray: "4 3" }),
      Plot.link(rows.filter((one) => one.result.speedup_ci95), { x: "n", y1: (one) => one.result.speedup_ci95[0], y2: (one) => one.result.speedup_ci95[1], stroke: OURS }),
      Plot.dot(timed, { x: "n", y: (one) => one.result.compile_speedup, stroke: () => "torch.compile", symbol: "diamond" }),
      Plot.dot(rows, { x: "n", y: (one) => one.result.speedup, fill: () => "this kernel" }),
      Plot.tip(rows, Plot.pointerX({ x: "n", y: (one) => one.result.speedup, title })),
    ],
  }));
}

function fastCurve(tasks, width) {
  const counted = tasks.filter((one) => !one.result.excluded);
  const bars = d3.range(-140, 281).map((step) => 2 ** (step / 40));
  const shares = (name, of) => bars.map((p) => ({ name, p, share: counted.filter((one) => (of(one) ?? 0) > p).length / Math.max(1, counted.length) }));
  const rows = [...shares("this kernel", (one) => (one.is_accepted ? one.result.speedup : null)), ...shares("torch.compile", (one) => one.result.compile_speedup)];
  return Plot.plot({
    style: { background: "transparent", fontSize: "12px" }, width, height: 280, marginLeft: 50, marginBottom: 42, grid: true,
    x: { type: "log", label: "p: times as fast as eager", ticks: 6, tickFormat: (value) => `${Number(value.toPrecision(3))}x` }, y: { label: "share of the tasks that count", percent: true, domain: [0, 100] },
    color: { domain: ["this kernel", "torch.compile"], range: [OURS, THEIRS], legend: true },
    marks: [Plot.ruleX([1], { strokeDasharray: "4 3" }), Plot.line(rows, { x: "p", y: "share", stroke: "name" })],
  });
}

function floors(tasks, width) {
  const rows = tasks.filter((one) => one.is_accepted && known(one.result.fraction_of_floor) && shown(one));
  if (!rows.length) return el("p", { class: "quiet" }, "No floor is known.");
  return opened(Plot.plot({
    style: { background: "transparent", fontSize: "12px" }, width, height: 280, marginLeft: 50, marginBottom: 42, grid: true,
    x: { type: "log", label: "ms a call", ticks: 6, tickFormat: (value) => String(Number(value.toPrecision(3))) }, y: { label: "of the roofline floor", percent: true },
    marks: [
      Plot.ruleY([1], { strokeDasharray: "4 3" }),
      Plot.dot(rows, { x: (one) => one.result.candidate_ms, y: (one) => one.result.fraction_of_floor, stroke: OURS }),
      Plot.tip(rows, Plot.pointer({ x: (one) => one.result.candidate_ms, y: (one) => one.result.fraction_of_floor, title: (one) => `${one.result.task}\n${percent(one.result.fraction_of_floor)} of the floor` })),
    ],
  }));
}

function figuresSection({ figures, correct }) {
  return section("figures", "Figures", table("Groups of tasks", [
    { name: "group", value: (row) => row.group }, { name: "tasks", number: true, value: (row) => row.tasks },
    { name: "count", number: true, value: (row) => row.counted },
    { name: "correct", number: true, value: (row) => row.correct, show: (row) => percent(row.correct) },
    { name: "geomean", number: true, value: (row) => row.geomean, show: (row) => times(row.geomean) },
    { name: "geomean, else 1.0x", number: true, value: (row) => row.geomean_of_all, show: (row) => times(row.geomean_of_all) },
    { name: "median", number: true, value: (row) => row.median, show: (row) => times(row.median) },
    { name: "fast_1", number: true, value: (row) => row.fast_1, show: (row) => percent(row.fast_1) },
    { name: "fast_1.2", number: true, value: (row) => row.fast_1_2, show: (row) => percent(row.fast_1_2) },
    { name: "fast_2", number: true, value: (row) => row.fast_2, show: (row) => percent(row.fast_2) },
    { name: "over torch.compile", number: true, value: (row) => row.compiled.by_kernel, show: (row) => times(row.compiled.by_kernel) },
    { name: "of the floor", number: true, value: (row) => row.fraction_of_floor, show: (row) => percent(row.fraction_of_floor) },
    { name: "s a task", number: true, value: (row) => row.task_s, show: (row) => number(row.task_s) },
  ], figures.map((one, index) => ({ ...one, correct: correct[index] }))));
}

function tasksSection({ tasks }) {
  return section("tasks", "Tasks", table("Every task; Enter on its name opens it", [
    { name: "task", value: (row) => row.result.task },
    { name: "verdict", value: (row) => row.result.excluded || row.result.verdict },
    { name: "speedup", number: true, value: (row) => row.result.speedup, show: (row) => times(row.result.speedup) },
    { name: "eager", number: true, value: (row) => row.result.baseline_ms, show: (row) => ms(row.result.baseline_ms) },
    { name: "kernel", number: true, value: (row) => row.result.candidate_ms, show: (row) => ms(row.result.candidate_ms) },
    { name: "over torch.compile", number: true, value: (row) => row.result.speedup_vs_compile, show: (row) => times(row.result.speedup_vs_compile) },
    { name: "of the floor", number: true, value: (row) => row.result.fraction_of_floor, show: (row) => percent(row.result.fraction_of_floor) },
    { name: "s", number: true, value: (row) => row.result.wall_s, show: (row) => number(row.result.wall_s) },
    { name: "why not, or labels", wide: true, value: (row) => row.result.reason || row.result.labels.join(", ") },
  ], tasks, { key: (row) => row.result.task, open: openTask, searched: (row) => JSON.stringify(row.result) }));
}

const facts = page.data;
header(`Bench ${facts.name}`, Object.entries(facts.versions).map(([name, version]) => `${name} ${version}`).join(", "));
show(() => [
  figuresSection(facts),
  section("speedups", "Speedups", chart("Speedup of each task", (width) => speedups(facts.tasks, width))),
  section("fast", "fast_p", chart("Share of tasks that are faster than p", (width) => fastCurve(facts.tasks, width))),
  section("floor", "Floor", chart("How near to the roofline floor", (width) => floors(facts.tasks, width))),
  tasksSection(facts),
]);
