"""Row kernels in C++: reductions, softmax, normalisations, scans."""
