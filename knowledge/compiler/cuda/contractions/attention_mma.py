"""Attention on tensor cores. The kernels stand in `attention_mma.cu` and `attention_turns.cu`; `attention_sum.cu` joins
the results over different parts of the keys."""

from __future__ import annotations

import math

from foundry.knowledge.candidate import Choice
from foundry.knowledge.compiler.cuda import launches
from foundry.knowledge.compiler.cuda.contractions.attention_boxes import find_boxes
from foundry.knowledge.compiler.cuda.contractions.attention_space import AttentionSpace, masks_of, operands_of
from foundry.knowledge.compiler.cuda.contractions.attention_tiles import (
    AttentionTiling,
    TurnsAttention,
    choose_attention,
    list_paths,
)
from foundry.knowledge.compiler.cuda.contractions.tensor_tiles import PATH
from foundry.knowledge.compiler.cuda.contractions.tiled import epilogue_lines
from foundry.knowledge.compiler.cuda.dialect import element_type
from foundry.knowledge.compiler.cuda.launches import Argument, Launch, symbol_of
from foundry.knowledge.compiler.cuda.space import (
    Known,
    Space,
    element_load,
    indent,
    loop_over_vector,
    make_emitter,
    make_tunable,
    pick,
    plan_loads,
    vector_type,
)
from foundry.knowledge.compiler.file.assemble import fill
from foundry.knowledge.compiler.file.texts import read_library_text
from foundry.knowledge.compiler.ir.kernels import Expr, Load, PrintedKernel
from foundry.knowledge.compiler.ir.views import Leaf, leaves
from foundry.knowledge.device import Device

_SUM_WARPS = 4
_PATH_MEANING = (
    "turns: the copy engine brings tiles, and warpgroups take turns to multiply from shared memory; mma: each warp "
    "multiplies from its registers"
)
_LABELS = {"tf32": ("tf32",), "tf32x3": ("tf32:x3",)}


