// Copies from global into shared memory that run while their thread goes on (PTX ISA, "cp.async"). Where no NVIDIA
// compiler reads this, whoever compiles it supplies functions of the same names.
namespace async {

#if defined(__CUDACC__)
// Both addresses are multiples of BYTES (4, 8 or 16); where nothing is there, zeros arrive and nothing is read. NEAR: the
// first cache keeps the line, for another copy of it.
template <int BYTES, bool NEAR = false> DEVICE void copy(void* to, const void* from, bool is_there) {
    const unsigned at = (unsigned)__cvta_generic_to_shared(to);
    const size_t source = __cvta_generic_to_global(from);
    const int bytes = is_there ? BYTES : 0;
    if constexpr (BYTES == 16 && !NEAR)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(at), "l"(source), "r"(bytes) : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(at), "l"(source), "n"(BYTES), "r"(bytes)
                     : "memory");
}
DEVICE void commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }  // what was copied since, as one group
template <int PENDING> DEVICE void wait() {  // until no more than so many of this thread's groups are on their way
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}
#endif

}  // namespace async
