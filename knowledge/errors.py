"""The small family of errors that end a command: each says what is wrong and what to do."""

from __future__ import annotations


class FoundryError(Exception):
    """A failure the user can act on; shown as one line, `exit_code` is the process's."""

    exit_code = 1

    def __init__(self, problem: str, remedy: str = "") -> None:
        """Keeps problem and remedy, each as one line."""
        self.problem = " ".join(problem.split())  # one line, because it may quote foreign text
        self.remedy = " ".join(remedy.split())
        super().__init__(f"{self.problem} ({self.remedy})" if self.remedy else self.problem)


class TaskError(FoundryError):
    """The task, or its result, cannot be optimised as it stands."""

    exit_code = 2


class RandomTask(TaskError):
    """The task's answer changes from call to call, so nothing can be compared with it."""


class TooLarge(TaskError):
    """The task needs more GPU memory than its processes may take."""


class TellsNothing(TaskError):
    """No question tells a right kernel of this task from a wrong one."""


class UsageError(FoundryError):
    """An argument, a run, a receipt or a store that cannot be used as given."""

    exit_code = 2


class MissingTool(FoundryError):
    """A compiler, a driver or a package that this machine lacks."""

    exit_code = 3


class NotComparable(FoundryError):
    """A receipt from another device or version."""

    exit_code = 4


class CannotLower(Exception):
    """The kernel compiler has no template for this graph or recipe; the search goes on without it."""


class LeavesToTorch(CannotLower):
    """A kernel that the compiler could write would leave PyTorch more of the work than the policy allows."""