class _TensorAttention:
    """Prints an attention on the path "mma": one launch, or two if blocks share the keys."""

    def __init__(self, space: AttentionSpace, tiling: AttentionTiling, device: Device) -> None:
        self.space, self.tiling, self.kernel, self.arch = space, tiling, space.kernel, device.arch
        self.name = symbol_of(self.kernel)
        self.tiles = math.ceil(self.kernel.rows / tiling.rows)
        self.points = space.batch * self.kernel.rows
        # Scores are scaled after the highest is known, unless scale or mask could make another one the highest.
        self.is_added = self.kernel.mask is not None or self.kernel.scale <= 0

    def _copies(self, which: str) -> dict[str, object]:
        """Holes of the text that copies a row of q, k or v: elements and bytes of a copy, copies of a row, address."""
        kernel = self.kernel
        load, size = {
            "q": (kernel.q, kernel.head),
            "k": (kernel.k, kernel.head),
            "v": (kernel.v, kernel.value_head),
        }[which]
        widths = [width for width in (8, 4, 2) if width * self.tiling.item_bytes <= 16]
        space = self.space.spaces[which]
        width = next((width for width in widths if space.is_aligned(load.view, width)), 1)
        letter = which.upper()
        return {
            f"WIDTH_{letter}": width,
            f"BYTES_{letter}": width * self.tiling.item_bytes,
            f"ITEMS_{letter}": size // width,
            f"AT_{letter}": self.space.address(which),
        }

    def _batch(self) -> list[str]:
        """C statements that define the block's indices of the batch; [] if it needs none."""
        tiling = self.tiling
        rest = f"(int)blockIdx.x / {self.tiles * tiling.splits}"
        if tiling.splits == 1 and not self.space.batch_sizes:
            return []
        return [f"const int batch = {rest};", *self.space.place("batch")]

    def _steps(self) -> list[str]:
        """C statements that define `first_step` and `end_step`, the tiles of keys that a block takes."""
        splits = self.tiling.splits
        if splits == 1:
            return ["const int first_step = 0, end_step = steps;"]
        return [
            f"const int split = (int)blockIdx.x / {self.tiles} % {splits};",
            f"const int per_split = (steps + {splits - 1}) / {splits};",
            "const int first_step = split * per_split;",
            "const int end_step = first_step + per_split < steps ? first_step + per_split : steps;",
        ]

    def _mask(self) -> list[str]:
        """C statements that scale a lane's scores and add the mask, two neighbours at a time; [] if neither is
        needed."""
        if not self.is_added:
            return []
        kernel, space = self.kernel, self.space.spaces["mask"]
        scaled = "score[i][h][half * 2 + j] = __fmaf_rn(score[i][h][half * 2 + j], SCALE, added[j]);"
        lines = ["#pragma unroll", "for (int h = 0; h < KEYS / 8; ++h) {", "float added[2] = {};"]
        if kernel.mask is not None:
            lines += self._read_mask(kernel.mask, space)
        return [*lines, *loop_over_vector(2, [scaled]), "}"]

    def _read_mask(self, mask: Expr, space: Space) -> list[str]:
        """C statements that fill `added` for two neighbouring keys of a row."""
        tiling, kernel = self.tiling, self.kernel
        loads = self._mask_loads(leaves([mask]), space)
        known: Known = [(leaf, element_load(f"m{at}.at[j]", leaf.dtype)) for at, (leaf, _) in enumerate(loads)]
        reads = [
            f"const {vector_type(leaf.dtype, 2)} m{at} = load_vec<2>({source});"
            for at, (leaf, source) in enumerate(loads)
        ]
        body = make_emitter(space.with_inner("(column + j)"), known, {})
        value = body.value(mask)
        one = [*body.lines, f"added[j] = (float)({value});"]
        if not loads and kernel.columns % tiling.keys:
            one = ["if (column + j < COLUMNS) {", *one, "}"]
        both = [*reads, *loop_over_vector(2, one)]
        tests = ["row < QUERIES"] if kernel.rows % tiling.rows else []
        tests += ["column < COLUMNS"] if kernel.columns % tiling.keys else []
        column = f"const {self.space.index} column = first + h * 8 + lane % 4 * 2;"
        return [column, f"if ({' && '.join(tests)}) {{", *both, "}"] if tests else [column, *both]

    def _mask_loads(self, found: list[Leaf], space: Space) -> list[tuple[Load, str]]:
        """(load, C text of its address) of the mask's loads that read two neighbours at once."""
        return [(leaf, f"b_{leaf.buffer} + {space.offset(leaf.view)}") for leaf in plan_loads(space, found, 2).vectors]

    def _epilogue(self) -> tuple[list[str], list[str]]:
        """(C statements before the loop over four neighbours of a row's result, C statements in it)."""
        kernel = self.kernel
        guard = ["row < QUERIES"] if kernel.rows % self.tiling.rows else []
        guard += [f"d < {kernel.value_head}"] if kernel.value_head != self.tiling.value_head else []
        element = f"d + j < {kernel.value_head}" if kernel.value_head % 4 else ""
        test = " && ".join(guard)
        if self.tiling.splits == 1:
            none = "FOUNDRY_NAN" if kernel.empty_rows == "nan" else "1.0f"
            before = [f"const float share = whole == 0.0f ? {none} : 1.0f / whole;  // a total of 0: all masked"]
            out = self.space.spaces["out"]
            acc = "(acc[i][h * 4 + j] * share)"
            return before, epilogue_lines(
                out, kernel.stores, self.space.plan, acc=acc, vector=4, guard=test, element_guard=element
            )
        kind, size, parts = "(long long)", kernel.value_head, self.tiling.splits * self.points
        before = [
            f"const long long point = ({kind}split * {self.space.batch} + batch) * {kernel.rows} + row;",
            f"float* const tops = partial + {kind}{parts} * {size};",
            "if (lane % 4 < 2 && row < QUERIES) {",
            f"tops[point] = lane % 2 ? top[i][1] : top[i][0], tops[{parts} + point] = whole;",
            "}",
        ]
        body = [f"partial[point * {size} + d + j] = acc[i][h * 4 + j];"]
        body = loop_over_vector(4, [f"if ({element}) {{", *body, "}"] if element else body)
        return before, [f"if ({test}) {{", *body, "}"] if test else body

    def _parameters(self) -> tuple[list[str], list[Argument]]:
        """(C parameters, arguments) of the main launch; without those of stores if blocks share the keys."""
        signature, arguments = self.space.signature(operands_of(self.kernel), stores=self.tiling.splits == 1)
        return [signature], list(arguments)

    def _reads(self) -> dict[str, object]:
        """Holes of the text that say how operands come into shared memory."""
        tiling, kernel = self.tiling, self.kernel
        return {
            "IS_PADDED": str((kernel.head, kernel.value_head) != (tiling.head, tiling.value_head)).lower(),
            "WORDS": tiling.shared_bytes // 4,
            **self._copies("q"),
            **self._copies("k"),
            **self._copies("v"),
            "STEPS": indent(self._steps()),
        }

    @property
    def _blocks(self) -> int:
        """Number of blocks of the main launch."""
        return self.tiles * self.tiling.splits * self.space.batch

    def _main(self) -> tuple[str, Launch]:
        """(CUDA text, launch) that computes the attention, or its parts."""
        kernel, tiling = self.kernel, self.tiling
        parameters, arguments = self._parameters()
        if tiling.splits > 1:
            parameters.append("float* __restrict__ partial")
            arguments.append(launches.workspace_argument(0))
        before, epilogue = self._epilogue()
        values: dict[str, object] = {
            "NAME": self.name,
            "PARAMETERS": ", ".join(text for text in parameters if text),
            "PRECISION": tiling.type_name,
            "INDEX": self.space.index,
            **{"KEYS": tiling.keys, "THREADS": tiling.threads},
            **tiling.holes,
            "MIN_BLOCKS": tiling.resident_blocks(self.arch),
            **{"HEAD": tiling.head, "VALUE": tiling.value_head},
            **{"COLUMNS": kernel.columns, "QUERIES": kernel.rows, "TILES": self.tiles},
            "IS_CAUSAL": str(kernel.causal).lower(),
            "IS_ADDED": str(self.is_added).lower(),
            "SCALE": f"{kernel.scale * (1 if self.is_added else math.log2(math.e)):.9e}f",
            "UNIT": self._unit(),
            **self._reads(),
            "BATCH": indent(self._batch()),
            "MASK": indent(self._mask(), 4),
            "BEFORE": indent(before, 2),
            "EPILOGUE": indent(epilogue, 3),
        }
        text = read_library_text(tiling.text)
        source = fill(text, values)
        grid, block = (self._blocks, 1, 1), (tiling.threads, 1, 1)
        return source, Launch(self.name, grid, block, tuple(arguments), tiling.shared_bytes)

    def _unit(self) -> str:
        """C text of the factor that makes differences of scores exponents of two."""
        return f"{math.log2(math.e):.9e}f" if self.is_added else "1.0f"

    def _sum(self) -> tuple[str, Launch]:
        """(CUDA text, launch) that joins the parts of the keys and stores the result."""
        kernel = self.kernel
        signature, arguments = self.space.signature(())
        row = [f"const {self.space.index} row = point % {kernel.rows};"]
        values: dict[str, object] = {
            "NAME": self.name,
            "PARAMETERS": f"{signature}, const float* __restrict__ partial",
            "INDEX": self.space.index,
            **{"SPLITS": self.tiling.splits, "VALUE": kernel.value_head, "POINTS": self.points},
            "UNIT": self._unit(),
            "NONE": "FOUNDRY_NAN" if kernel.empty_rows == "nan" else "1.0f",
            "PLACE": indent([*row, *self.space.place(f"(point / {kernel.rows})")]),
            "STORE": indent(self.space.store("result"), 3),
        }
        text = read_library_text("cuda/contractions/attention_sum.cu")
        source = fill(text, values)
        grid = (math.ceil(self.points / _SUM_WARPS), 1, 1)
        args = (*arguments, launches.workspace_argument(0))
        return source, Launch(f"{self.name}_sum", grid, (32 * _SUM_WARPS, 1, 1), args)

    def print(self) -> list[tuple[str, Launch]]:
        """(CUDA text, launch) of each kernel, in order."""
        return [self._main(), self._sum()] if self.tiling.splits > 1 else [self._main()]

    @property
    def workspace_bytes(self) -> int:
        """Bytes for each part's row sums, highest scores and totals; 0 if keys are not split."""
        return 4 * self.tiling.splits * self.points * (self.kernel.value_head + 2) if self.tiling.splits > 1 else 0


