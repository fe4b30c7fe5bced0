"""Running means that PyTorch leaves more accurate than TF32."""

from __future__ import annotations

import torch

from foundry.knowledge.opgraph import TensorSpec
from foundry.tools.grade.judge.limits import unrounded_means
from foundry.tools.grade.questions.trial import Trial, UpdatedBuffer
from foundry.tools.process.messages import Packing
from foundry.tools.protocol.comparison import Expected
from foundry.tools.protocol.rules import AS_GIVEN, OutputError
from foundry.tools.task.bundle import Parcel

ERROR = OutputError(1e-7, 0.0)


def updated(name: str, tf32: float) -> UpdatedBuffer:
    expected = Expected(torch.zeros(4, dtype=torch.float64), None, (4,), "float32", 1.0, 1.0, 1e-4)
    return UpdatedBuffer(name, expected, ERROR, OutputError(tf32, 0.0), TensorSpec((4,), (1,), "float32"))


def trial_of(*buffers: UpdatedBuffer, has_tf32: bool = True) -> Trial:
    tf32 = [ERROR] if has_tf32 else None
    parcel = Parcel(Packing(tree=[], specs=[]))
    return Trial(AS_GIVEN, 0, parcel, [], [ERROR], tf32, [TensorSpec((4,), (1,), "float32")], buffers=buffers)


def test_a_mean_that_tf32_shows_in_is_left_out() -> None:
    """A ResNet18 on an H200: after a pointwise convolution cuDNN's mean had an error of 2.5e-5, ours in TF32 of
    1.7e-4."""
    trial = trial_of(updated("first.running_mean", 1.9e-4), updated("second.running_mean", 2.5e-5))
    assert unrounded_means(trial) == ("second.running_mean",)
    assert unrounded_means(trial.outline()) == ("second.running_mean",)


def test_variances_and_counters_tell_nothing() -> None:
    assert unrounded_means(trial_of(updated("norm.running_var", 1e-6), updated("norm.seen", 0.0))) == ()


def test_without_tf32_nothing_is_rounded() -> None:
    assert unrounded_means(trial_of(updated("norm.running_mean", 1e-6), has_tf32=False)) == ()
