"""What the machine code of a kernel says without a GPU: on a recorded disassembly, and on what is compiled here."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from foundry.knowledge.compiler.cuda.module import FLAGS
from foundry.knowledge.device import Device
from foundry.tools.targets.cuda.build import CudaTarget
from foundry.tools.targets.cuda.disassembly import INSTALL, tool_path
from foundry.tools.targets.cuda.sass import KernelCode, kind_of, read_disassembly

RECORDED = Path(__file__).parent / "recorded" / "kernels.sass"  # nvdisasm 13.5 on kernels of benchmarks/limiters, sm_90
needs_tools = pytest.mark.skipif(
    shutil.which("nvcc") is None or tool_path("nvdisasm") is None, reason=f"needs nvcc and a disassembler: {INSTALL}"
)


@pytest.fixture(scope="module")
def kernels() -> dict[str, KernelCode]:
    return read_disassembly(RECORDED.read_text())


@pytest.mark.parametrize(
    ("opcode", "kind"),
    [
        ("LDG.E.128.CONSTANT", "load_128"),
        ("LDG.E.64", "load_64"),
        ("LDG.E", "load_32"),
        ("LDG.E.U8", "load_8"),
        ("STG.E.128", "store_128"),
        ("LDL.LU", "local_load"),
        ("STL.128", "local_store"),
        ("LDSM.16.M88.4", "shared_load"),
        ("LDS.128", "shared_load"),
        ("LDGSTS.E.BYPASS.128", "async_copy"),
        ("UTMALDG.3D", "async_copy"),
        ("HGMMA.64x128x16.F32.BF16", "tensor"),
        ("HMMA.16816.F32", "tensor"),
        ("BAR.SYNC.DEFER_BLOCKING", "barrier"),
        ("SYNCS.PHASECHK.TRANS64.TRYWAIT", "barrier"),
        ("REDG.E.ADD.F32.FTZ.RN.STRONG.GPU", "atomic"),
        ("RED.E.ADD.F32.FTZ.RN.STRONG.GPU", "atomic"),
        ("ATOMG.E.ADD", "atomic"),
        ("ATOMS.ADD", "shared_atomic"),
        ("MUFU.EX2", "special"),
        ("FFMA", "float"),
        ("HFMA2.MMA", "float"),
        ("DFMA", "double"),
        ("IMAD.WIDE.U32", "integer"),
        ("LOP3.LUT", "integer"),
        ("ULDC.64", "constant"),
        ("LDC", "constant"),
        ("BSSY", "reconverge"),
        ("F2FP.BF16.F32.PACK_AB", "convert"),
        ("S2R", "other"),
    ],
)
def test_instructions_have_their_class(opcode: str, kind: str) -> None:
    assert kind_of(opcode) == kind


def test_the_loops_of_a_kernel_are_counted_apart(kernels: dict[str, KernelCode]) -> None:
    copy = kernels["stream_copy"]
    assert copy.loops == 2 and copy.hot["load_128"] == copy.hot["store_128"] == 5
    assert "constant" in copy.mix and "constant" not in copy.hot
    products = kernels["half_products"]
    assert products.hot["tensor"] > 0.8 * sum(products.hot.values())
    assert kernels["barriers_512"].hot["barrier"] == 42
    assert kernels["atomics_1"].hot["atomic"] == 1
    spills = kernels["spills_48"].hot
    assert spills["local_load"] + spills["local_store"] == 100
    assert not {"local_load", "local_store", "tensor"} & set(copy.mix)


def test_addresses_of_neighbouring_threads_are_followed(kernels: dict[str, KernelCode]) -> None:
    assert kernels["stream_copy"].waste == 1.0  # sixteen bytes each, sixteen bytes apart
    assert kernels["strided_32"].waste == 32.0
    assert kernels["rows_of_1024"].waste == -1  # the length of a row is an argument
    assert kernels["banks_16"].ways == 16 and kernels["barriers_512"].ways == 1
    assert kernels["chase_1"].chased > 0 and kernels["strided_32"].chased == 0


def test_both_disassemblers_are_read() -> None:
    """cuobjdump prints each instruction's encoding beside it, and jumps by address instead of by label."""
    text = (
        "\t\tFunction : twice\n"
        "        /*0000*/                   S2R R3, SR_TID.X ;       /* 0x0000000000037919 */\n"
        "                                                            /* 0x000e6e0000002100 */\n"
        "        /*0010*/                   LDG.E R20, desc[UR4][R4.64] ; /* 0x0000000404147981 */\n"
        "        /*0020*/               @P0 BRA 0x10 ;               /* 0x0000000404147981 */\n"
        "        /*0030*/                   EXIT ;                   /* 0x0000000404147981 */\n"
        "        /*0040*/                   BRA 0x40;                /* 0x0000000404147981 */\n"
    )
    code = read_disassembly(text)["twice"]
    assert code.hot == {"load_32": 1, "branch": 1} and code.loops == 1


@needs_tools
def test_a_build_says_what_its_machine_code_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOUNDRY_BUILD_CACHE", str(tmp_path))
    source = """
extern "C" __global__ void wide(const float4* x, float4* y) { y[threadIdx.x] = x[threadIdx.x]; }
extern "C" __global__ void narrow(const float* x, float* y, int n) {
    float held[32];
    for (int i = 0; i < 32; ++i) held[i] = x[threadIdx.x * 40 + i];
    for (int i = 0; i < n; ++i) held[(i * n) & 31] += held[(i * 7 + n) & 31];
    y[threadIdx.x] = held[n & 31];
}
"""
    text = f"FOUNDRY = {dict(target='cuda', compiler='nvcc', flags=list(FLAGS))!r}\nSOURCE = r'''{source}'''\n"
    target = CudaTarget(Device("cuda", "NVIDIA H200", "sm_90", 132, 60 << 20, 16, 141 << 30))
    build = target.build(text)
    assert build.ok, build.first_error
    wide, narrow = build.resources.instructions["wide"], build.resources.instructions["narrow"]
    assert wide["all_load_128"] == 1 and wide["waste"] == 1
    assert narrow["all_local_load"] >= 1 and narrow["waste"] > 8
    assert target.build(text).resources == build.resources