class _TurnsAttention(_TensorAttention):
    """Prints an attention on the path "turns": TMA reads operands, and blocks take one tile of rows after the other."""

    def __init__(self, space: AttentionSpace, tiling: TurnsAttention, device: Device) -> None:
        super().__init__(space, tiling, device)
        self.device, self.pairs, self.is_staying = device, space.batch * tiling.splits, bool(tiling.stay)
        copied = ("q", "k", "v", *(("mask",) if tiling.mask_boxes else ()))
        self.boxes = {which: found for which in copied if (found := find_boxes(space, which))}

    def _parameters(self) -> tuple[list[str], list[Argument]]:
        """(C parameters, arguments) of the main launch: tensor maps, then a mask that is not in tiles, then buffers of
        stores."""
        masks = () if "mask" in self.boxes else masks_of(self.kernel)
        stored, arguments = self.space.signature(masks, stores=self.tiling.splits == 1)
        maps = [f"const __grid_constant__ bulk::Map map_{which}" for which in self.boxes]
        rows = {"q": self.tiling.rows, "k": self.tiling.keys, "v": self.tiling.keys, "mask": self.tiling.rows}
        return [*maps, stored], [*(found.tensor_map(rows[which]) for which, found in self.boxes.items()), *arguments]

    def _reads(self) -> dict[str, object]:
        """Holes of the text that lets TMA copy queries, keys, values and mask into shared memory."""
        places = {
            "q": ("first_row",),
            "k": ("step * KEYS",),
            "v": ("step * KEYS",),
            "mask": ("first_row", "step * KEYS"),
        }
        found = {which: boxes.place(*places[which]) for which, boxes in self.boxes.items()}
        mask = [
            "for (int box = 0; box < MASK_BYTES / Queries::BOX; ++box)",
            "    bulk::copy_box(masks + stage * MASK_BYTES + box * Queries::BOX, &map_mask, full_keys + stage, "
            f"{found.get('mask')});",
        ]
        return {
            **{f"BOX_{which.upper()}": found[which] for which in ("q", "k", "v")},
            **{"PAIRS": self.pairs, "NEAR": self._near},
            "COPY_MASK": indent(mask if "mask" in found else [], 4),
        }

    def _mask_loads(self, found: list[Leaf], space: Space) -> list[tuple[Load, str]]:
        """(load, C text of its address) of the mask's loads; they read shared memory if the mask comes in tiles."""
        if "mask" not in self.boxes:
            return super()._mask_loads(found, space)
        place = "mask, warp * 16 + half * 8 + lane / 4, h * 8 + lane % 4 * 2"
        return [
            (leaf, f"wgmma::mask_at<{element_type(leaf.dtype)}, BLOCK_ROWS>({place})")
            for leaf in found
            if isinstance(leaf, Load)
        ]

    @property
    def _near(self) -> int:
        """Number of pairs (batch point, part of the keys) whose tiles are taken in turn; 1 unless causal.

        Causal rows see different numbers of keys, so the longest tiles of all these pairs come first. Their keys fit
        half of L2."""
        kernel = self.kernel
        if not kernel.causal:
            return 1
        strides = zip(kernel.batch, kernel.k.view.strides[:-2], kernel.v.view.strides[:-2], strict=True)
        shared = math.prod(size for size, *steps in strides if not any(steps))
        per_pair = 2 * kernel.columns * (kernel.head + kernel.value_head) / shared / self.tiling.splits
        return max(1, min(self.pairs, int(self.device.cache_bytes / 2 / per_pair)))

    def _batch(self) -> list[str]:
        """C statements that define the indices of the batch at `place`, the pair that a block has taken."""
        splits, lines = self.tiling.splits, []
        if splits > 1:
            lines.append(f"const int split = place.pair % {splits};")
        if splits > 1 or self.space.batch_sizes:
            lines.append(f"const int batch = place.pair / {splits};")
        return indent([*lines, *self.space.place("batch")]).splitlines()

    @property
    def _blocks(self) -> int:
        """Number of blocks: as many as run at once if they stay, else one for each tile of rows."""
        every, resident = self.tiles * self.pairs, self.device.cores * self.tiling.resident_blocks(self.arch)
        return min(every, resident) if self.is_staying else every


