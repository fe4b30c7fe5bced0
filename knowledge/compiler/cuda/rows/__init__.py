"""Row kernels in CUDA: reductions, softmax, normalisations, scans."""
