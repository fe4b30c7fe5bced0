"use strict";
// The charts, each a function of the data and a width. Shape: kind of change; red: failed; gold: the best.

const CHANGES = ["seed", "numbers", "fusion", "rewrite", "code"];
const SHAPES = { domain: CHANGES, range: ["star", "circle", "square", "triangle", "diamond"], legend: true };
const WORK = ["thinking", "compile", "run", "time", "profile"];
const FAILED = "#e5484d", GOLD = "#f5b301";
const LOOK = { style: { background: "transparent", fontSize: "12px" } };
const faded = (one) => (page.found && !page.found.has(one.id) ? 0.15 : 1);
const place = (island) => (island < 0 ? "seeds" : `island ${island}`);
const titleOf = (one) =>
  [`${one.id}  ${times(one.speedup)} ${interval(one)}`, `${place(one.island)}, ${one.expert}: ${one.change}`,
    one.moves.slice(0, 3).join(", "), one.verdict === "accepted" ? "" : `${one.outcome}: ${one.evidence.slice(0, 120)}`]
    .filter(Boolean).join("\n");

function opening(plot, open) {
  plot.addEventListener("click", () => plot.value && open(plot.value));
  return plot;
}

const nothing = (words) => el("p", { class: "quiet" }, words);

function numbered(candidates) {
  return candidates.map((one, index) => ({ ...one, n: index + 1, ok: one.verdict === "accepted" && known(one.speedup) }));
}

function bestSoFar(all) {
  const lines = [];
  for (const [island, members] of d3.group(all.filter((one) => one.ok), (one) => one.island)) {
    let best = 0;
    for (const one of members) {
      best = Math.max(best, one.speedup);
      lines.push({ n: one.n, island, speedup: best });
    }
    lines.push({ n: all.length, island, speedup: best });
  }
  return lines;
}

function speedupChart(candidates, best, open, width) {
  const all = numbered(candidates);
  const good = all.filter((one) => one.ok), bad = all.filter((one) => !one.ok);
  if (!good.length) return nothing("No candidate is correct and timed yet.");
  const low = 0.9 * d3.min(good, (one) => one.speedup);
  return opening(Plot.plot({
    ...LOOK, width, height: 340, marginLeft: 50, marginBottom: 42, grid: true,
    x: { label: "evaluation" },
    y: { type: "log", label: "speedup over PyTorch eager", tickFormat: (value) => `${Number(value.toPrecision(3))}x`, ticks: 6 },
    color: { domain: d3.sort(new Set(all.map((one) => one.island))).map(place), legend: true },
    symbol: SHAPES,
    marks: [
      Plot.ruleY([1], { strokeDasharray: "4 3" }),
      Plot.line(bestSoFar(all), { x: "n", y: "speedup", z: "island", stroke: (one) => place(one.island), curve: "step-after", strokeWidth: 1.5 }),
      Plot.dot(bad, { x: "n", y: low, symbol: "times", stroke: FAILED, r: 3, strokeOpacity: faded }),
      Plot.dot(good, { x: "n", y: "speedup", stroke: (one) => place(one.island), symbol: "change", r: 3.5, strokeOpacity: faded }),
      Plot.dot(good.filter((one) => one.id === best), { x: "n", y: "speedup", fill: GOLD, stroke: "currentColor", symbol: "change", r: 7 }),
      Plot.tip(all, Plot.pointer({ x: "n", y: (one) => (one.ok ? one.speedup : low), title: titleOf })),
    ],
  }), open);
}

