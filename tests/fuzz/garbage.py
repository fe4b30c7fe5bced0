"""Generated garbage: valid files damaged in every way that files get damaged, and things that are no files."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

TASK = """import torch
from torch import nn

ROWS = 64
SCALE = 1


class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.bias = nn.Parameter(torch.randn(width))

    def forward(self, x):
        return torch.relu(x * 2.0 + self.bias)


def get_inputs():
    return [torch.randn(ROWS * SCALE, 256)]


def get_init_inputs():
    return [256]
"""
KERNEL = '''# Foundry kernel, target cpu. Needs torch and g++ only.
import ctypes

import torch
from torch import nn

FOUNDRY = {"target": "cpu", "compiler": "g++", "flags": ["-O3", "-shared", "-fPIC"], "entry": "foundry_forward"}
SOURCE = r"""
extern "C" int foundry_forward(void** b) { return 0; }
"""


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.bias = nn.Parameter(torch.randn(width))

    def forward(self, x):
        out = torch.empty_like(x)
        ctypes.CDLL("x.so").foundry_forward(x.data_ptr(), out.data_ptr())
        return out
'''
OPTIONS = """instructions = "@tiling avoid unroll 8"
policy = "fair"
tolerance = 1e-3
accuracy = "ieee"
extra_shapes = [{ ROWS = 777, SCALE = 2 }]
dtypes = ["bfloat16"]
mode = "eval"
input_range = [-2.0, 2.0]
"""

NASTY = [
    *(b"\x00", b"\xff", b"\xef\xbb\xbf", b"\r\n", b"\r", b"\x0c", b"\x1a", b"\xed\xa0\x80", "\u2028".encode(), b"\\\n"),
    *(b"(" * 300, b"[" * 3000, b"-" * 20_000, b"lambda:" * 3000, b"not " * 5000, b"{1:" * 200, b"'''", b'"""', b"#"),
    *(
        b"9" * 5000,
        b"1e999",
        b"0x" + b"f" * 9000,
        b"x" * 100_000,
        b"1+" * 20_000,
        b"a." * 5000,
        b"f'{" * 100,
        b"1if 1else ",
    ),
    *(
        b"if 1:\n",
        b"\t",
        b"    ",
        b"return",
        b"async ",
        b"*",
        b"class Model: pass\n",
        b"ROWS = 'x'\n",
        b"global ROWS\n",
    ),
]


@st.composite
def damaged(draw: st.DrawFn, text: str) -> bytes:
    """`text` after a few cuts, flips, repetitions and insertions, as bytes."""
    body = bytearray(text.encode())
    for _ in range(draw(st.integers(1, 4))):
        if not body:
            break
        at = draw(st.integers(0, len(body) - 1))
        to = min(len(body), at + draw(st.integers(0, 40)))
        kind = draw(st.sampled_from(["cut", "truncate", "flip", "repeat", "insert", "insert", "swap"]))
        if kind == "cut":
            del body[at:to]
        elif kind == "truncate":
            del body[at:]
        elif kind == "flip":
            body[at] ^= 1 << draw(st.integers(0, 7))
        elif kind == "repeat":
            body[at:at] = body[at:to] * draw(st.integers(1, 50))
        elif kind == "insert":
            body[at:at] = draw(st.sampled_from(NASTY) | st.binary(max_size=12))
        else:
            body[at:to] = bytes(reversed(body[at:to]))
    return bytes(body)


NUMBERS = st.sampled_from([0, -1, 1, 2, 10**30, -(10**30), 0.5, 1e308, True, False])
VALUES = st.recursive(
    NUMBERS | st.none() | st.text(max_size=8) | st.sampled_from(["fair", "cpu", "\ud800", "\0", "0" * 64]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)


@st.composite
def altered(draw: st.DrawFn, document: dict[str, Any]) -> dict[str, Any]:
    """A document in which one or two values, at any depth, are missing, renamed or something else."""
    result: dict[str, Any] = _copy(document)
    for _ in range(draw(st.integers(1, 2))):
        holder: Any = result
        while True:
            keys = list(holder) if isinstance(holder, dict) else list(range(len(holder)))
            if not keys:
                break
            key = draw(st.sampled_from(keys))
            if isinstance(holder[key], dict | list) and holder[key] and draw(st.booleans()):
                holder = holder[key]
                continue
            if draw(st.integers(0, 4)) == 0:
                del holder[key]
            else:
                holder[key] = draw(VALUES)
            break
    return result


def _copy(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _copy(item) for key, item in value.items()}
    return [_copy(item) for item in value] if isinstance(value, list) else value


# ---------------------------------------------------------------- things that are no files


def _fifo(path: Path) -> None:
    os.mkfifo(path)


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        here = Path.cwd()
        os.chdir(path.parent)  # a socket's name may be no longer than 107 bytes
        try:
            made.bind(path.name)
        finally:
            os.chdir(here)


def _sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 40)


def _link_to_a_pipe(path: Path) -> None:
    os.mkfifo(path.with_name("pipe"))
    path.symlink_to("pipe")


def _holding(content: bytes) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        path.write_bytes(content)

    return write


OBJECTS: dict[str, Callable[[Path], None]] = {
    "pipe": _fifo,
    "socket": _socket,
    "folder": lambda path: path.mkdir(),
    "endless device": lambda path: path.symlink_to("/dev/zero"),
    "empty device": lambda path: path.symlink_to("/dev/null"),
    "link to itself": lambda path: path.symlink_to(path.name),
    "link to nothing": lambda path: path.symlink_to("nowhere"),
    "link to a pipe": _link_to_a_pipe,
    "own memory": lambda path: path.symlink_to("/proc/self/mem"),
    "a terabyte": _sparse,
    "empty": _holding(b""),
    "zeros": _holding(bytes(10_000)),
    "random bytes": _holding(bytes(range(256)) * 40),
    "UTF-16": _holding(TASK.encode("utf-16")),
    "blanks": _holding(b" \n\t\n" * 1000),
}
