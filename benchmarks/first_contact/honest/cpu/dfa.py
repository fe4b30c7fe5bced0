import ctypes, os, subprocess, tempfile
import torch
import torch.nn as nn

# Compile the int64 table to 16 bits with the accept bit folded in (in every call), then walk four strings at once.
SRC = r"""
#include <stdint.h>
#include <stdlib.h>
int dfa(const int64_t* next, const uint8_t* accept, const uint8_t* text, const int64_t* start, int64_t* state, int64_t* hits,
        long S, long B, long T) {
    if (S > 0x7fff) return 2;
    uint16_t* tab = malloc(sizeof(uint16_t) * S * 256);
    int bad = 0;
    for (long i = 0; i < S * 256; i++) {
        int64_t n = next[i];
        if (n < 0) n += S;                       // Python's negative indices
        // an entry that leads nowhere is an error only if a string goes there
        tab[i] = n < 0 || n >= S ? 0x7fff : (uint16_t)(n | (accept[n] ? 0x8000 : 0));
    }
    #pragma omp parallel for schedule(static) reduction(|: bad)
    for (long g = 0; g < (B + 3) / 4; g++) {
        long b[4]; uint32_t s[4]; int64_t h[4] = {0, 0, 0, 0};
        for (int k = 0; k < 4; k++) {
            b[k] = g * 4 + k < B ? g * 4 + k : B - 1;
            int64_t v = start[b[k]];
            if (v < 0) v += S;
            if (v < 0 || v >= S) { bad |= 1; v = 0; }
            s[k] = (uint32_t)v;
        }
        for (long t = 0; t < T; t++)
            for (int k = 0; k < 4; k++) {
                uint32_t e = tab[s[k] * 256 + text[b[k] * T + t]];
                if (e == 0x7fff) { bad |= 1; e = 0; }
                h[k] += e >> 15;
                s[k] = e & 0x7fff;
            }
        for (int k = 0; k < 4; k++) if (g * 4 + k < B) { state[b[k]] = T ? (int64_t)s[k] : start[b[k]]; hits[b[k]] = h[k]; }
    }
    free(tab);
    return bad;
}
"""
d = tempfile.mkdtemp()
with open(d + "/dfa.c", "w") as f:
    f.write(SRC)
subprocess.check_call(["gcc", "-O2", "-march=native", "-fopenmp", "-shared", "-fPIC", d + "/dfa.c", "-o", d + "/dfa.so"])
run = ctypes.CDLL(d + "/dfa.so").dfa
run.argtypes = [ctypes.c_void_p] * 6 + [ctypes.c_long] * 3


class ModelNew(nn.Module):
    def __init__(self, states):
        super().__init__()
        self.register_buffer("next", torch.randint(0, states, (states, 256)))
        self.register_buffer("accept", torch.rand(states) < 0.2)

    def forward(self, text, start):
        assert text.dtype == torch.uint8 and start.dtype == torch.int64 and self.next.dtype == torch.int64
        text, start, nxt, acc = text.contiguous(), start.contiguous(), self.next.contiguous(), self.accept.contiguous()
        state, hits = torch.empty_like(start), torch.empty_like(start)
        err = run(nxt.data_ptr(), acc.data_ptr(), text.data_ptr(), start.data_ptr(), state.data_ptr(), hits.data_ptr(),
                  nxt.shape[0], *text.shape)
        if err:
            raise IndexError("the automaton leaves its table (%d)" % err)
        return state, hits
