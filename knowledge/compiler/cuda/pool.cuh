namespace pool {

// The larger one, or NaN if either is: one instruction where the hardware has it.
template <class T> DEVICE T larger(T x, T y) { return math::maximum(x, y); }
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
DEVICE float larger(float x, float y) {
    float top;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(top) : "f"(x), "f"(y));
    return top;
}
#endif

}  // namespace pool
