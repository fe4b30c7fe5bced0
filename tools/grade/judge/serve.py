"""The entry of a judge process: `open` first, then requests with links, answered in plain JSON. Imports torch."""

from __future__ import annotations

import ctypes
import gc
import time
import warnings
from collections.abc import Callable

import torch

from foundry.knowledge.errors import FoundryError
from foundry.tools.grade.judge.judge import Judge
from foundry.tools.grade.judge.link import Breaks, RunnerFailed
from foundry.tools.process.channel import MAY_PAUSE, Channel, Message, close_all
from foundry.tools.process.gpu_memory import OutOfGpuMemory
from foundry.tools.task import bundle

_TIMING = ("baseline", "alone", "time", "contest")  # requests
_PR_SET_DUMPABLE = 4
_MAKE_ROOM = "end what else uses the GPU, or make the task's sizes smaller"


def serve(control: Channel) -> None:
    """Runs a judge process: answers requests from `control` until it is closed. `open` comes first, then requests with
    links.

    Failures become fields of the answer: "error" (the task or machine) or "failed" (a runner).
    """
    # Same user as the candidates' processes: at least not readable through /proc or ptrace by a plain user.
    ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    torch.set_grad_enabled(False)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False  # IEEE unless asked otherwise
    warnings.simplefilter("ignore")
    bundle.use_expandable_segments()
    judge: Judge | None = None
    breaks = Breaks(control)
    while True:
        message, handles = control.receive()
        answer: Message = {}
        start = time.perf_counter()
        breaks.are_allowed = bool(message.get(MAY_PAUSE))
        try:
            if message["do"] == "warm":
                torch.cuda.current_blas_handle()  # type: ignore[no-untyped-call]  # makes the context too
            elif message["do"] == "open":
                torch.set_num_threads(int(message["threads"]))
                judge = Judge(message, breaks)
            else:
                request: Callable[[Message, list[int]], Message] = getattr(judge, message["do"])
                answer = request(message, handles)
        except FoundryError as error:
            answer = {"error": [type(error).__name__, error.problem, error.remedy]}
        except RunnerFailed as failed:
            answer = failed.answer()
        except (torch.OutOfMemoryError, OutOfGpuMemory) as error:  # what was planned fits: somebody took more
            words = f"the GPU's memory is used up: {str(error).splitlines()[0][:300]}"
            is_beside = message["do"] in ("verify", "ready", "time", "ablate")
            answer = {"failed": ["crash", words]} if is_beside else {"error": ["TooLarge", words, _MAKE_ROOM]}
        finally:
            close_all(handles)
        if message["do"] not in _TIMING:  # the device is held alone then, and another request follows
            gc.collect()
            bundle.give_back()
        control.send({**answer, "spent_s": time.perf_counter() - start})
