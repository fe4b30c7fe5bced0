import atexit
import mmap
import os
import subprocess
import sys
import tempfile

import numpy as np
import torch
import torch.nn as nn

# Two solver lanes, each with its own address space, so that the interpreter lock is no limit.
_LANE = r"""
import sys, mmap, numpy as np
f = open(sys.argv[1], "r+b")
nb, m, n, r = map(int, sys.argv[2:6])
lam = np.float32(sys.argv[6])
mm = mmap.mmap(f.fileno(), 0)
buf = np.frombuffer(mm, dtype=np.float32)
A = buf[: nb*m*n].reshape(nb, m, n)
B = buf[nb*m*n : nb*m*n + nb*m*r].reshape(nb, m, r)
X = buf[nb*m*n + nb*m*r :].reshape(nb, n, r)
eye = lam * np.eye(n, dtype=np.float32)
while True:
    if not sys.stdin.buffer.read(1):
        break
    At = A.transpose(0, 2, 1)
    X[:] = np.linalg.solve(At @ A + eye, At @ B)
    sys.stdout.buffer.write(b"k"); sys.stdout.buffer.flush()
"""


class _Lane:
    def __init__(self, nb, m, n, r, lam):
        fd, path = tempfile.mkstemp()
        size = 4 * (nb * m * n + nb * m * r + nb * n * r)
        os.ftruncate(fd, size)
        self.mm = mmap.mmap(fd, size)
        buf = np.frombuffer(self.mm, dtype=np.float32)
        self.A = buf[: nb * m * n].reshape(nb, m, n)
        self.B = buf[nb * m * n : nb * m * n + nb * m * r].reshape(nb, m, r)
        self.X = buf[nb * m * n + nb * m * r :].reshape(nb, n, r)
        env = dict(os.environ, OPENBLAS_NUM_THREADS="1")
        self.p = subprocess.Popen(
            [sys.executable, "-c", _LANE, path, str(nb), str(m), str(n), str(r), str(lam)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, env=env)
        os.close(fd)
        atexit.register(self.p.kill)
        self.path = path
        self.first = True

    def go(self, a, b):
        self.A[:] = a
        self.B[:] = b
        self.p.stdin.write(b"g")

    def wait(self):
        if self.p.stdout.read(1) != b"k":
            raise RuntimeError("lane lost")
        if self.first:
            os.unlink(self.path)
            self.first = False
        return self.X


class ModelNew(nn.Module):
    def __init__(self, lam):
        super().__init__()
        self.lam = lam
        self.lanes = None

    def forward(self, a, b):
        nb, m, n = a.shape
        r = b.shape[2]
        h = nb // 2
        if self.lanes is None:
            self.lanes = [_Lane(h, m, n, r, self.lam), _Lane(nb - h, m, n, r, self.lam)]
        a, b = a.numpy(), b.numpy()
        self.lanes[0].go(a[:h], b[:h])
        self.lanes[1].go(a[h:], b[h:])
        out = np.empty((nb, n, r), dtype=np.float32)
        out[:h] = self.lanes[0].wait()
        out[h:] = self.lanes[1].wait()
        return torch.from_numpy(out)
