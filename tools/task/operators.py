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


# Operators that are not written for one task, by the name in the label `foreign:NAME`: as a task calls them, and as
# PyTorch's dispatcher sees them.
_FOREIGN = {
    "sort": words("sort argsort msort"),
    "fft": words("stft istft _fft_r2c _fft_c2r _fft_c2c"),  # and all that begin with "fft_"
    "eig": words("linalg_eig linalg_eigvals linalg_eigh linalg_eigvalsh _linalg_eigh _linalg_eigvals"),
    "svd": words("svd linalg_svd linalg_svdvals _linalg_svd pinverse linalg_pinv"),
    "qr": words("qr linalg_qr geqrf orgqr ormqr linalg_householder_product"),
    "lu": words(
        "det logdet slogdet inverse linalg_det linalg_slogdet linalg_inv linalg_inv_ex linalg_solve linalg_solve_ex "
        "linalg_lu linalg_lu_factor linalg_lu_factor_ex linalg_lu_solve lu_solve lu_unpack _lu_with_info _linalg_det "
        "_linalg_slogdet _linalg_solve_ex"
    ),
    "cholesky": words("cholesky cholesky_inverse cholesky_solve linalg_cholesky linalg_cholesky_ex"),
}
_FOREIGN_NAMES = {kind: name for name, kinds in _FOREIGN.items() for kind in kinds}


def foreign_name(kind: str) -> str:
    """The name of a foreign operator by its kind ("fft_rfft" -> "fft"); "" for all others."""
    return "fft" if kind.startswith("fft_") else _FOREIGN_NAMES.get(kind, "")
