"""The grader's own test: known faults are planted into a correct kernel, and every one of them must be caught.

`foundry verify --self-test TASK`: planting (on_graph, on_expressions, on_kernels, on_source) makes faulty copies of the
library's first kernel of the task, examination sends each through the real build and the real correctness stage, and
report says which gate caught what. A faulty kernel that was accepted is compared with the correct one bit for bit
(comparing): where nothing differs on any input of the protocol, it is shown as equivalent and not counted.
"""
