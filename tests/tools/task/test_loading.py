"""What a user reads of a task whose answer changes from call to call."""

from __future__ import annotations

from pathlib import Path

import pytest

from foundry.knowledge.errors import RandomTask
from foundry.tools.task.file import read_task
from foundry.tools.task.loading import LoadedTask, check_reference, load

TASK = """import torch
import torch.nn.functional as F
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return x


def get_inputs():
    return [torch.randn(8, 64)]
"""


def loaded(folder: Path, text: str, options: str = "") -> LoadedTask:
    (folder / "job.py").write_text(text)
    (folder / "job.toml").write_text(options)
    return load(read_task(folder / "job.py"))


@pytest.mark.parametrize(
    ("value", "options", "remedy"),
    [
        (
            "nn.Dropout()(x)",
            "",
            "it stays random in eval mode, as F.dropout(..., training=True), its default, does: write "
            'training=self.training there with mode = "eval" beside the task, or remove the random operator',
        ),
        (
            "F.dropout(x, training=True)",
            'mode = "eval"',
            "it stays random in eval mode, as F.dropout(..., training=True), its default, does: write "
            "training=self.training there, or remove the random operator",
        ),
        (
            "F.dropout(x, training=self.training)",
            "",
            'remove the random operator, or set mode = "eval" beside the task if it is dropout',
        ),
    ],
)
def test_eval_mode_is_advised_only_where_it_helps(tmp_path: Path, value: str, options: str, remedy: str) -> None:
    task = loaded(tmp_path, TASK.replace("return x\n", f"return {value}\n"), options)
    with pytest.raises(RandomTask, match="changes with the random seed") as caught:
        check_reference(task)
    assert caught.value.remedy == remedy
    helped = loaded(
        tmp_path, TASK.replace("return x\n", "return F.dropout(x, training=self.training)\n"), 'mode="eval"'
    )
    assert check_reference(helped).outputs
