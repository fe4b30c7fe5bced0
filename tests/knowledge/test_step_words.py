"""Steps, settings and recipes in words."""

from __future__ import annotations

import pytest

from foundry.knowledge.candidate import Choice, Recipe
from foundry.knowledge.step_words import (
    SWITCH,
    change_words,
    key_words,
    origin_words,
    recipe_changes,
    setting_words,
    step_words,
    with_words_for_keys,
)
from foundry.knowledge.thought import Move


def _set(name: str, value: Choice, was: Choice, unit: str = "", kernel: str = "k_a") -> Move:
    return Move("set", "tile", name, kernel, "row", value, was, unit=unit)


@pytest.mark.parametrize(
    ("name", "value", "unit", "told"),
    [
        ("chunk", 4096, "points", "chunk 4096 points"),
        ("team", 1, "threads", "team 1 thread"),
        ("in_flight", 1, "accesses", "in_flight 1 access"),
        ("threads", 2, "threads", "threads 2"),
        ("block_rows", 64, "rows", "block_rows 64"),
        ("stream", 1, SWITCH, "stream on"),
        ("schedule", "static", "", "schedule static"),
    ],
)
def test_a_setting_has_its_unit_once(name: str, value: Choice, unit: str, told: str) -> None:
    assert setting_words(name, value, unit) == told


def test_a_change_has_both_values() -> None:
    assert change_words("unroll", 4, 8, "vectors") == "unroll 4 -> 8 vectors"
    assert change_words("stream", 0, 1, SWITCH) == "stream off -> on"
    assert change_words("chunk", None, 8, "points") == "chunk - -> 8 points"


def test_a_step_tells_structure_first_and_counts_what_it_leaves_out() -> None:
    moves = [_set("unroll", 8, 4, "vectors"), Move("split", "fusion", "relu"), _set("chunk", 4096, 1024, "points")]
    assert step_words(moves) == "relu written to memory; unroll 8 vectors, chunk 4096 points"
    other = _set("threads", 1, 2, "threads", "k_b")
    assert step_words([*moves[::2], other], names_kernels=True) == (
        "unroll 8 vectors, chunk 4096 points in k_a; threads 1 in k_b"
    )
    assert step_words([_set("unroll", number, 1) for number in range(2, 9)], most=2) == (
        "unroll 2, unroll 3 and 5 more numbers"
    )


def test_the_numbers_of_a_kernel_that_is_new_are_no_change() -> None:
    assert step_words([Move("split", "fusion", "relu"), _set("vector", 64, 64, "bytes")]) == "relu written to memory"


@pytest.mark.parametrize(
    ("key", "told"),
    [
        ("row:set:unroll=4", "unroll 4 in row kernels"),
        ("authored_1f2e:set:LANES=8", "LANES 8 in the same authored kernels"),
        ("split:gemm", "a value of a gemm kernel written to memory"),
        ("fuse:value", "a value kept in registers"),
        ("rewrite:fold-batchnorm", "rewrite fold-batchnorm"),
        ("source", "a kernel of its own"),
    ],
)
def test_a_key_of_experience_has_words(key: str, told: str) -> None:
    assert key_words(key) == told


def test_keys_within_a_text_are_replaced() -> None:
    told = "row:set:unroll=4 together with split:row, gemm:set:tile=7x3. went from 1.20x to 1.31x"
    assert with_words_for_keys(told) == (
        "unroll 4 in row kernels together with a value of a row kernel written to memory, tile 7x3 in gemm kernels. "
        "went from 1.20x to 1.31x"
    )


def test_recipes_differ_by_structure_kernels_and_settings() -> None:
    before = Recipe("cpu", choices={"k_a": {"unroll": 4}, "k_b": {"threads": 2}})
    after = Recipe("cpu", materialise=("relu",), rewrites=("pool-of-pool",), choices={"k_a": {"unroll": 8}})
    assert recipe_changes(before, after) == [
        "relu written to memory",
        "rewrite pool-of-pool",
        "unroll 4 -> 8 in k_a",
        "kernel k_b is gone: threads 2",
    ]
    assert (
        origin_words("library", after, before) == "another first kernel, relu written to memory, rewrite pool-of-pool"
    )
    assert origin_words("library", before, before) == "the kernel compiler's first kernel"
    assert origin_words("recalled x12") == "the winner of an earlier run (x12)"
