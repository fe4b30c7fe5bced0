"""Scalar expressions print as C that means what PyTorch means."""

from __future__ import annotations

from foundry.knowledge.compiler.cuda.dialect import CUDA_DIALECT
from foundry.knowledge.compiler.ir.kernels import (
    SCALAR_OPS,
    Apply,
    Const,
    Expr,
    Gather,
    Iota,
    Load,
    Named,
    Store,
    View,
)
from foundry.knowledge.compiler.ir.scalar import (
    CPU_DIALECT,
    MATH_FORMATS,
    Emitter,
    affine,
    expression,
    loader,
)


def offset(view: View) -> str:
    return affine(view.offset, zip(view.strides, ("i0", "i1"), strict=True))


def load(buffer: str = "x") -> Load:
    return Load(buffer, View(0, (128, 1)), "float32")


def apply(op: str, *args: Expr) -> Apply:
    return Apply(op, args, "float32")


def printed(expr: Expr) -> str:
    return expression(expr, CPU_DIALECT, loader(CPU_DIALECT, offset), {"acc": "sum0"})


def test_every_operation_has_a_format_with_its_number_of_arguments() -> None:
    assert set(MATH_FORMATS) == set(SCALAR_OPS)
    for op, arity in SCALAR_OPS.items():
        text = MATH_FORMATS[op].format(*[f"<{i}>" for i in range(arity)], t="T")
        assert all(f"<{i}>" in text for i in range(arity)), op


def test_leaves_and_constants() -> None:
    assert printed(load()) == "b_x[i0 * 128 + i1]"
    assert printed(Iota(View(-3, (0, 2)))) == "(int64_t)(i1 * 2 - 3)"
    assert printed(Named("acc", "float32")) == "sum0"
    assert printed(Const(float("-inf"), "float32")) == "(-INFINITY)"
    assert printed(Const(1e39, "float32")) == "(INFINITY)"
    assert printed(Const(-0.0, "float32")) == "(-0.0f)"
    assert printed(Const(-(2**63), "int64")) == "(-9223372036854775807L - 1)"
    assert printed(Load("h", View(0, (0, 0)), "bfloat16")) == "widen(b_h[0])"


def test_gather_prints_a_clamped_index() -> None:
    index = Load("i", View(0, (1, 0)), "int64")
    assert printed(Gather("w", View(0, (0, 1)), index, 64, 1000, "float32")).startswith("b_w[i1 + math::wrap_index(")


def test_equal_constants_of_different_meaning_stay_apart() -> None:
    text = printed(apply("add", Const(0.0, "float32"), Const(-0.0, "float32")))
    assert text == "(0.0f + (-0.0f))"


def test_shared_values_are_computed_once_and_in_linear_size() -> None:
    value: Expr = load()
    for _ in range(60):
        value = apply("mul", value, apply("sigmoid", value))
    emitter = Emitter(CPU_DIALECT, loader(CPU_DIALECT, offset))
    emitter.store(Store("y", View(0, (128, 1)), value), offset, "float32")
    assert len(emitter.lines) == 61
    assert emitter.lines[0] == "const float t0 = b_x[i0 * 128 + i1];"


def test_uses_across_stores_share_one_statement() -> None:
    shared = apply("exp", load())
    first, second = apply("neg", shared), apply("sqrt", shared)
    emitter = Emitter(CPU_DIALECT, loader(CPU_DIALECT, offset))
    emitter.reserve([first, second])
    texts = [emitter.value(first), emitter.value(second)]
    assert emitter.lines == ["const float t0 = math::exp(b_x[i0 * 128 + i1]);"]
    assert texts == ["(-t0)", "math::sqrt(t0)"]


def test_known_values_replace_their_expression() -> None:
    centred = apply("sub", load(), Named("mean", "float32"))
    emitter = Emitter(CPU_DIALECT, loader(CPU_DIALECT, offset), known=[(load(), "row[i1]")])
    assert emitter.value(apply("square", centred)) == "math::square((row[i1] - mean))"


def test_small_constant_powers_become_products() -> None:
    def power(exponent: float) -> Apply:
        return apply("pow", load(), Const(exponent, "float32"))

    emitter = Emitter(CPU_DIALECT, loader(CPU_DIALECT, offset))
    assert emitter.value(power(3.0)) == "(t0 * t0 * t0)"
    assert emitter.value(power(2.5)) == "math::pow(t0, 2.5f)"


def test_narrow_integers_wrap_and_a_cast_to_a_16_bit_type_rounds() -> None:
    byte = Load("u", View(0, (0, 1)), "uint8")
    assert printed(Apply("add", (byte, byte), "uint8")).startswith("(uint8_t)(")
    assert printed(Apply("cast", (load(),), "bfloat16")) == "widen(narrow_bfloat16((float)(b_x[i0 * 128 + i1])))"
    assert printed(Apply("cast", (load(),), "bool")) == "(b_x[i0 * 128 + i1] != 0)"


def test_mish_spelled_out_is_one_function() -> None:
    gate = apply("tanh", apply("softplus", load("x")))
    for product in (apply("mul", gate, load("x")), apply("mul", load("x"), gate)):
        assert printed(product) == "math::mish(b_x[i0 * 128 + i1])"
    assert "softplus" in printed(apply("mul", gate, load("h")))


def test_a_gpu_divides_by_an_ordinary_constant_without_a_branch() -> None:
    for divisor, text in ((3.0, "math::divided"), (1e-30, " / "), (float("inf"), " / ")):
        quotient = apply("div", load(), Const(divisor, "float32"))
        assert text in expression(quotient, CUDA_DIALECT, loader(CUDA_DIALECT, offset), {})
        assert " / " in printed(quotient), "a CPU has no branch to spare"