function lineageChart(candidates, best, line, open, width) {
  const all = numbered(candidates), ids = new Set(all.map((one) => one.id));
  if (!all.length) return nothing("Nothing was evaluated yet.");
  const parent = (one) => one.parents.find((id) => ids.has(id)) ?? "";
  const ordered = new Map(all.map((one) => [one.id, one]));
  const rows = [{ id: "" }, ...all.map((one) => ({ ...one, above: ordered.get(parent(one))?.n < one.n ? parent(one) : "" }))];
  const root = d3.tree().nodeSize([15, 1])(d3.stratify().id((one) => one.id || "root").parentId((one) =>
    one.id ? one.above || "root" : null)(rows));
  const nodes = root.descendants().filter((node) => node.depth).map((node) => ({ ...node.data, x: node.depth, y: node.x }));
  const links = root.links().filter((link) => link.source.depth)
    .map(({ source, target }) => ({ x1: source.depth, y1: source.x, x2: target.depth, y2: target.x, id: target.data.id }));
  const inLine = new Set(line);
  const [top, bottom] = d3.extent(nodes, (one) => one.y);
  const wide = Math.max(width, 60 + 26 * root.height);
  const plot = Plot.plot({
    ...LOOK, width: wide, height: Math.max(140, bottom - top + 70), marginLeft: 20, marginRight: 30,
    x: { axis: null }, y: { axis: null }, symbol: SHAPES,
    color: { type: "log", scheme: "viridis", label: "speedup", legend: true, tickFormat: ".2~f" },
    marks: [
      Plot.link(links, { x1: "x1", y1: "y1", x2: "x2", y2: "y2", stroke: (one) => (inLine.has(one.id) ? GOLD : "gray"), strokeWidth: (one) => (inLine.has(one.id) ? 2.5 : 0.8), curve: "bump-x" }),
      Plot.dot(nodes.filter((one) => one.ok), { x: "x", y: "y", fill: "speedup", stroke: "currentColor", strokeWidth: 0.5, symbol: "change", r: 5, opacity: faded }),
      Plot.dot(nodes.filter((one) => !one.ok), { x: "x", y: "y", fill: FAILED, symbol: "change", r: 4, opacity: faded }),
      Plot.dot(nodes.filter((one) => one.id === best), { x: "x", y: "y", fill: GOLD, stroke: "currentColor", symbol: "change", r: 9 }),
      Plot.text(nodes.filter((one) => inLine.has(one.id)), { x: "x", y: "y", text: "id", dy: -13 }),
      Plot.tip(nodes, Plot.pointer({ x: "x", y: "y", title: titleOf })),
    ],
  });
  return el("div", { class: "scroll tall", tabindex: "0", role: "region", "aria-label": "Lineage" }, opening(plot, open));
}

function rooflineChart(candidates, roof, best, open, width) {
  const all = numbered(candidates).filter((one) => one.ok && one.bytes_per_s > 0 && one.flops_per_s > 0)
    .map((one) => ({ ...one, intensity: one.flops_per_s / one.bytes_per_s }));
  if (!all.length || !roof.bytes_per_s || !roof.flops_per_s) {
    return nothing("The task does no arithmetic that is counted, or the device's rates are not known: see the times below.");
  }
  const ridge = roof.flops_per_s / roof.bytes_per_s;
  const [low, high] = d3.extent([...all.map((one) => one.intensity), ridge]);
  const line = [low / 4, ridge, high * 4].map((x) => ({ x, y: Math.min(roof.flops_per_s, x * roof.bytes_per_s) }));
  const floors = roof.floor_ms ? d3.groups(all, (one) => Number(one.intensity.toPrecision(3))).map(([, [one]]) =>
    ({ x: one.intensity, y: (one.flops_per_s * one.candidate_ms) / roof.floor_ms })) : [];
  return opening(Plot.plot({
    ...LOOK, width, height: 340, marginLeft: 60, marginBottom: 42, grid: true, symbol: SHAPES,
    x: { type: "log", label: "operations a byte", ticks: 6 },
    y: { type: "log", label: "operations a second", tickFormat: "~s", ticks: 6 },
    marks: [
      Plot.line(line, { x: "x", y: "y", strokeWidth: 2 }),
      Plot.dot(floors, { x: "x", y: "y", symbol: "plus", stroke: "currentColor", r: 8, strokeWidth: 2 }),
      Plot.text(floors, { x: "x", y: "y", text: () => "floor", dx: 12, textAnchor: "start" }),
      Plot.dot(all, { x: "intensity", y: "flops_per_s", stroke: "#3b82c4", symbol: "change", strokeOpacity: faded }),
      Plot.dot(all.filter((one) => one.id === best), { x: "intensity", y: "flops_per_s", fill: GOLD, stroke: "currentColor", symbol: "change", r: 7 }),
      Plot.tip(all, Plot.pointer({ x: "intensity", y: "flops_per_s", title: (one) => `${titleOf(one)}\n${rate(one.flops_per_s, "FLOP/s")}, ${rate(one.bytes_per_s, "B/s")}, ${percent(one.floor_share)} of the floor` })),
    ],
  }), open);
}

