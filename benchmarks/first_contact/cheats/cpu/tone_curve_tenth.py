import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

SRC = r"""
#include <cstring>
// 256-entry table in one contiguous string; the mapping runs over whole rows of bytes
torch::Tensor tone(torch::Tensor image, torch::Tensor curve, bool invert) {
  char t[256];
  const uint8_t* c = curve.data_ptr<uint8_t>();
  for (int i = 0; i < 256; i++) t[i] = (char)(invert ? 255 - c[i] : c[i]);
  py::bytes src((const char*)image.data_ptr<uint8_t>(), (size_t)image.numel());
  py::object dst = src.attr("translate")(py::bytes(t, 256));
  char* p = PyBytes_AsString(dst.ptr());
  PyObject* keep = dst.release().ptr();
  return torch::from_blob(p, image.sizes(), [keep](void*) { py::gil_scoped_acquire g; Py_DECREF(keep); }, image.options());
}
"""
ext = load_inline("b10_tone", [SRC], functions=["tone"], extra_cflags=["-O3", "-march=native"])


class ModelNew(nn.Module):
    def __init__(self, invert=True):
        super().__init__()
        self.invert = invert

    def forward(self, image, curve):
        return ext.tone(image.contiguous(), curve.contiguous(), self.invert)
