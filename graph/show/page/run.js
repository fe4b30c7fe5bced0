"use strict";
// The page of a run.

const find = (id) => page.data.candidates.find((one) => one.id === id);

function openCandidate(one) {
  const parent = one.parents.map(find).find(Boolean);
  dialogOf(`${one.id}: ${one.verdict === "accepted" ? times(one.speedup) : one.outcome}`, pairs([
    ["made by", `${one.expert}${one.brain ? ` (${one.brain})` : ""} on ${place(one.island)}${one.step ? ` at ${one.step}` : ""}`],
    ["kind of change", one.change],
    ["from", one.parents.map((id) => (find(id) ? `${id} (${times(find(id).speedup)})` : id)).join(", ")],
    ["moves", one.moves.join("; ")],
    ["diagnosis of its parent", one.diagnosis],
    ["why", one.rationale],
    ["expected", one.expected],
    ["follows", one.cites.join(", ")],
    ["ruling", `${one.verdict} (${one.outcome}, ${one.stage})`],
    ["evidence", one.evidence],
    ["speedup over eager", known(one.speedup) ? `${times(one.speedup)} (95 %: ${interval(one)})` : ""],
    ["over its parent", parent && known(parent.speedup) && known(one.speedup) ? times(one.speedup / parent.speedup) : ""],
    ["time", known(one.candidate_ms) ? ms(one.candidate_ms) : ""],
    ["of the roofline floor", known(one.floor_share) ? percent(one.floor_share) : ""],
    ["rates", known(one.bytes_per_s) ? `${rate(one.bytes_per_s, "B/s")}, ${rate(one.flops_per_s, "FLOP/s")}` : ""],
    ["limited by", one.limiter],
    ["labels", one.labels.join(", ")],
  ]));
}

// The two times of a row were taken in turns; those of two rows may be minutes apart.
function baselines({ summary }) {
  const { contest } = summary;
  const rows = [
    { name: "PyTorch eager (the baseline)", ms: summary.baseline_ms, ours: summary.candidate_ms, over: 1, by: summary.speedup },
    ...(contest?.rivals ?? []).map((one) => ({ name: one.name === "eager" ? "eager, default arithmetic" : `torch.${one.name}`, ms: one.ms, ours: contest.candidate_ms, over: one.over_baseline, by: one.by_kernel, problem: one.problem })),
  ];
  const ours = summary.candidate ? `kernel (${summary.candidate})` : "kernel";
  return table("The kernel beside other ways to run the reference; the two times of a row were taken in turns", [
    { name: "way", value: (row) => row.name },
    { name: "time", number: true, value: (row) => row.ms, show: (row) => (row.problem ? row.problem : ms(row.ms)) },
    { name: ours, number: true, value: (row) => row.ours, show: (row) => (row.problem ? "–" : ms(row.ours)) },
    { name: "faster by", number: true, value: (row) => row.by, show: (row) => times(row.by) },
    { name: "over eager", number: true, value: (row) => row.over, show: (row) => (row.problem ? "–" : times(row.over)) },
  ], rows);
}

function verdictSection(facts) {
  const { summary } = facts;
  const gain = known(summary.speedup) ? `${times(summary.speedup)} over PyTorch eager` : "no kernel yet";
  const sure = summary.speedup_ci95 ? `95 % interval ${summary.speedup_ci95[0].toFixed(2)} to ${summary.speedup_ci95[1].toFixed(2)}` : "";
  return section("verdict", "Verdict",
    el("p", { class: `verdict ${summary.verdict === "accepted" ? "good" : ""}` }, el("strong", {}, `${summary.verdict}: ${gain}`), sure ? ` (${sure})` : ""),
    baselines(facts),
    el("details", {}, el("summary", {}, "All that the run said at its end"), el("pre", { tabindex: "0" }, facts.verdict_lines.join("\n"))),
    pairs([
      ["task", summary.task], ["device", facts.device], ["began", facts.created],
      ["asked", Object.entries(facts.asked).map(([name, value]) => `${name} ${value}`).join(", ")],
      ["evaluations", `${summary.evaluations} of ${facts.budget.evaluations}`],
      ["wall time", `${seconds(summary.wall_s)}; the search may take ${facts.budget.minutes} minutes`],
      ["first correct kernel after", known(summary.first_verified_s) ? seconds(summary.first_verified_s) : ""],
      ["of the roofline floor", known(summary.fraction_of_floor) ? percent(summary.fraction_of_floor) : ""],
      ["accuracy class", summary.accuracy_class], ["labels", summary.labels.join(", ")],
      ["ended", summary.ending], ["asks", summary.question], ["notes", summary.notes.join("; ")],
      ["islands", Object.entries(summary.islands).map(([island, why]) => `${island}: ${why}`).join("; ")],
    ]),
  );
}

function timelineSection() {
  const zoom = el("select", { id: "zoom", onchange: () => drawAll() }, [1, 4, 16].map((times) => el("option", { value: times }, `${times}x`)));
  const cut = page.data.span_count > page.data.spans.length ? ` The longest ${count(page.data.spans.length)} of ${count(page.data.span_count)} spans are shown.` : "";
  return section("timeline", "Timeline", el("p", {}, el("label", { for: "zoom" }, "Zoom "), zoom, ` Experts and tools at work; gold: what users said.${cut}`),
    chart("Timeline of experts and tools", (width) => timelineChart(page.data, Number(zoom.value), width)));
}