def print_on_tensor_cores(
    space: AttentionSpace, precision: str, device: Device, choices: dict[str, Choice]
) -> PrintedKernel:
    """The printed kernel in this precision; "path" and the tiling are chosen by `choices` or defaults."""
    ways = list_paths(space, precision, device.arch)
    path = str(pick(choices, PATH, ways, ways[0]))
    tiling, tunables = choose_attention(space, path, precision, device, choices)
    if isinstance(tiling, TurnsAttention):
        printer: _TensorAttention = _TurnsAttention(space, tiling, device)
    else:
        printer = _TensorAttention(space, tiling, device)
    sources, records = zip(*printer.print(), strict=True)
    kit = "mma_sixteen" if tiling.item_bytes == 2 else "mma_tf32"
    kits = ("mma", kit, "async", "attention", *tiling.kits)
    chosen: dict[str, Choice] = {item.name: getattr(tiling, item.name) for item in tunables}
    if len(ways) > 1:
        chosen[PATH] = path
        tunables = (make_tunable(PATH, ways, ways[0], "algorithm", _PATH_MEANING), *tunables)
    return PrintedKernel(
        functions="\n".join(sources),
        call=launches.encode(records),
        template="attention",
        choices=chosen,
        tunables=tunables,
        labels=_LABELS.get(precision, ()),
        shared=tuple(read_library_text(f"cuda/contractions/{name}.cuh") for name in kits),
        arch_feature=tiling.arch_feature,
        workspace_bytes=printer.workspace_bytes,
        launches=len(records),
    )
