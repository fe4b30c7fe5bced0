// Copies of 16 bytes from global to shared memory that go on while a thread does (PTX ISA, "cp.async"), in groups that a
// thread closes and waits for in order. Where no NVIDIA compiler reads this, whoever compiles it supplies functions of the
// same names.
namespace copies {

#if defined(__CUDACC__)
// `bytes` (16 or 0) are copied and the rest is zero; NEAR: the line stays in the first cache, for another row that reads it.
template <bool NEAR> DEVICE void start(void* to, const void* from, int bytes) {
    const unsigned at = (unsigned)__cvta_generic_to_shared(to);
    const unsigned long long source = __cvta_generic_to_global(from);
    if constexpr (NEAR)
        asm volatile("cp.async.ca.shared.global [%0], [%1], 16, %2;" ::"r"(at), "l"(source), "r"(bytes) : "memory");
    else
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(at), "l"(source), "r"(bytes) : "memory");
}
DEVICE void close() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int OPEN> DEVICE void wait() { asm volatile("cp.async.wait_group %0;" ::"n"(OPEN) : "memory"); }
#endif

}  // namespace copies
