// Bulk copies into shared memory and the barriers that say when they have arrived (PTX ISA, "mbarrier" and
// "cp.async.bulk"). Where no NVIDIA compiler reads this, whoever compiles it supplies functions of the same names.
namespace bulk {

using Barrier = unsigned long long;

#if defined(__CUDACC__)
struct alignas(64) Map { unsigned long long words[16]; };  // of a tensor, encoded by the driver
DEVICE unsigned address(const void* at) { return (unsigned)__cvta_generic_to_shared(at); }
DEVICE void prepare(Barrier* barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(address(barrier)), "r"(arrivals) : "memory");
}
DEVICE void publish() { asm volatile("fence.mbarrier_init.release.cluster;\n\tfence.proxy.async.shared::cta;" ::: "memory"); }
DEVICE void arrive(Barrier* barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(address(barrier)) : "memory");
}
DEVICE void expect(Barrier* barrier, int bytes) {  // arrives, and asks for so many bytes besides
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address(barrier)), "r"(bytes) : "memory");
}
DEVICE void await(Barrier* barrier, int parity) {  // until the phase of this parity is over
    asm volatile(
        "{\n\t.reg .pred over;\n\tAGAIN:\n\tmbarrier.try_wait.parity.shared::cta.b64 over, [%0], %1;\n\t"
        "@!over bra AGAIN;\n\t}" ::"r"(address(barrier)),
        "r"(parity)
        : "memory");
}
DEVICE void copy(void* to, const void* from, int bytes, Barrier* barrier) {  // 16-byte aligned, a multiple of 16 bytes
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(address(to)),
                 "l"(__cvta_generic_to_global(from)), "r"(bytes), "r"(address(barrier))
                 : "memory");
}
// The box of a tensor of three or four dimensions from (x, y, z, w), its 16-byte pieces swizzled; zero outside the tensor.
DEVICE void copy_box(void* to, const Map* map, Barrier* barrier, int x, int y, int z) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], "
                 "[%5];" ::"r"(address(to)), "l"(map), "r"(x), "r"(y), "r"(z), "r"(address(barrier))
                 : "memory");
}
DEVICE void copy_box(void* to, const Map* map, Barrier* barrier, int x, int y, int z, int w) {
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], "
                 "[%1, {%2, %3, %4, %5}], [%6];" ::"r"(address(to)), "l"(map), "r"(x), "r"(y), "r"(z), "r"(w),
                 "r"(address(barrier))
                 : "memory");
}
// The way back, of which a thread that copies tells where a group of copies ends, and waits until all but PENDING groups
// have read the shared memory; before, each thread that wrote there lets the copy engine see it.
DEVICE void show() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
DEVICE void store(void* to, const void* from, int bytes) {  // 16-byte aligned, a multiple of 16 bytes
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(__cvta_generic_to_global(to)),
                 "r"(address(from)), "r"(bytes)
                 : "memory");
}
DEVICE void commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
template <int PENDING> DEVICE void wait_read() { asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(PENDING) : "memory"); }
// Barriers of so many of a block's threads, by number, 0 being that of __syncthreads(): some wait, others only say that
// they came by.
DEVICE void meet(int number, int threads) { asm volatile("bar.sync %0, %1;" ::"r"(number), "r"(threads) : "memory"); }
DEVICE void pass(int number, int threads) { asm volatile("bar.arrive %0, %1;" ::"r"(number), "r"(threads) : "memory"); }
#endif

}  // namespace bulk
