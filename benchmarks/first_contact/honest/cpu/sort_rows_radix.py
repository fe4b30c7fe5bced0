"""Stable radix sort of float rows, 3 digits of 11 bits; all NaNs share one key at the end and -0 sorts as +0, the values
themselves are carried over bit by bit. Digits that all elements share are skipped."""
import ctypes
import subprocess
import tempfile

import torch
import torch.nn as nn

CODE = r"""
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

struct Item { uint32_t key, from; };

extern "C" void sort_rows(const uint32_t* x, uint32_t* values, int64_t* indices, int64_t rows, int64_t columns, int threads) {
#pragma omp parallel for num_threads(threads) schedule(dynamic)
    for (int64_t r = 0; r < rows; ++r) {
        thread_local std::vector<Item> first, second;
        thread_local uint32_t counts[3][2048];
        first.resize(columns);
        second.resize(columns);
        memset(counts, 0, sizeof counts);
        const uint32_t* in = x + r * columns;
        for (int64_t c = 0; c < columns; ++c) {
            uint32_t u = in[c], magnitude = u & 0x7fffffffu;
            uint32_t key = magnitude > 0x7f800000u ? 0xffffffffu : magnitude == 0 ? 0x80000000u : u >> 31 ? ~u : u | 0x80000000u;
            first[c] = {key, (uint32_t)c};
            ++counts[0][key & 2047]; ++counts[1][key >> 11 & 2047]; ++counts[2][key >> 22];
        }
        for (int digit = 0; digit < 3; ++digit) {
            uint32_t* n = counts[digit];
            const int shift = 11 * digit;
            if (columns && n[first[0].key >> shift & 2047] == (uint64_t)columns) continue;
            uint32_t at = 0;
            for (int b = 0; b < 2048; ++b) { uint32_t t = n[b]; n[b] = at; at += t; }
            for (const Item& i : first) second[n[i.key >> shift & 2047]++] = i;
            std::swap(first, second);
        }
        for (int64_t c = 0; c < columns; ++c) {
            values[r * columns + c] = in[first[c].from];
            indices[r * columns + c] = first[c].from;
        }
    }
}
"""
so = tempfile.mktemp(suffix=".so")
subprocess.run(["g++", "-std=c++17", "-O2", "-fopenmp", "-shared", "-fPIC", "-xc++", "-", "-o", so], input=CODE.encode(), check=True)
sort_rows = ctypes.CDLL(so)["sort_rows"]


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        values, indices = torch.empty_like(x), torch.empty(x.shape, dtype=torch.int64)
        sort_rows(ctypes.c_void_p(x.data_ptr()), ctypes.c_void_p(values.data_ptr()), ctypes.c_void_p(indices.data_ptr()),
                  ctypes.c_int64(x.shape[0]), ctypes.c_int64(x.shape[1]), torch.get_num_threads())
        return values, indices
