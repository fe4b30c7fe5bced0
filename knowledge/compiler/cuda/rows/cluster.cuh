// Blocks of a cluster: a barrier in two halves, and each other's shared memory (PTX ISA, "barrier.cluster" and "mapa").
// Where no NVIDIA compiler reads this, whoever compiles it supplies functions of the same names.
namespace cluster {

#if defined(__CUDACC__)
DEVICE void arrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
DEVICE void wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
template <class T> DEVICE const T* peer(const T* mine, int rank) {  // the same place in another block's shared memory
    unsigned long long at;
    asm volatile("mapa.u64 %0, %1, %2;" : "=l"(at) : "l"(mine), "r"(rank));
    return reinterpret_cast<const T*>(at);
}
#endif

// Every thread of a block brings its block's state, and gets that of all blocks. `slot` lies in dynamic shared memory.
template <int BLOCKS, class S> DEVICE S merge_blocks(S state, S* slot) {
    if (threadIdx.x == 0) *slot = state;
    arrive();
    wait();
    state = *peer(slot, (threadIdx.x & 31) % BLOCKS);
    return reduce_lanes<BLOCKS>(state);
}

}  // namespace cluster
