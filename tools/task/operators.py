"""Sets of PyTorch's operators by name: its own namespaces, operators without arithmetic, operators made of views."""

from __future__ import annotations

from foundry.tools.words import words

# Namespaces of operators that exist before a candidate is loaded.
TAKEN = frozenset(
    words(
        "aten prims prim torch torchvision torchaudio torchtext quantized _quantized quantized_decomposed mkldnn mkl "
        "onednn mkldnn_prepacked prepacked xnnpack sparse fbgemm c10d _c10d_functional _c10d_functional_autograd "
        "c10d_functional inductor rngprims debugprims profiler static_runtime metal vulkan cuda symm_mem streams "
        "torch_attn bsr_dense_addmm higher_order aoti_torch dist pyops notimplementedns nvprims "
        "compiled_autograd mtia onnx triton tensorexpr user aoti rng"
    )
)
FREE = frozenset(
    words(
        "empty empty_like empty_strided new_empty new_empty_strided view _unsafe_view reshape _reshape_alias "
        "as_strided permute transpose t expand squeeze unsqueeze select slice narrow unbind split "
        "split_with_sizes chunk unfold diagonal detach alias lift_fresh view_as_real resize_ set_ record_stream "
        # The last two compare packed weights with the model's: a yes or no, no part of the answer.
        "is_pinned equal is_same_size"
    )
)
# Operators without arithmetic that a binding needs for layout: not counted either, but named in the evidence.
COPIES = frozenset(
    words(
        "copy_ clone _to_copy contiguous zeros zeros_like zero_ fill_ full full_like ones ones_like new_zeros new_ones "
        "new_full lift_fresh_copy"
    )
)
# Operators that PyTorch composes of views and copies: its dispatcher sees those instead.
OF_VIEWS = frozenset(
    words(
        "meshgrid pixel_shuffle pixel_unshuffle channel_shuffle flatten unflatten expand_as view_as reshape_as movedim "
        "moveaxis swapaxes swapdims mT numpy_T adjoint broadcast_to broadcast_tensors tensor_split unsafe_split "
        "unsafe_chunk to type_as dropout feature_dropout alpha_dropout feature_alpha_dropout copy positive"
    )
)

OWN = "own::"  # prefix of an operator that the candidate registered and whose inside was recorded
