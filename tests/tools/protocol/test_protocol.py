"""The rules of correctness: errors against the truth, PyTorch's own as the budget, and failing elements in words."""

from __future__ import annotations

import math

import pytest
import torch

from foundry.knowledge.opgraph import TensorSpec
from foundry.tools.protocol import comparison
from foundry.tools.protocol.comparison import Expected, describe_mismatch, expect, measure, weighing_elements
from foundry.tools.protocol.rules import (
    DISTRIBUTIONS,
    OutputError,
    Seeds,
    accepts,
    distributions,
    error_limit,
    failure,
    is_ieee,
    norm_floor,
)
from foundry.tools.task import bundle

TRUTH = torch.randn(300, 1000, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def expected() -> Expected:
    return expect(TRUTH, TRUTH.float(), "float32", None)


def judge(output: torch.Tensor, eager: torch.Tensor) -> tuple[bool, OutputError]:
    want = expect(TRUTH, eager, "float32", None)
    error = measure(output, want)
    return accepts(error, error_limit(measure(eager, want), "float32", output.numel())), error


def test_rounding_is_accepted_and_twice_pytorchs_own_error_is_the_limit() -> None:
    eager = TRUTH.float() + 1e-5 * torch.randn(300, 1000)
    assert judge(TRUTH.float(), eager)[0]
    assert judge(TRUTH.float() + 1.8e-5 * torch.randn(300, 1000), eager)[0]
    accepted, error = judge(TRUTH.float() + 2.3e-5 * torch.randn(300, 1000), eager)
    assert not accepted and error.norm == pytest.approx(2.3e-5, rel=0.02)
    assert failure(error, "float32") == "inaccurate"


def test_one_wrong_element_and_a_wrong_norm_are_refused() -> None:
    output = TRUTH.float()
    output[299, 999] += 0.05
    accepted, error = judge(output, TRUTH.float())
    assert not accepted and error.violation > 1
    assert not judge(torch.zeros_like(output), TRUTH.float())[0]
    assert not judge(TRUTH.bfloat16().float(), TRUTH.float())[0]


def test_nan_never_passes() -> None:
    assert not accepts(OutputError(math.nan, 0.0), OutputError(1.0, 1.0))
    assert not accepts(OutputError(0.0, math.nan), OutputError(1.0, 1.0))
    output = TRUTH.float()
    output[3, 4] = math.nan
    accepted, error = judge(output, TRUTH.float())
    assert not accepted and error.misplaced == 1


def test_non_finite_elements_must_be_of_the_same_kind_unless_only_one_of_the_two_overflows() -> None:
    truth = torch.tensor([1.0, math.inf, -math.inf, math.nan, 1e39, 2.0], dtype=torch.float64).repeat(20)
    eager = truth.float()  # 1e39 overflows in float32 only: no kernel is rejected for it
    want = expect(truth, eager, "float32", None)
    assert measure(eager, want).misplaced == 0
    finite = eager.clone()
    finite[4] = 3e38
    assert measure(finite, want).misplaced == 0
    for place, value in ((1, -math.inf), (2, 5.0), (3, 0.0), (0, math.inf), (0, math.nan)):
        wrong = eager.clone()
        wrong[place] = value
        assert measure(wrong, want).misplaced == 1


def test_the_outputs_own_spread_scales_the_tolerance() -> None:
    """A softmax over long rows has outputs of 1e-6: with an absolute tolerance zeros would pass."""
    truth = torch.softmax(torch.randn(4, 200_000, dtype=torch.float64), dim=1)
    want = expect(truth, truth.float(), "float32", None)
    assert measure(torch.zeros(4, 200_000), want).violation > 100
    assert measure(torch.full((4, 200_000), 5e-6), want).violation > 100
    assert measure(truth.float(), want).violation < 1e-3


def test_integers_must_be_equal_where_pytorch_is() -> None:
    truth = torch.arange(100)
    want = expect(truth, truth, "int64", None)
    wrong = truth.clone()
    wrong[7] = 0
    assert accepts(measure(truth, want), error_limit(OutputError(0, 0), "int64", 100))
    assert not accepts(measure(wrong, want), error_limit(OutputError(0, 0), "int64", 100))
    text = describe_mismatch(wrong, want, OutputError(0, 0), measure(wrong, want))
    assert text.startswith("first wrong element (7,): got 0, want 7; 1 of 100 elements (0.01) are wrong")


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda t: t[:, 993:].zero_(), "dimension 1 (of 1000): the last 7"),
        (lambda t: t[100].zero_(), "dimension 0 (of 300): only 100"),
        (lambda t: t[64:128].mul_(2), "dimension 0 (of 300): 64 to 127"),
        (lambda t: t[:, ::4].zero_(), "dimension 1 (of 1000): every 4 from 0"),
        (lambda t: t.mul_(0.5), "everything is 0.5 times the truth"),
        (lambda t: t.copy_(-t), "everything is -1 times the truth"),
        (lambda t: t.add_(1e-4), "no single element is far off, but the norm error is 1.00e-04"),
    ],
)
def test_failing_elements_in_words(spoil, words) -> None:  # type: ignore[no-untyped-def]
    output = TRUTH.float()
    spoil(output)
    limit = error_limit(OutputError(3e-8, 1e-4), "float32", output.numel())
    assert words in describe_mismatch(output, expected(), limit, measure(output, expected()))


