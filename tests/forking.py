"""Python code in processes of their own that have PyTorch already: each is a fork of one that has imported it, which
takes two seconds of CPU time."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

SERVER = """
import json, os, sys, traceback
import torch
for line in sys.stdin:
    order = json.loads(line)
    if child := os.fork():
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
        continue
    code = 1
    try:
        for number, name in enumerate(("in", "out", "err")):
            os.dup2(os.open(f"{order['streams']}/{name}", os.O_RDWR | os.O_CREAT), number)
        os.environ.update(order["environment"])
        os.chdir(order["folder"])
        sys.stdin, sys.argv = open(0, closefd=False), ["-c", *order["arguments"]]
        exec(compile(order["code"], "<string>", "exec"), {"__name__": "__main__"})
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
"""


class Forks:
    """Runs code as `python -c` would. It starts the process that is forked when it is first asked."""

    def __init__(self) -> None:
        self._server: subprocess.Popen[str] | None = None

    def __call__(
        self,
        code: str,
        *arguments: object,
        stdin: str = "",
        folder: Path | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """`environment` adds to that of the tests."""
        if self._server is None:
            command = [sys.executable, "-c", SERVER]
            self._server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._server.stdin and self._server.stdout
        with tempfile.TemporaryDirectory() as streams:
            (Path(streams) / "in").write_text(stdin)
            place = {"streams": streams, "folder": str(folder or Path.cwd()), "environment": dict(environment or {})}
            order = {"code": code, "arguments": [*map(str, arguments)], **place}
            print(json.dumps(order), file=self._server.stdin, flush=True)
            ended = int(self._server.stdout.readline())
            out, err = ((Path(streams) / name).read_text(errors="replace") for name in ("out", "err"))
        return subprocess.CompletedProcess([code, *map(str, arguments)], ended, out, err)

    def close(self) -> None:
        if self._server is not None:
            self._server.kill()
            self._server.communicate()
