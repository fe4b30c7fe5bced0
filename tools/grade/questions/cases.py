"""The judge's reference: models, states, hidden inputs and float64 truths. Runs in the judge.

A case is one set of shapes and dtypes of a task: the file's own, each of its extra shapes, each further dtype.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from functools import partial, reduce
from pathlib import Path
from typing import Any

import torch
from torch import nn

from foundry.knowledge.errors import TaskError
from foundry.knowledge.opgraph import Arrangement, DType, TensorSpec
from foundry.knowledge.task import Mode, Task
from foundry.tools.grade.questions import index_ranges, other_parameters, patterns
from foundry.tools.grade.questions.case_parameters import CaseParameters
from foundry.tools.grade.questions.freedom.products import tf32_allowed
from foundry.tools.grade.questions.freedom.reruns import Reruns, reruns_of
from foundry.tools.grade.questions.freedom.ties import may_order
from foundry.tools.grade.questions.integers.counts import Counts, Kind
from foundry.tools.grade.questions.integers.decisions import Decisions
from foundry.tools.grade.questions.integers.limits import InRange, indices_wrap, with_limits
from foundry.tools.grade.questions.lean import ROOMY, CaseRoom, Learned
from foundry.tools.grade.questions.reals import again, as_reals
from foundry.tools.grade.questions.running_statistics import updated_buffers
from foundry.tools.grade.questions.task_numbers import SMALL, literals, with_task_numbers
from foundry.tools.grade.questions.trial import Errors, Trial, UpdatedBuffer, contiguous_spec, usual_strides
from foundry.tools.grade.questions.widening import Truth, truth_of, wide
from foundry.tools.grade.runner.tensors import share_memory, shared_elements
from foundry.tools.process.torch_device import torch_device_of
from foundry.tools.protocol import comparison
from foundry.tools.protocol.comparison import MOST_LOST, Expected, Overflow, excuse_overflow, overflowing
from foundry.tools.protocol.rules import (
    AS_GIVEN,
    COUNTS,
    FEW_CHANGED,
    OF_INTEGERS,
    TIMED,
    Distribution,
    OutputError,
    Parameters,
    worst_of,
)
from foundry.tools.task import bundle, loading
from foundry.tools.task.bundle import Parcel
from foundry.tools.task.gradients import gradients_of
from foundry.tools.task.modes import OtherAnswer, other_answer

DRAWS = 8  # draws to measure PyTorch's error if one draw tells little


class Case(CaseParameters):
    """A task at one set of shapes and dtypes, with one seed for the initial parameters."""

    def __init__(
        self, task: Task, overrides: dict[str, int], dtype: DType | None, seed: int, device: str, room: CaseRoom = ROOMY
    ) -> None:
        """Loads the task at these shapes and dtype and builds the reference. Facts about inputs are found by the first
        trials."""
        self._loaded, self._literals = loading.load(task, overrides=overrides, dtype=dtype), literals(task.source)
        super().__init__(self._loaded, seed, torch.device(device), room)
        self.task, self.overrides, self.dtype = task, overrides, dtype
        self._tolerance, self.mode = task.options.tolerance, task.options.mode
        self.limited = task.options.input_range is not None
        self.drawn_on = str(self._loaded.place_to_draw(self._device))  # device on which each process draws parameters
        self._given_seed = self._changed_seed = seed  # seeds of the inputs of the last trials "as given", "few changed"
        self._usual: list[Expected] = []  # outputs as given, for their scale
        self._is_exact: list[bool] = []  # True for each output that PyTorch does not round
        # Kinds of inputs that distributions change; known after the first trial.
        self.has_floats = self.has_masks = False
        self._has_numbers = False  # inputs that are Python floats
        self._has_one_sign = False  # a floating input, as given, has no negative or no positive element
        self._uses_tf32 = False  # PyTorch's error differs if TF32 is allowed
        self._ranges: list[Kind] = []  # use of each input tensor's integers, if known
        self._may_wrap = False  # negative indices occur with the inputs as given
        folder = Path(task.path).absolute().parent
        self.decisions = Decisions([task.path, *(str(folder / name) for name in task.options.files)])
        self._takes = Arrangement()  # arrangement of the inputs; known when first drawn
        self._structures: list[patterns.Structure] | None = None  # one for each input; known when first changed
        self._may_order = may_order(task.source)
        self._is_bounded = True  # the outputs as given are far from overflowing
        self._shapes: list[torch.Size] = []  # output shapes
        self._specs: list[TensorSpec] = []  # specs of the last outputs in their own dtypes; they are compared `as_real`
        self._usual_tf32: list[OutputError] = []  # the largest TF32 errors of PyTorch on inputs as given or scaled
        self.strides: list[tuple[int, ...]] = []  # strides of the outputs as given; row-major if they repeat elements
        # A float64 run may fail for memory; decided by the first one, before there is a candidate.
        self.may_lack_memory = True
        self.returns_views = False  # the reference's own outputs share memory with its inputs or parameters
        self.shared_elements: list[int] = []  # elements of each reference output that share another's memory
        self.keys: list[str] = []  # keys of dicts that lead to its results
        self._writes: list[int] | None = None  # numbers of the input tensors that forward writes to, once known

    @property
    def name(self) -> str:
        """The case in words, "" for the file's own shapes and dtypes."""
        changed = [*(f"{name}={value}" for name, value in self.overrides.items()), self.dtype or ""]
        return ", ".join(filter(None, changed))

    @property
    def init(self) -> Parcel:
        """The model's constructor arguments."""
        return bundle.pack(self._loaded.init_arguments(self.seed))

    def suits(self, distribution: Distribution) -> bool:
        """True if a distribution changes anything for this task's inputs and parameters; known after the trial "as
        given"."""
        if distribution.pattern == "few bits":
            return self._uses_tf32
        if distribution.is_lost_in_tf32 and self._uses_tf32:
            return False
        if distribution.is_of_buffers:
            return bool(self._tables(distribution.parameters))
        if distribution.parameters == "statistics":
            rest = (item for item in self._model.state_dict().items() if item[0] not in self._learned)
            return any(self._is_randomised(*item) for item in rest)
        if distribution.parameters != "seeded":
            return self.has_parameters(2 if distribution.parameters in other_parameters.HALVES else 1)
        if distribution.pattern in patterns.OF_MASKS:
            return self.has_masks
        if distribution.pattern == "other numbers":
            return self._has_numbers
        if distribution.pattern == "few other signs":
            return self._has_one_sign
        # A plain formula may lose there the digits that the parts of a sum share.
        if distribution.pattern == "close together":
            return self.has_floats and bool(self._is_exact) and all(self._is_exact)
        if distribution.pattern == "no structure":
            return self.has_structure()
        if distribution.pattern == "alike rows":
            return self.has_floats and self.decisions.has_routes
        if distribution.pattern in OF_INTEGERS:
            return index_ranges.changes_any(self._ranges, distribution.pattern)
        return self.has_floats or not distribution.pattern

    def other_mode(self, inputs: Parcel) -> tuple[Mode, OtherAnswer]:
        """Returns (the other of train and eval, PyTorch's behaviour in it)."""
        self._load_state(self._model, "seeded")
        return "eval" if self._model.training else "train", other_answer(self._model, inputs.value())

    def gradients(self, trial: Trial) -> list[torch.Tensor] | None:
        """PyTorch's gradients in float64, by each floating input and each learned parameter.

        None if no float64 model was built. Raises what autograd raises.
        """
        if (exact := self._reference.exact) is None:
            return None
        self._load_state(exact, trial.distribution.parameters)
        values = bundle.map_tensors(trial.inputs.value(), wide)  # nested as the model takes them
        state = list(self._without_counters(exact.state_dict(keep_vars=True)).values())
        return gradients_of(exact, values, [state[n] for n in self.learned_places()], only_own=False)

    def has_structure(self) -> bool:
        """True if inputs share something in every draw (a triangle of zeros, symmetry)."""
        if self._structures is None:
            self._structures_of(self._given(self.seed))
        return any(item.is_some for item in self._structures or ())

    @property
    def learned(self) -> Learned:
        """Findings of this case that later cases of the same task use."""
        found = self.may_lack_memory, self._mutable or [], self.strides, self._writes
        return Learned(self.name, *found, self._usual_tf32)

    def learn_from(self, other: Learned) -> None:
        """Takes over findings of an earlier case of the same task."""
        self.may_lack_memory, self._usual_mutable, self._writes = other.may_lack_memory, other.mutable, other.writes
        if self.name == other.name:  # other shapes have other strides, and other dtypes other errors
            self.strides, self._usual_tf32 = other.strides, other.usual_tf32

    @torch.no_grad()  # in whichever thread
    def public_inputs(self, seed: int) -> list[Any]:
        """get_inputs() of a seed as every process draws them: on the host. Raises TaskError."""
        return self._loaded.inputs(seed)

    def public_trial(self, seed: int, drawn: Sequence[Any], *, is_changed: bool = False) -> Trial:
        """The question with public inputs, which anybody can draw, or with a few of their elements changed. Raises
        TaskError."""
        self._takes, leaves = loading.arrange(drawn)
        placed = [loading.placed(value, self._device) for value in leaves]
        if is_changed:
            given = as_reals(placed), self._structures_of(placed), self._device
            placed = again(patterns.with_few_changed(*given, limited=self.limited), placed)
        return self._make_trial(AS_GIVEN, seed, placed)

    def timed_trial(self, leaves: list[Any]) -> Trial:
        """The question that a timed call on these inputs asked."""
        return self._make_trial(TIMED, self.seed, leaves)

    def trial(self, distribution: Distribution, seed: int) -> Trial:
        """Draws inputs and runs PyTorch in its own dtype and in float64. Raises TaskError if the reference fails."""
        problem: TaskError | None = None
        for question in (distribution, *distribution.gentler):
            try:
                trial = self._trial(question, seed)
            except Overflow as overflow:
                problem = overflow
                continue
            if question == distribution:
                return trial
            way = (
                f"x{question.scale:g}" if question.scale != 1.0 else f"2**-{question.exponents} to {question.exponents}"
            )
            note = f"asked with {way}, because larger values overflow the reference"
            return replace(trial, distribution=distribution, note="; ".join(filter(None, (trial.note, note))))
        raise problem or TaskError("no inputs could be drawn")

    def _trial(self, distribution: Distribution, seed: int) -> Trial:
        """The question for one distribution; raises Overflow if the reference's outputs overflow."""
        return self._make_trial(distribution, seed, self._draw(distribution, seed, self._given_seed))

    def _make_trial(self, distribution: Distribution, seed: int, placed: list[Any]) -> Trial:
        """Runs the reference on given inputs and makes the question: truth, PyTorch's own errors, updated buffers.

        Raises TaskError if its outputs are not finite or of other shapes, Overflow if they overflow. Learns facts about
        the task from inputs as given.
        """
        self.has_floats = any(item.is_floating_point() or item.is_complex() for item in bundle.tensors_in(placed))
        self.has_masks = any(patterns.is_mask(tensor) for tensor in bundle.tensors_in(placed))
        self._has_numbers = any(map(patterns.is_number, placed))
        kind = distribution.parameters
        # Outputs would otherwise occupy part of large idle blocks, which then could not be released.
        bundle.give_back()
        self._check_indices(distribution, placed)
        eager = self._ask_reference(kind, placed)
        # Kept, because other runs of the same model may be in float64: of a lean case, or to find overflows.
        specs = self._specs
        bundle.give_back()
        updated = self._read_updated(self._model)
        if distribution == AS_GIVEN:
            self._learn_from_given(placed, eager)
        elif distribution.may_overflow and not all(bool(torch.isfinite(item).all()) for item in eager):
            raise TaskError("its outputs are not finite with them")
        elif distribution.pattern == "other numbers" and [item.shape for item in eager] != self._shapes:
            raise TaskError("its outputs have other shapes for them")
        lost = overflowing(eager) if self._is_bounded and distribution.enlarges else 0.0
        if lost > (MOST_LOST if distribution.is_stress else 0.0):
            raise Overflow("its outputs overflow")
        truth = self._truth(kind, placed, eager, updated)
        pairs = [excuse_overflow(*pair) if lost else pair for pair in zip(truth.outputs, eager, strict=True)]
        expected = list(map(self._expect, *zip(*pairs, strict=True), [spec.dtype for spec in specs]))
        if distribution == AS_GIVEN:
            self._given_seed = seed
            self._usual = [comparison.scale_only(item) for item in expected]
        if distribution.is_stress or kind == "large" or distribution.pattern in COUNTS:
            expected = self._in_usual_units(distribution, expected)
        ieee = [comparison.measure(output, item) for output, item in zip(eager, expected, strict=True)]
        exact = self._find_exact(distribution, ieee, eager if truth.note else truth.outputs, eager)
        tf32 = self._tf32_errors(kind, placed, expected, list(zip(eager, ieee, strict=True)))
        if distribution.only_scales and tf32 is not None:  # cuDNN may choose another algorithm if memory is short
            tf32 = self._usual_tf32 = list(map(worst_of, tf32, self._usual_tf32 or tf32))
        under_tf32 = updated if tf32 is None else self._read_updated(self._model)
        if distribution.may_be_unstable or distribution.has_ties:
            found = zip(ieee, self._errors_when_nudged(kind, placed, expected, 1), expected, strict=True)
            is_all = distribution.may_be_unstable
            ieee = [worst_of(own, nudged) if is_all or not item.is_floating else own for own, nudged, item in found]
        if distribution == AS_GIVEN and tf32 is not None:
            self._uses_tf32 = any(one.norm > 2.0 * other.norm for one, other in zip(tf32, ieee, strict=True))
        buffers = () if distribution.is_stress else self._buffers(kind, truth.updated, updated, under_tf32)
        packed = self._pack(placed)  # last, because an exception would leave this shared memory open
        bundle.give_back()
        luck = partial(self._errors_of_luck, distribution, seed, list(map(comparison.scale_only, expected)))
        unstable = partial(self._errors_when_nudged, kind, packed, expected, patterns.WAYS)
        is_wider = tuple(not truth.note and own.dtype != torch.float64 for own in eager)
        reruns = reruns_of(partial(self._run, self._model, kind), truth.again, packed, may_order=self._may_order)
        return Trial(
            distribution,
            seed,
            inputs=packed,
            expected=expected,
            ieee=ieee,
            tf32=tf32,
            specs=specs,
            note=truth.note,
            buffers=buffers,
            exact=exact,
            luck=luck,
            unstable=unstable,
            is_wider=is_wider,
            reruns=reruns,
        )

    def _ask_reference(self, kind: Parameters, placed: list[Any]) -> list[torch.Tensor]:
        """PyTorch's outputs on a copy of the inputs; what Python reads is noted if the task reads anything."""
        if self.decisions.reads:
            return self._run_noted(kind, placed)
        return self._run(self._model, kind, bundle.copied(placed))

    def _in_usual_units(self, distribution: Distribution, expected: list[Expected]) -> list[Expected]:
        """The expectations of a stress question in units of the usual outputs, with what NaN and infinities may do."""
        may_spread = distribution.pattern in ("non-finite", "few other signs")
        any_nan = may_spread or distribution.pattern in ("NaN at edges", "empty masks", *COUNTS)
        return [
            replace(comparison.count_in_usual_units(item, usual), any_nan=any_nan, may_spread=may_spread)
            for item, usual in zip(expected, self._usual, strict=False)
        ]

    def _learn_from_given(self, placed: list[Any], eager: list[torch.Tensor]) -> None:
        """Keeps facts about inputs and outputs as given."""
        if not self.decisions.has_run:  # apart: while it is watched, PyTorch uses no fused attention
            try:
                self._run_noted("seeded", placed)
            except (TaskError, torch.OutOfMemoryError):
                self.decisions.give_up()
        self._shapes = [item.shape for item in eager]
        self._ranges = self._ranges or self._index_ranges(bundle.copied(placed))
        self._is_bounded = not overflowing(eager)
        self._has_one_sign = any(map(patterns.has_one_sign, as_reals(bundle.tensors_in(placed))))

    def _find_exact(self, drawn: Distribution, own: list[OutputError], *runs: list[torch.Tensor]) -> tuple[bool, ...]:
        """Marks the outputs that PyTorch does not round, here or on the inputs as given; only a wider truth can
        tell."""
        tells = [
            not (drawn.has_ties and not item.is_floating_point())
            and (longer.dtype != item.dtype or not item.is_floating_point())
            for longer, item in zip(*runs, strict=True)
        ]
        found = [can_tell and error == OutputError(0.0, 0.0) for can_tell, error in zip(tells, own, strict=True)]
        if drawn == AS_GIVEN:
            self._is_exact = found
        return tuple(map(all, zip(found, self._is_exact, strict=False))) or (False,) * len(found)

    def trial_as_before(self, trial: Trial, before: Parameters, names: Sequence[str]) -> Trial:
        """The same trial with the truth that would hold if the parameters `names` still had the values of kind
        `before`.

        Raises TaskError.
        """

        def mixed() -> other_parameters.Drawn:
            """Yields the present tensors' pieces, for keys in `names` those of the earlier kind instead."""
            older, now = (self._states.each(kind) for kind in (before, trial.distribution.parameters))
            for earlier, piece in zip(older, now, strict=True):
                yield earlier if piece.key in names else piece

        self._states.plan("as before", mixed)
        placed = loading.flatten(trial.inputs.value())
        eager = self._run(self._model, "as before", bundle.copied(placed))
        truth = self._truth("as before", placed, eager, []).outputs
        expected = list(map(self._expect, truth, eager, [spec.dtype for spec in trial.specs]))
        ieee = [comparison.measure(output, item) for output, item in zip(eager, expected, strict=True)]
        tf32 = self._tf32_errors("as before", placed, expected, list(zip(eager, ieee, strict=True)))
        return replace(trial, expected=expected, ieee=ieee, tf32=tf32, buffers=(), reruns=Reruns())

    def inputs(self, seed: int, distribution: Distribution = AS_GIVEN) -> Parcel:
        """Inputs for timing."""
        return self._pack(self._draw(distribution, seed, seed))

    def _pack(self, leaves: Sequence[Any]) -> Parcel:
        """Packs these leaves, nested as forward's arguments are, into a parcel on the device."""
        return bundle.pack(loading.rebuilt(self._takes, iter(leaves)), self._device, self.writes)

    @property
    def writes(self) -> list[int]:
        """Numbers of the input tensors that the reference's forward writes to: results of a call like its outputs."""
        if self._writes is None:
            self._run(self._model, "seeded", self._given(self.seed))
        return self._writes or []

    def _run(self, model: nn.Module, kind: Parameters, inputs: Sequence[Any]) -> list[torch.Tensor]:
        """Runs a model with the parameters of a kind on inputs that it may write to.

        Returns its outputs as real numbers, then the inputs that it writes to.
        """
        self._load_state(model, kind)
        tensors = bundle.tensors_in(list(inputs))
        versions = [tensor._version for tensor in tensors]
        result = self._forward(model, inputs)
        outputs = [leaf for leaf in loading.flatten(result) if isinstance(leaf, torch.Tensor)]
        written = self._written(tensors, versions)
        if model is self._model:
            self._specs = list(map(contiguous_spec, [*outputs, *written]))
            usual = list(map(usual_strides, outputs))
            self.strides = self.strides or usual
        if self._mutable is None:
            self.returns_views = share_memory(outputs, [*bundle.tensors_in(inputs), *model.state_dict().values()])
            self.shared_elements, self.keys = shared_elements(outputs), loading.dict_keys(result)
            self._note_updates(kind)
        return list(map(loading.as_real, [*outputs, *written]))

    def _written(self, tensors: list[torch.Tensor], versions: list[int]) -> list[torch.Tensor]:
        """The inputs that a call has written to, given the versions that they had before it. Raises TaskError if it
        wrote to others than the first call."""
        pairs = enumerate(zip(tensors, versions, strict=True))
        found = [number for number, (tensor, version) in pairs if tensor._version > version]
        self._writes = found if self._writes is None else self._writes
        if not set(found) <= set(self._writes):
            raise TaskError("forward writes to other inputs with them")
        return [tensors[number] for number in self._writes]

    def _run_noted(self, kind: Parameters, inputs: list[Any]) -> list[torch.Tensor]:
        """Runs the model while it is noted what its Python reads."""
        copies = bundle.copied(inputs)
        with self.decisions.noting([*bundle.tensors_in(copies), *self._model.state_dict(keep_vars=True).values()]):
            return self._run(self._model, kind, copies)

    def _truth(self, kind: Parameters, inputs: Any, eager: list[torch.Tensor], updated: list[torch.Tensor]) -> Truth:
        """The float64 run's answer; for a model that cannot run in float64, that of its own dtype."""

        def run(model: nn.Module, values: Any) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
            """(outputs, updated buffers) of the model on copies of the values."""
            return self._run(model, kind, bundle.copied(values)), self._read_updated(model)

        models, lacks = (self._reference.widened, self._model), self.may_lack_memory
        truth = truth_of(run, models, inputs, (eager, updated), may_lack_memory=lacks)
        self.may_lack_memory &= bool(truth.note)
        return truth

    def _expect(self, exact: torch.Tensor, own: torch.Tensor, dtype: DType | None = None) -> Expected:
        """The expected output from the float64 run and PyTorch's own."""
        return comparison.expect(exact, own, dtype or loading.dtype_name(own.dtype), self._tolerance)

    def _buffers(self, kind: Parameters, *runs: list[torch.Tensor]) -> tuple[UpdatedBuffer, ...]:
        """The updated buffers, as left by runs in float64, in IEEE arithmetic and with TF32."""
        before = self._before_updates(kind)
        return updated_buffers(self._model, self._mutable_keys(), before, runs, self._expect)

    def _errors_when_nudged(self, kind: Parameters, given: Any, expected: list[Expected], ways: int) -> Errors:
        """PyTorch's largest errors on inputs changed by a unit in the last place, in `ways` different ways."""
        found = list[Errors]()
        values = loading.flatten(given.value() if isinstance(given, Parcel) else given)
        for way in range(ways):
            nudged = bundle.map_tensors(as_reals(values), partial(patterns.nudge, way=way))
            outputs = self._run(self._model, kind, again(nudged, values))
            found.append([comparison.measure(output, item) for output, item in zip(outputs, expected, strict=True)])
        return [reduce(worst_of, errors) for errors in zip(*found, strict=True)]

    @torch.no_grad()
    def _errors_of_luck(self, distribution: Distribution, seed: int, scales: list[Expected], is_tf32: bool) -> Errors:
        """The largest of PyTorch's errors on DRAWS other inputs of the distribution, with TF32 or without.

        Counted in units of `scales`, so that a truth that happens to be small makes no error larger. Empty if memory
        is short.
        """
        kind, changed_seed = distribution.parameters, self._changed_seed
        drawn: list[list[OutputError]] = []
        with contextlib.suppress(torch.OutOfMemoryError, TaskError):
            for number in range(1, DRAWS + 1):
                placed = self._draw(distribution, seed ^ number, self._given_seed ^ number)
                with tf32_allowed(is_tf32):
                    eager = self._run(self._model, kind, bundle.copied(placed))
                truth = self._truth(kind, placed, eager, []).outputs
                dtypes = [scale.dtype for scale in scales]
                pairs = zip(map(self._expect, truth, eager, dtypes), scales, strict=True)
                expected = [replace(item, norm=scale.norm, spread=scale.spread) for item, scale in pairs]
                drawn.append([comparison.measure(own, item) for own, item in zip(eager, expected, strict=True)])
        self._changed_seed = changed_seed
        return [reduce(worst_of, found) for found in zip(*drawn, strict=True)]

    def _tf32_errors(
        self, kind: Parameters, inputs: Any, expected: list[Expected], own: list[tuple[torch.Tensor, OutputError]]
    ) -> list[OutputError] | None:
        """PyTorch's errors where TF32 is allowed; `own` are its outputs where it is not, with their errors."""
        if not torch_device_of(self._device).has_tf32:
            return None
        with tf32_allowed(True):
            outputs = self._run(self._model, kind, bundle.copied(inputs))
        return [
            error if torch.equal(output, plain) else comparison.measure(output, item)
            for output, (plain, error), item in zip(outputs, own, expected, strict=True)
        ]

    def _load_state(self, model: nn.Module, kind: Parameters) -> None:
        """Lets the reference load its parameters of this kind into the model."""
        self._reference.load(model, kind, self._mutable_keys())

    def _forward(self, model: nn.Module, leaves: Sequence[Any]) -> Any:
        """Runs a model on flat leaves, arranged as the task's inputs; stored parameters are brought to the device."""
        with self._reference.running():
            return self._loaded.run(model, loading.rebuilt(self._takes, iter(leaves)))

    def _index_ranges(self, inputs: list[Any]) -> list[Kind]:
        """The use of each integer input, found by watching one forward; [] if there are only floats and masks."""
        tensors = bundle.tensors_in(inputs)
        if all(item.is_floating_point() or patterns.is_mask(item) for item in tensors):
            return []
        self._load_state(self._model, "seeded")
        try:
            ranges = index_ranges.index_ranges(lambda: self._forward(self._model, inputs), tensors)
        except TaskError:  # it does not bear to be watched
            return [None] * len(tensors)

        def run(values: list[Any]) -> list[torch.Tensor]:
            return self._run(self._model, "seeded", values)

        if any(isinstance(kind, Counts) for kind in ranges):
            self._may_wrap = indices_wrap(inputs, run)
            ranges = with_limits(ranges, inputs, run, may_wrap=self._may_wrap)
        return index_ranges.without_overflow(ranges, inputs, run)

    def _check_indices(self, distribution: Distribution, inputs: list[Any]) -> None:
        """Raises TaskError if other lengths or classes lead to indices that would end the process on a GPU."""
        is_asked = distribution.pattern in (*COUNTS, "other indices")
        if is_asked and any(isinstance(kind, Counts) for kind in self._ranges):
            with InRange(may_wrap=self._may_wrap):
                self._run(self._model, distribution.parameters, bundle.copied(inputs))

    def _given(self, seed: int) -> list[Any]:
        """The leaves of get_inputs(), drawn on the device; questions change them one by one."""
        self._takes, leaves = loading.arrange(self._loaded.inputs(seed, self._device))
        return leaves

    def _draw(self, distribution: Distribution, seed: int, given_seed: int) -> list[Any]:
        """Inputs of a distribution. `given_seed`: seed of the inputs that the pattern `few changed` changes."""
        if distribution.pattern == "few changed":
            self._changed_seed = seed
        elif distribution.pattern == "rearranged":
            seed = self._changed_seed
        inputs = self._given(given_seed if distribution.pattern in ("few changed", "rearranged") else seed)
        if distribution == AS_GIVEN:
            return list(inputs)
        generator = torch.Generator(self._device).manual_seed(seed ^ 0x5EED)
        if distribution.pattern in OF_INTEGERS:
            return index_ranges.redraw_each(inputs, self._ranges, generator, distribution.pattern)
        structures = self._structures_of(inputs)
        own = inputs
        inputs = as_reals(inputs)
        if distribution.pattern == "task numbers":
            small = self._states.picked(
                "seeded", [key for key, item in self._tensors().items() if item.numel() <= SMALL]
            )
            tables = as_reals(small.values())
            return again(with_task_numbers(inputs, self._literals, tables, structures, generator), own)
        if distribution.pattern == "rearranged":  # the inputs of the last call, of which a few elements were changed
            inputs = patterns.transform_each(inputs, FEW_CHANGED, structures, generator, limited=self.limited)
        if distribution.pattern == "no structure":
            return again(patterns.break_each(inputs, structures, generator), own)
        return again(patterns.transform_each(inputs, distribution, structures, generator, limited=self.limited), own)

    def _structures_of(self, inputs: list[Any]) -> list[patterns.Structure]:
        """The structure that all draws of each input share, from two draws."""
        if self._structures is None:
            inputs = as_reals(inputs)
            others = self._given(self.seed ^ 0x57A7) if any(map(patterns.may_have_structure, inputs)) else inputs
            self._structures = [patterns.structure_of(*pair) for pair in zip(inputs, as_reals(others), strict=True)]
        return self._structures