def test_few_elements_and_sixteen_bits_have_their_own_floor() -> None:
    assert norm_floor("float32", 1) > norm_floor("float32", 1000) > 1e-7
    assert 1e-4 < norm_floor("float16", 1000) < norm_floor("bfloat16", 1000) < 1e-2
    assert norm_floor("int64", 10) == 0


def test_distributions_of_the_stages() -> None:
    assert [item.name for item in distributions("full", limited=False)] == [item.name for item in DISTRIBUTIONS]
    assert len(distributions("screen", limited=False)) == 3
    limited = {item.name for item in distributions("final", limited=True)}
    assert {"as given", "randomised parameters", "constant", "few elements changed"} <= limited
    assert not {"x3", "x100", "x-1", "sparse", "one-hot rows", "non-finite"} & limited


def test_seeds_of_the_screen_repeat_and_the_others_never_do() -> None:
    one, other = Seeds(5), Seeds(5)
    assert one.draw("screen", "x3") == other.draw("screen", "x3") != one.draw("screen", "x-1")
    assert Seeds(6).draw("screen", "x3") != one.drawn["x3"]
    assert len({one.draw("final", "x3") for _ in range(5)}) == 5


def test_values_cross_processes_with_their_strides() -> None:
    tensors = torch.arange(24.0).reshape(4, 6)
    value = [tensors.t(), (tensors[::2, 1:4], None, 3, 2.5, True, "mean"), torch.ones(3, 1).expand(3, 5), tensors > 4]
    value.append({"dtype": torch.float16, "empty": torch.empty(0, 3), "half": tensors.bfloat16()})
    parcel = bundle.pack(value)
    back = parcel.value()
    for mine, theirs in zip(bundle.tensors_in(value), bundle.tensors_in(back), strict=True):
        assert torch.equal(mine, theirs) and mine.stride() == theirs.stride() and mine.dtype == theirs.dtype
    assert back[1][1:] == (None, 3, 2.5, True, "mean") and back[4]["dtype"] is torch.float16
    bundle.tensors_in(back)[0].fill_(0)
    assert torch.equal(parcel.tensors()[0], tensors.t())


def test_a_comparison_in_pieces_says_what_one_of_the_whole_says(monkeypatch: pytest.MonkeyPatch) -> None:
    truth = torch.randn(40, 30, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    truth[3, 4], own = float("inf"), truth.float()
    output = own.clone()
    output[17, 5:9], output[39, 29] = 3.0, float("nan")
    expected = comparison.expect(truth, own, "float32", None)
    limit = OutputError(1e-6, 1.0)

    def told() -> list[object]:
        error = comparison.measure(output, expected)
        return [error.misplaced, comparison.describe_mismatch(output, expected, limit, error)] + [
            pytest.approx(value) for value in (error.norm, error.violation, comparison.weighing_elements(expected))
        ]

    whole = told()
    pieces = [slice(start, min(start + 7, 1200)) for start in range(0, 1200, 7)]
    monkeypatch.setattr(comparison, "_spans", lambda flat, length: iter(pieces))
    found = told()
    assert found[:2] == whole[:2] and [one.expected for one in found[2:]] == whole[2:]  # type: ignore[attr-defined]
    assert "first wrong element (17, 5): got 3" in str(whole[1]) and "5 of 1200" in str(whole[1])


def test_a_norm_rests_on_the_elements_that_weigh() -> None:
    even = torch.randn(4096, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    assert 3000 <= weighing_elements(expect(even, even.float(), "float32", None)) <= 4096
    few = torch.cat((torch.ones(4, dtype=torch.float64), 1e-3 * even))
    assert 4 <= weighing_elements(expect(few, few.float(), "float32", None)) <= 16
    wild = torch.cat((few, torch.tensor([math.nan, math.inf], dtype=torch.float64)))
    assert 4 <= weighing_elements(expect(wild, wild.float(), "float32", None)) <= 16
    nothing = torch.zeros(8, dtype=torch.float64)
    assert weighing_elements(expect(nothing, nothing.float(), "float32", None)) == 0


def test_pytorch_in_ieee_arithmetic_is_told_from_pytorch_in_tf32() -> None:
    """A kernel in TF32 can be right only in comparison with PyTorch in TF32."""
    spec = TensorSpec((512, 512), (512, 1), "float32")
    plain = OutputError(4e-7, 0.01)
    assert is_ieee(plain, plain, spec)
    assert not is_ieee(OutputError(2.8e-4, 0.2), plain, spec)
    assert not is_ieee(OutputError(1.1e-6, 0.01), plain, spec)  # TF32's, made small by what follows the product
    assert not is_ieee(OutputError(1e-4, 0.1), OutputError(1e-4, 0.1), TensorSpec((512, 512), (512, 1), "float16"))
