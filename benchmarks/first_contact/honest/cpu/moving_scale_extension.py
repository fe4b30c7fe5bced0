"""A hand-written CPython extension module (no pybind, no torch headers) that is imported by importlib. It moves the
module's buffers in place in training mode, as PyTorch does. std::thread for each call."""
import importlib.machinery
import importlib.util
import os
import subprocess
import sysconfig
import tempfile

import torch
import torch.nn as nn

CODE = r"""
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <cmath>
#include <cstdint>
#include <thread>
#include <vector>

template <class F> static void split(int64_t n, int threads, F f) {
    std::vector<std::thread> team;
    for (int t = 1; t < threads; ++t) team.emplace_back(f, n * t / threads, n * (t + 1) / threads);
    f(0, n / (threads > 0 ? threads : 1));
    for (auto& t : team) t.join();
}

static PyObject* step(PyObject*, PyObject* const* a, Py_ssize_t count) {
    if (count != 8) { PyErr_SetString(PyExc_TypeError, "eight numbers"); return nullptr; }
    int64_t v[8];
    for (int i = 0; i < 8; ++i) v[i] = PyLong_AsLongLong(a[i]);
    if (PyErr_Occurred()) return nullptr;
    const float* x = (const float*)v[0];
    float *y = (float*)v[1], *scale = (float*)v[2];
    int64_t *calls = (int64_t*)v[3], rows = v[4], width = v[5];
    const bool training = v[6];
    const int threads = rows * width < 20000 ? 1 : (int)v[7];
    Py_BEGIN_ALLOW_THREADS
    if (training) {
        std::vector<float> largest(width, 0.0f);
        split(width, threads, [&](int64_t from, int64_t to) {
            for (int64_t r = 0; r < rows; ++r)
                for (int64_t c = from; c < to; ++c) {
                    const float m = std::fabs(x[r * width + c]), old = largest[c];
                    largest[c] = m > old || m != m ? m : old;        // NaN enters and stays
                }
        });
        for (int64_t c = 0; c < width; ++c) scale[c] = scale[c] * 0.875f + largest[c] * 0.125f;
        ++*calls;
    }
    split(rows, threads, [&](int64_t from, int64_t to) {
        for (int64_t r = from; r < to; ++r)
            for (int64_t c = 0; c < width; ++c) y[r * width + c] = x[r * width + c] / scale[c];
    });
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {{"step", (PyCFunction)(void*)step, METH_FASTCALL, "one call"}, {nullptr, nullptr, 0, nullptr}};
static PyModuleDef definition = {PyModuleDef_HEAD_INIT, "moving_scale_native", nullptr, -1, methods, nullptr, nullptr, nullptr, nullptr};
extern "C" __attribute__((visibility("default"))) PyObject* PyInit_moving_scale_native() { return PyModule_Create(&definition); }
"""


def build(name="moving_scale_native"):
    path = os.path.join(tempfile.mkdtemp(), name + sysconfig.get_config_var("EXT_SUFFIX"))
    subprocess.run(["g++", "-O3", "-march=native", "-ffp-contract=off", "-pthread", "-shared", "-fPIC", "-fvisibility=hidden",
                    "-I" + sysconfig.get_path("include"), "-xc++", "-", "-o", path], input=CODE.encode(), check=True)
    loader = importlib.machinery.ExtensionFileLoader(name, path)
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(name, loader))
    loader.exec_module(module)
    return module


native = build()


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.register_buffer("scale", torch.ones(width))
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        native.step(x.data_ptr(), y.data_ptr(), self.scale.data_ptr(), self.calls.data_ptr(), x.shape[0], x.shape[1],
                    int(self.training), torch.get_num_threads())
        return y
