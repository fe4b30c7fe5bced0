"""The grader's own test: known faults are planted into a correct kernel, and every one of them must be caught.

`foundry verify --self-test TASK`: planting (on_graph, on_expressions, on_kernels, on_source) makes faulty copies of
the compiler's first kernel of the task. examination sends each through the real build and the real correctness
stage, and report says which gate caught it. An accepted faulty kernel is compared with the correct one bit for bit
(comparing): if all outputs agree on every input of the protocol, it is shown as equivalent and not counted.
"""