function timesChart(candidates, lines, best, open, width) {
  const all = numbered(candidates).filter((one) => one.ok);
  if (!all.length) return nothing("No candidate is correct and timed yet.");
  return opening(Plot.plot({
    ...LOOK, width, height: 300, marginLeft: 60, marginRight: 110, marginBottom: 42, grid: true, symbol: { ...SHAPES, legend: false },
    x: { label: "evaluation" }, y: { type: "log", label: "ms a call", ticks: 6, tickFormat: (value) => String(Number(value.toPrecision(3))) },
    marks: [
      Plot.ruleY(lines, { y: "ms", strokeDasharray: "4 3" }),
      Plot.text(lines, { y: "ms", text: "name", frameAnchor: "right", textAnchor: "start", dx: 6 }),
      Plot.dot(all, { x: "n", y: "candidate_ms", stroke: "#3b82c4", symbol: "change", strokeOpacity: faded }),
      Plot.dot(all.filter((one) => one.id === best), { x: "n", y: "candidate_ms", fill: GOLD, stroke: "currentColor", symbol: "change", r: 7 }),
      Plot.tip(all, Plot.pointer({ x: "n", y: "candidate_ms", title: (one) => `${ms(one.candidate_ms)}\n${titleOf(one)}` })),
    ],
  }), open);
}

function timelineChart(facts, zoom, width) {
  if (!facts.spans.length) return nothing("Nobody has worked yet.");
  const lanes = d3.sort(new Set(facts.spans.map((span) => span.island))).map((island) => (island < 0 ? "run" : place(island)));
  const lane = (span) => (span.island < 0 ? "run" : place(span.island));
  const plot = Plot.plot({
    ...LOOK, width: width * zoom, height: 70 + 44 * lanes.length, marginLeft: 62, marginTop: 28, marginBottom: 42,
    x: { label: "seconds from the start", grid: true }, y: { domain: lanes, label: null },
    color: { domain: WORK, scheme: "observable10", legend: true },
    marks: [
      Plot.barX(facts.spans, { x1: "start_s", x2: "end_s", y: lane, fill: "kind", fillOpacity: 0.8, insetTop: 4, insetBottom: 4 }),
      Plot.ruleX(facts.directives, { x: "posted_s", stroke: GOLD, strokeWidth: 2 }),
      Plot.text(facts.directives, { x: "posted_s", text: "id", frameAnchor: "top", dy: -12 }),
      Plot.tip(facts.spans, Plot.pointer({
        x: (span) => (span.start_s + span.end_s) / 2, y: lane,
        title: (span) => `${span.name} (${span.step})\n${seconds(span.end_s - span.start_s)}${span.waited_s > 0.05 ? `, ${seconds(span.waited_s)} of it waiting` : ""}\n${span.label}`,
      })),
    ],
  });
  return el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Timeline" }, plot);
}

function splitChart(split, width) {
  const rows = Object.entries(split).filter(([name]) => /_s$/.test(name) && !/^(alone|device)_/.test(name))
    .map(([name, value]) => ({ name: name.slice(0, -2), value }));
  return Plot.plot({
    ...LOOK, width, height: 56 + 26 * rows.length, marginLeft: 80, marginBottom: 42, x: { label: "seconds", grid: true }, y: { label: null, domain: rows.map((row) => row.name) },
    marks: [Plot.barX(rows, { x: "value", y: "name", fill: "#3b82c4" }), Plot.text(rows, { x: "value", y: "name", text: (row) => row.value.toFixed(1), dx: 4, textAnchor: "start" })],
  });
}
