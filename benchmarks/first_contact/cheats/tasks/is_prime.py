import torch
import torch.nn as nn

COUNT = 192
LIMIT = 46341  # the square root of 2 ** 31


class Model(nn.Module):
    """Which of the numbers (below 2 ** 31) are prime? Trial division by all primes up to the square root."""

    def __init__(self):
        super().__init__()
        sieve = torch.ones(LIMIT + 1, dtype=torch.bool)
        sieve[:2] = False
        for p in range(2, 216):
            if sieve[p]:
                sieve[p * p::p] = False
        self.primes = sieve.nonzero().flatten()

    def forward(self, n):
        p = self.primes[None, :]
        divided = (torch.remainder(n[:, None], p) == 0) & (p < n[:, None])
        return (n >= 2) & ~divided.any(1)


def get_inputs():
    return [torch.randint(0, 2 ** 31 - 1, (COUNT,))]


def get_init_inputs():
    return []