function directivesSection(facts) {
  const effect = (one) => `${one.expert}: ${one.candidate} ${one.outcome === "correct" ? times(one.speedup) : one.outcome}${known(one.lift) ? ` (${one.lift >= 1 ? "+" : ""}${(100 * (one.lift - 1)).toFixed(0)} % over its parent)` : ""}`;
  const outcome = ({ effects }) => {
    if (effects.length < 4) return effects.map(effect).join("; ") || "no candidate cites it";
    const best = d3.greatest(effects.filter((one) => one.outcome === "correct"), (one) => one.speedup);
    const said = `${effects.length} candidates cite it${best ? `; the best is ${effect(best)}` : ""}`;
    return el("details", {}, el("summary", {}, said), effects.map(effect).join("; "));
  };
  return section("directives", "Directives", facts.directives.length ? table("What users said, and what came of it", [
    { name: "id", value: (row) => Number(row.id.slice(1)), show: (row) => row.id },
    { name: "said", wide: true, value: (row) => row.text },
    { name: "at", number: true, value: (row) => row.posted_s, show: (row) => (row.posted_s < 0 ? "the task" : seconds(row.posted_s)) },
    { name: "taken by", wide: true, value: (row) => row.taken.length, show: (row) => row.taken.join("; ") || "nobody yet" },
    { name: "what came of it", wide: true, value: (row) => row.effects.length, show: outcome },
  ], facts.directives, { searched: (row) => JSON.stringify(row) }) : nothing("Nobody said anything to this run."));
}

function costSection(facts) {
  const { summary } = facts;
  const dollars = (value) => (summary.priced ? `$${value.toFixed(4)}` : "unknown");
  return section("cost", "Cost", pairs([
    ["models", facts.models.join("\n")], ["tokens", count(summary.tokens)], ["dollars", dollars(summary.dollars)],
    ["nobody at work", `${seconds(summary.time.overhead_s)} (${percent(summary.time.overhead_share)} of the wall time)`],
  ]), chart("Seconds by kind of work; islands work side by side, so they may add up to more than the wall time", (width) => splitChart(facts.summary.time, width)),
  table("Experts", [
    { name: "expert", value: (row) => row.expert },
    { name: "seconds", number: true, value: (row) => row.seconds, show: (row) => row.seconds.toFixed(1) },
    { name: "requests", number: true, value: (row) => row.calls },
    { name: "unanswered", number: true, value: (row) => row.failed_calls },
    { name: "tokens in", number: true, value: (row) => row.prompt_tokens, show: (row) => count(row.prompt_tokens) },
    { name: "tokens out", number: true, value: (row) => row.answer_tokens, show: (row) => count(row.answer_tokens) },
    { name: "cost", number: true, value: (row) => row.dollars, show: (row) => dollars(row.dollars) },
    { name: "candidates", number: true, value: (row) => row.proposals },
    { name: "accepted", number: true, value: (row) => row.correct },
    { name: "better than their parent", number: true, value: (row) => row.better },
    { name: "best", number: true, value: (row) => row.best, show: (row) => times(row.best) },
  ], facts.experts));
}

function candidatesSection(facts) {
  return section("candidates", "Candidates", table("Every candidate; Enter on its name opens it", [
    { name: "name", value: (row) => Number(row.id.slice(1)), show: (row) => row.id },
    { name: "speedup", number: true, value: (row) => row.speedup, show: (row) => times(row.speedup) },
    { name: "95 %", value: (row) => row.low, show: (row) => interval(row) || "–" },
    { name: "ruling", value: (row) => row.outcome, show: (row) => (row.verdict === "accepted" ? "accepted" : row.outcome) },
    { name: "stage", value: (row) => row.stage },
    { name: "island", value: (row) => row.island, show: (row) => place(row.island) },
    { name: "expert", value: (row) => row.expert },
    { name: "change", value: (row) => row.change },
    { name: "from", value: (row) => row.parents.join(", ") },
    { name: "moves, or why not", wide: true, value: (row) => row.moves.join("; ").slice(0, 160) || row.evidence.slice(0, 160) },
  ], facts.candidates, { key: (row) => row.id, open: openCandidate, searched: (row) => JSON.stringify(row) }));
}

function codeSection(facts) {
  if (!facts.ancestry) return null;
  const { candidate, code, line, diffs } = facts.ancestry;
  return section("code", "Code", el("p", {}, `Ancestors: ${line.join(" ← ")}`),
    diffs.map(([child, parent, text]) => el("details", {}, el("summary", {}, `${parent} → ${child}: ${(find(child)?.moves ?? []).join("; ") || "what changed"}`), codeBlock(`${parent} to ${child}`, text, { isDiff: true }))),
    el("details", { open: diffs.length === 0 }, el("summary", {}, `The file of ${candidate}`), codeBlock(`File of ${candidate}`, code)));
}

function draw() {
  const facts = page.data, { summary } = facts;
  header(`${summary.task} on ${facts.device}`, facts.id);
  const lines = [
    { name: "eager", ms: summary.baseline_ms }, { name: "torch.compile", ms: summary.compile_ms },
    { name: "floor", ms: facts.roofline.floor_ms },
  ].filter((row) => row.ms > 0);
  show(() => [
    verdictSection(facts),
    section("speedup", "Speedup", chart("Speedup over evaluations, by island", (width) => speedupChart(page.data.candidates, summary.candidate, openCandidate, width))),
    section("lineage", "Lineage", chart("Lineage of all candidates", (width) => lineageChart(page.data.candidates, summary.candidate, facts.ancestry?.line ?? [], openCandidate, width))),
    section("roofline", "Roofline",
      chart("Roofline: correct candidates below the device's measured roof", (width) => rooflineChart(page.data.candidates, facts.roofline, summary.candidate, openCandidate, width)),
      chart("Times of correct candidates beside the baselines and the floor", (width) => timesChart(page.data.candidates, lines, summary.candidate, openCandidate, width))),
    timelineSection(), directivesSection(facts), costSection(facts), candidatesSection(facts), codeSection(facts),
  ]);
}

draw();
