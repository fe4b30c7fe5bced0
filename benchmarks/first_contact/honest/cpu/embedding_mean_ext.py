"""Mean of the embeddings that are not padding: a CPython extension written by hand (METH_FASTCALL)."""
import importlib.machinery, importlib.util, os, subprocess, sysconfig, tempfile
import torch
import torch.nn as nn

C = r"""
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>
static int pool(const int64_t* ids, const float* w, float* out, int64_t B, int64_t L, int64_t V, int64_t D, int64_t pad) {
    int64_t bad = 0;
    for (int64_t i = 0; i < B * L; ++i) bad |= ids[i] < 0 || ids[i] >= V;
    if (bad) return -1;
    #pragma omp parallel for num_threads(2)
    for (int64_t b = 0; b < B; ++b) {
        float* o = out + b * D; int64_t n = 0;
        memset(o, 0, sizeof(float) * D);
        for (int64_t l = 0; l < L; ++l) {
            const int64_t id = ids[b * L + l]; const float* r = w + id * D;
            if (id == pad) { for (int64_t d = 0; d < D; ++d) o[d] += r[d] * 0.f; continue; }   /* NaN * False is NaN */
            ++n;
            for (int64_t d = 0; d < D; ++d) o[d] += r[d];
        }
        const float k = (float)(n ? n : 1);
        for (int64_t d = 0; d < D; ++d) o[d] /= k;
    }
    return 0;
}
static PyObject* mean(PyObject* self, PyObject* const* a, Py_ssize_t n) {
    if (n != 8) { PyErr_SetString(PyExc_TypeError, "mean(ids, weight, out, B, L, V, D, pad)"); return NULL; }
    long long v[8];
    for (int i = 0; i < 8; ++i) { v[i] = PyLong_AsLongLong(a[i]); if (v[i] == -1 && PyErr_Occurred()) return NULL; }
    int rc;
    Py_BEGIN_ALLOW_THREADS
    rc = pool((const int64_t*)v[0], (const float*)v[1], (float*)v[2], v[3], v[4], v[5], v[6], v[7]);
    Py_END_ALLOW_THREADS
    if (rc) { PyErr_SetString(PyExc_IndexError, "index out of range in self"); return NULL; }
    Py_RETURN_NONE;
}
static PyMethodDef methods[] = {{"mean", (PyCFunction)(void (*)(void))mean, METH_FASTCALL, NULL}, {NULL, NULL, 0, NULL}};
static struct PyModuleDef def = {PyModuleDef_HEAD_INIT, "emb_mean_native", NULL, -1, methods, NULL, NULL, NULL, NULL};
PyMODINIT_FUNC PyInit_emb_mean_native(void) { return PyModule_Create(&def); }
"""

def make_extension(name, source):
    with tempfile.TemporaryDirectory() as d:
        src, so = os.path.join(d, name + ".c"), os.path.join(d, name + sysconfig.get_config_var("EXT_SUFFIX"))
        with open(src, "w") as f:
            f.write(source)
        subprocess.run(["gcc", "-O3", "-march=native", "-fopenmp", "-shared", "-fPIC",
                        "-I" + sysconfig.get_paths()["include"], src, "-o", so], check=True)
        loader = importlib.machinery.ExtensionFileLoader(name, so)
        module = importlib.util.module_from_spec(importlib.util.spec_from_loader(name, loader))
        loader.exec_module(module)
    return module

ext = make_extension("emb_mean_native", C)

class ModelNew(nn.Module):
    def __init__(self, vocab, dim, pad):
        super().__init__()
        self.pad = pad
        self.emb = nn.Embedding(vocab, dim)

    def forward(self, ids):
        if ids.dtype != torch.int64 or ids.dim() != 2:
            raise TypeError("ids must be an int64 matrix")
        ids, w = ids.contiguous(), self.emb.weight.contiguous()
        out = torch.empty(ids.shape[0], w.shape[1])
        ext.mean(ids.data_ptr(), w.data_ptr(), out.data_ptr(), *ids.shape, *w.shape, self.pad)
        return out
