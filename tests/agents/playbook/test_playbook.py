"""The playbook brain: deterministic, guided by diagnosis, experience and the user, and it never repeats itself."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from foundry.agents.expert import experts
from foundry.agents.playbook.brain import PlaybookBrain
from foundry.agents.playbook.ranking import rank
from foundry.agents.route import ranking, route
from foundry.agents.situation import Situation
from foundry.agents.tuning import is_untuned, tuned_mark
from foundry.knowledge.candidate import Recipe
from foundry.knowledge.experience.record import Credit
from foundry.knowledge.thought import Diagnosis, Directive, ExpertName, Proposal

LATENCY = Diagnosis("c1", None, "memory_latency", "8 GB/s is 40 % of the measured 20 GB/s", "unroll", "k0")
BANDWIDTH = Diagnosis("c1", None, "memory_bandwidth", "17 GB/s is 85 % of the measured 20 GB/s", "fuse", "k0")


async def propose(toy: Any, expert: ExpertName, brief: Any) -> Proposal | None:
    return await PlaybookBrain(toy.library).propose(expert, brief)


async def test_same_seed_and_step_give_the_same_proposals(toy: Any) -> None:
    steps = [toy.brief(diagnosis=LATENCY, step=f"i0g{step}") for step in range(12)]
    first = [await propose(toy, "tiling", brief) for brief in steps]
    again = [await propose(toy, "tiling", brief) for brief in steps]
    other = [await propose(toy, "tiling", replace(brief, seed=8)) for brief in steps]
    assert first == again
    assert [item.recipe for item in first if item] != [item.recipe for item in other if item]


async def test_search_visits_every_recipe_once_and_then_says_so(toy: Any) -> None:
    tried: set[str] = set()
    for step in range(400):
        proposal = await propose(
            toy, "fusion", toy.brief(diagnosis=BANDWIDTH, step=f"i0g{step}", tried=frozenset(tried))
        )
        if proposal is None:
            break
        assert proposal.recipe is not None and proposal.recipe.digest not in tried
        tried.add(proposal.recipe.digest)
    # passes=online, split relu, the rewrite, and the one pair of structural moves
    assert len(tried) == 4
    assert proposal is None


async def test_proposal_is_the_parent_after_its_moves(toy: Any) -> None:
    for step in range(20):
        brief = toy.brief(diagnosis=LATENCY, step=f"i0g{step}", stagnant_generations=3)
        proposal = await propose(toy, "tiling", brief)
        assert proposal is not None
        recipe = brief.lowered.recipe
        for move in proposal.moves:
            recipe = toy.library.apply(recipe, move)
        assert proposal.recipe == recipe
        assert {move.aspect for move in proposal.moves} <= set(experts()["tiling"].aspects)


async def test_rationale_carries_the_evidence_and_the_change(toy: Any) -> None:
    brief = toy.brief(Recipe("cpu", materialise=("relu",)), diagnosis=BANDWIDTH, role="fusion", step="i0g3")
    proposals = [await propose(toy, "fusion", replace(brief, step=f"i0g{step}")) for step in range(30)]
    fuse = next(item for item in proposals if item and any(move.kind == "fuse" for move in item.moves))
    assert "17 GB/s is 85 % of the measured 20 GB/s" in fuse.rationale
    assert "Keep relu in registers" in fuse.rationale
    assert "33.55 MB" in fuse.rationale  # one write and one read of 4096 x 1024 floats
    assert "33.55 MB less to move (50 % of the traffic)" in fuse.expected


def test_bandwidth_ranks_fusing_first_and_latency_ranks_unrolling_first(toy: Any) -> None:
    brief = toy.brief(Recipe("cpu", materialise=("relu",)), role="memory")
    moves = toy.library.moves(brief.lowered)
    best = rank(moves, experts()["fusion"], Situation(brief, BANDWIDTH))[0].move
    assert (best.kind, best.name) == ("fuse", "relu")
    scores = {
        (item.move.name, item.move.value): item.score
        for item in rank(moves, experts()["tiling"], Situation(brief, LATENCY))
        if item.move.kernel == "k0"
    }
    assert scores["unroll", 4] > scores["block", 64] > scores["block", 16]


def test_a_strategy_s_weight_outweighs_the_rules_of_thumb(toy: Any) -> None:
    brief = toy.brief(diagnosis=LATENCY)
    moves = toy.library.moves(brief.lowered)
    rules = [item.move.key for item in rank(moves, experts()["tiling"], Situation(brief, LATENCY))]
    assert rules[0] != "row:set:block=16"
    won = replace(brief, credits=(Credit("row:set:block=16", math.log(1.5), 0.1, 6, 6, 6, 6),))
    lost = replace(brief, credits=(Credit(rules[0], math.log(0.8), 0.1, 6, 6, 6, 0),))
    chosen = [replace(one, weights={it.move: math.exp(4 * it.log_effect) for it in one.credits}) for one in (won, lost)]
    assert rank(moves, experts()["tiling"], Situation(chosen[0], LATENCY))[0].move.key == "row:set:block=16"
    assert rank(moves, experts()["tiling"], Situation(chosen[1], LATENCY))[0].move.key != rules[0]
    for ranked in (rank(moves, experts()["tiling"], Situation(one, LATENCY)) for one in (won, lost)):  # told, no more
        assert [item.move.key for item in ranked] == rules and any(item.credit for item in ranked)


async def test_proposals_cite_the_experience_they_follow(toy: Any) -> None:
    won = Credit("row:set:unroll=4", math.log(3.0), 0.1, 6, 2, 6, 6, records=("ab12", "cd34"))
    brief = toy.brief(diagnosis=LATENCY, credits=(won,), weights={won.move: 80.0})
    proposals = [await propose(toy, "tiling", replace(brief, step=f"i0g{step}")) for step in range(10)]
    following = [item for item in proposals if item and any(move.key == "row:set:unroll=4" for move in item.moves)]
    assert len(following) >= 6  # a measured 3x is drawn most of the time, not always
    assert all({"xab12", "xcd34"} <= set(item.cites) for item in following)
    assert "credits it with 3.00x [2.47, 3.65] by 6 steps, 2 of this graph, 6 faster" in following[0].rationale


async def test_a_directive_is_followed_held_and_cited_until_it_is_lifted(toy: Any) -> None:
    pin = Directive(3, "tiling", "block 256", {"verb": "set", "name": "block", "value": 256})
    brief = toy.brief(diagnosis=LATENCY, directives=(pin,))
    assert route(brief, LATENCY) == "tiling"
    wish = await propose(toy, "tiling", brief)
    assert wish is not None and wish.recipe is not None
    assert wish.recipe.choices["k0"]["block"] == 256 and "d3" in wish.cites and "directive d3" in wish.rationale
    seen = Counter[Any]()
    for step in range(30):
        later = toy.brief(wish.recipe, diagnosis=LATENCY, directives=(pin,), step=f"i0g{step}")
        proposal = await propose(toy, "tiling", later)
        assert proposal is not None and proposal.recipe is not None and "d3" in proposal.cites
        seen[proposal.recipe.choices["k0"]["block"]] += 1
    assert seen == {256: 30}
    free = Directive(4, "tiling", "free block", {"verb": "free", "name": "block"})
    blocks = set()
    for step in range(30):
        freed = toy.brief(wish.recipe, diagnosis=LATENCY, directives=(pin, free), step=f"i0g{step}")
        proposal = await propose(toy, "tiling", freed)
        assert proposal is not None and proposal.recipe is not None and not proposal.cites
        blocks.add(proposal.recipe.choices["k0"]["block"])
    assert len(blocks) > 1


async def test_a_directive_for_another_island_does_not_bind_this_one(toy: Any) -> None:
    pin = Directive(3, "tiling", "block 256", {"verb": "set", "name": "block", "value": 256}, island=2)
    here = await propose(toy, "tiling", toy.brief(diagnosis=LATENCY, directives=(pin,)))
    plain = await propose(toy, "tiling", toy.brief(diagnosis=LATENCY))
    assert here == plain


async def test_keep_bias_forbids_the_split_and_restores_what_was_split(toy: Any) -> None:
    keep = Directive(5, "fusion", "keep relu in the epilogue", {"verb": "keep", "name": "relu"})
    restore = await propose(
        toy, "fusion", toy.brief(Recipe("cpu", materialise=("relu",)), diagnosis=BANDWIDTH, directives=(keep,))
    )
    assert restore is not None and restore.recipe is not None
    assert restore.recipe.materialise == () and "d5" in restore.cites
    for step in range(20):
        brief = toy.brief(diagnosis=BANDWIDTH, directives=(keep,), step=f"i0g{step}")
        proposal = await propose(toy, "fusion", brief)
        assert proposal is not None and proposal.recipe is not None and proposal.recipe.materialise == ()


async def test_crossover_takes_an_elites_choices(toy: Any) -> None:
    elite = toy.evaluation(toy.recipe(block=256, unroll=8, threads=1), name="c9", candidate_ms=1.0)
    taken = []
    for step in range(60):
        brief = toy.brief(diagnosis=LATENCY, elites=(elite,), stagnant_generations=5, step=f"i0g{step}")
        proposal = await propose(toy, "tiling", brief)
        if proposal and "Takes over from c9" in proposal.rationale:
            taken.append(proposal)
    assert taken
    wanted = {("block", 256), ("unroll", 8), ("threads", 1)}
    assert all({(move.name, move.value) for move in item.moves} <= wanted for item in taken)


@pytest.mark.parametrize(
    ("limiter", "role", "expected"),
    [
        ("memory_bandwidth", "fusion", "fusion"),
        ("launch_overhead", "fusion", "fusion"),
        ("compute", "parameters", "tiling"),
        ("memory_latency", "memory", "tiling"),
    ],
)
def test_route_mostly_asks_the_expert_whose_job_it_is(toy: Any, limiter: Any, role: Any, expected: str) -> None:
    diagnosis = replace(LATENCY, limiter=limiter)
    asked = Counter(route(toy.brief(role=role, step=f"i0g{step}"), diagnosis) for step in range(200))
    assert asked.most_common(1)[0][0] == expected
    assert len(asked) == 2  # the other expert keeps a share
    assert asked.total() == 200 and max(asked.values()) >= 130


def test_failures_go_to_the_diagnostician_only(toy: Any) -> None:
    broken = Diagnosis("c1", "wrong_result", None, "every 32nd row differs", "undo")
    assert ranking(toy.brief(), broken) == ("diagnostician",)


async def test_repair_undoes_what_the_working_relative_does_not_share(toy: Any) -> None:
    works = toy.evaluation(toy.recipe(block=64), name="c4")
    recipe = toy.recipe(block=64, rewrites=("shift_invariance",), unroll=4)
    broken = toy.evaluation(recipe, name="c8", outcome="wrong_result", error="max error 0.3 at [0, 1023]")
    brain = PlaybookBrain(toy.library)
    brief = toy.brief(recipe, parent=broken, elites=(works,))
    found = await brain.diagnose(brief)
    assert (found.failure, found.limiter, found.evidence) == ("wrong_result", None, "max error 0.3 at [0, 1023]")
    first = await brain.propose("diagnostician", replace(brief, diagnosis=found))
    assert first is not None and first.recipe is not None
    assert first.recipe.rewrites == () and first.recipe.choices["k0"] == recipe.choices["k0"]
    assert "c4 works without it" in first.rationale
    second = await brain.propose(
        "diagnostician", replace(brief, diagnosis=found, tried=frozenset({first.recipe.digest}))
    )
    assert second is not None and second.recipe is not None
    assert second.recipe.choices["k0"]["unroll"] == 1 and second.recipe.rewrites == ("shift_invariance",)


async def test_repair_of_a_compile_error_without_relatives_steps_back_and_ends(toy: Any) -> None:
    recipe = toy.recipe(block=256, unroll=8)
    broken = toy.evaluation(recipe, outcome="compile_error", error="k.cpp:12: error: array too large")
    tried: set[str] = set()
    proposals = []
    for step in range(200):
        brief = toy.brief(recipe, parent=broken, tried=frozenset(tried), step=f"i0g{step}")
        proposal = await propose(toy, "diagnostician", brief)
        if proposal is None:
            break
        assert proposal.recipe is not None and proposal.recipe.digest not in tried
        tried.add(proposal.recipe.digest)
        proposals.append(proposal)
    assert proposal is None and 4 <= len(proposals) < 100
    first = proposals[0].recipe
    assert first is not None and (first.choices["k0"]["block"], first.choices["k0"]["unroll"]) in {(32, 8), (256, 1)}
    assert "array too large" in proposals[0].rationale


async def test_a_parent_outside_the_library_leaves_the_playbook_without_a_step(toy: Any) -> None:
    brief = toy.brief(parent=toy.evaluation(None), lowered=None)
    assert await propose(toy, "tiling", brief) is None


def toy_ms(recipe: Recipe) -> float:
    """A landscape with one best point: block 128 and unroll 4 only pay together, online passes save a third."""
    chosen = recipe.choices["k0"]
    block, unroll = int(chosen["block"]), int(chosen["unroll"])
    ms = 4.0 * (0.65 if chosen["passes"] == "online" else 1.0) * (1.0 if chosen["threads"] == 2 else 1.7)
    ms *= 1 + 0.12 * abs(math.log2(block / 128)) + 0.15 * abs(math.log2(unroll / 4))
    return ms + (2.0 if recipe.materialise else 0.0) - (0.3 if recipe.rewrites else 0.0)


async def evaluations_to_reach(toy: Any, seed: int, goal_ms: float) -> int:
    """The number of candidates that the playbook evaluates until one is as fast as `goal_ms`."""
    brain = PlaybookBrain(toy.library)
    seen = {toy.recipe().digest: (toy_ms(toy.recipe()), toy.recipe())}
    for step in range(200):
        best_ms, best = min(seen.values(), key=lambda item: item[0])
        if best_ms <= goal_ms:
            break
        parent = toy.evaluation(best, candidate_ms=best_ms)
        brief = toy.brief(best, parent=parent, step=f"i0g{step}", seed=seed, tried=frozenset(seen))
        diagnosis = await brain.diagnose(brief)
        for expert in ranking(brief, diagnosis):
            proposal = await brain.propose(expert, replace(brief, diagnosis=diagnosis))
            if proposal is not None and proposal.recipe is not None:
                complete = toy.library.lower(proposal.recipe).recipe
                seen[complete.digest] = (toy_ms(complete), complete)
                break
    return len(seen)


async def test_the_search_needs_far_fewer_evaluations_than_sampling(toy: Any) -> None:
    space = [
        toy.recipe(block=block, unroll=unroll, passes=passes, threads=threads, rewrites=rewrites)
        for block in (16, 32, 64, 128, 256)
        for unroll in (1, 2, 4, 8)
        for passes in ("two", "online")
        for threads in (1, 2)
        for rewrites in ((), ("shift_invariance",))
    ]
    goal_ms = min(toy_ms(recipe) for recipe in space)
    counts = sorted([await evaluations_to_reach(toy, seed, goal_ms) for seed in range(15)])
    # one point of 160 is the best: sampling without repetition needs 80 evaluations in the median
    assert counts[len(counts) // 2] <= 25
    assert counts[-1] <= 60


async def test_a_new_structure_is_tuned_once_and_then_its_numbers_are_left_alone(toy: Any) -> None:
    """The tiling expert is asked first and gives no numbers of its own; not where the structure cannot win, and not
    before a user's word is followed."""
    brief = replace(toy.brief(), tune_s=10.0)
    assert ranking(brief, LATENCY)[0] == "tiling"
    step = await propose(toy, "tiling", replace(brief, diagnosis=LATENCY))
    assert step is not None and [move.kind for move in step.moves] == ["tune"]
    assert step.recipe == brief.lowered.recipe and "sweeps" in step.rationale
    other = await propose(toy, "fusion", replace(brief, diagnosis=LATENCY))
    assert other is not None and all(move.kind != "tune" for move in other.moves)

    best = replace(brief.parent, timing=replace(brief.parent.timing, candidate_ms=1e-6))
    assert not is_untuned(replace(brief, elites=(best,))), "moving its bytes takes longer than the best kernel"
    asked = Directive(1, "tiling", "block 16", {"verb": "set", "name": "block", "value": 16})
    assert not is_untuned(replace(brief, directives=(asked,)))

    tuned = replace(brief, tried=frozenset({tuned_mark(brief.lowered)}))
    assert not is_untuned(tuned)
    moves = toy.library.moves(brief.lowered)
    before, after = (rank(moves, experts()["tiling"], Situation(item, LATENCY)) for item in (brief, tuned))
    lost = {item.move.key: item.score for item in after if item.move.kind == "set"}
    assert lost and all(
        lost[item.move.key] == pytest.approx(0.3 * item.score) for item in before if item.move.key in lost
    )
