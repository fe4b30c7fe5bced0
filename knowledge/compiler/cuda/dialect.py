"""The spelling of scalar operations in CUDA C++: types of stored elements, of registers, and the conversions between.

The functions of namespace `math` live in runtime.cuh; all compute in float32 or float64, as exactly as CUDA's own do.
"""

from __future__ import annotations

from functools import cache

from foundry.knowledge.compiler.file.texts import read_library_text
from foundry.knowledge.compiler.ir.scalar import EIGHT_BITS, Dialect
from foundry.knowledge.opgraph import DType

CUDA_DIALECT = Dialect(
    storage={
        "float64": "double",
        "float32": "float",
        "float16": "__half",
        "bfloat16": "__nv_bfloat16",
        "int64": "long long",
        "int32": "int",
        "int16": "short",
        "int8": "signed char",
        "uint8": "unsigned char",
        "bool": "bool",
        **{name: name for name in EIGHT_BITS},
    },
    widen={
        "float16": "__half2float({0})",
        "bfloat16": "__bfloat162float({0})",
        **dict.fromkeys(EIGHT_BITS, "widen({0})"),
    },
    narrow={
        "float16": "__float2half_rn({0})",
        "bfloat16": "__float2bfloat16_rn({0})",
        **{name: f"narrow_{name}({{0}})" for name in EIGHT_BITS},
    },
    divided="math::divided({0}, {1})",
    divided_by="math::divided_by({0}, {1})",
    long_suffix="LL",
    infinity="FOUNDRY_INF",
    nan="FOUNDRY_NAN",
)


@cache
def runtime_header() -> str:
    """CUDA text of the device functions that every candidate carries: math, vectors, states of reductions."""
    return read_library_text("cuda/runtime.cuh")


def element_type(dtype: DType) -> str:
    """C++ type of an element of this dtype in memory."""
    return CUDA_DIALECT.storage[dtype]


def register_type(dtype: DType) -> str:
    """C++ type of a value of this dtype in a register; 16-bit floats are kept as float32."""
    return CUDA_DIALECT.register[dtype]
