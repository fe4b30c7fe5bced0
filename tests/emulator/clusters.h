// Clusters: blocks that run together, wait for one another and read each other's shared memory. Included by
// cuda_emulator.h.
#pragma once

namespace emulator {

inline void await_turn(Cluster& cluster, int rank) {
    std::unique_lock<std::mutex> lock(cluster.mutex);
    cluster.changed.wait(lock, [&] { return cluster.turn == rank; });
}

// The next block that has not finished goes on.
inline void pass_turn(Cluster& cluster, int rank) {
    std::lock_guard<std::mutex> lock(cluster.mutex);
    const int step = order() == 1 ? cluster.size - 1 : 1;
    int next = rank;
    for (int i = 0; i < cluster.size; ++i) {
        next = (next + step) % cluster.size;
        if (!cluster.finished[next]) break;
    }
    cluster.turn = next;
    cluster.changed.notify_all();
}

inline void cluster_arrive() {
    Block& b = block();
    if (!b.cluster) violation("a cluster's barrier in a launch without clusters");
    b.current->cluster_phase = b.cluster->phase;
    ++b.cluster->arrived;
    release_if_full(*b.cluster);
}

inline void cluster_wait() {
    Block& b = block();
    const unsigned mine = b.current->cluster_phase;
    if (b.cluster->phase == mine) ++b.cluster->waiting[b.rank];
    while (b.cluster->phase == mine) {
        if (b.cluster->waiting[b.rank] < b.alive) {
            yield();
            continue;
        }
        if (++b.cluster->idle > 2 * b.cluster->size) violation("deadlock: blocks of a cluster wait for one another");
        pass_turn(*b.cluster, b.rank);
        await_turn(*b.cluster, b.rank);
    }
    b.idle = 0;
}

inline void run_clusters(int size, dim3 grid, dim3 dim, size_t shared_bytes, const std::function<void()>& kernel) {
    if (size > Cluster::kMost || grid.x % size || grid.y * grid.z != 1) violation("a grid that clusters do not divide");
    std::vector<Cluster> clusters(grid.x / size);
    for (Cluster& cluster : clusters) {
        cluster.size = size;
        cluster.turn = order() == 1 ? size - 1 : 0;
        cluster.alive = size * static_cast<int>(dim.x * dim.y * dim.z);
    }
    std::vector<std::thread> threads;
    std::vector<Block*> blocks(size, nullptr);
    std::atomic<int> ready{0};
    for (int rank = 0; rank < size; ++rank)
        threads.emplace_back([&, rank] {
            Block& b = block();
            blocks[rank] = &b;
            for (++ready; ready < size;) sched_yield();
            for (size_t number = 0; number < clusters.size(); ++number) {
                Cluster& cluster = clusters[number];
                if (number) await_turn(clusters[number - 1], size);  // all of the one before have finished
                await_turn(cluster, rank);
                std::copy(blocks.begin(), blocks.end(), cluster.blocks);
                b.cluster = &cluster;
                b.rank = rank;
                run_block(static_cast<int64_t>(number) * size + rank, grid, dim, shared_bytes, kernel);
                std::memset(b.shared, 0xff, kSharedBytes);  // who reads it now reads too late
                cluster.finished[rank] = true;
                cluster.idle = 0;
                if (std::all_of(cluster.finished, cluster.finished + size, [](bool done) { return done; })) {
                    std::lock_guard<std::mutex> lock(cluster.mutex);
                    cluster.turn = size;
                    cluster.changed.notify_all();
                } else {
                    pass_turn(cluster, rank);
                }
            }
        });
    for (std::thread& thread : threads) thread.join();
}

}  // namespace emulator

namespace cluster {
inline void arrive() { emulator::cluster_arrive(); }
inline void wait() { emulator::cluster_wait(); }
template <class T> const T* peer(const T* mine, int rank) {
    const emulator::Block& b = emulator::block();
    const char* const at = reinterpret_cast<const char*>(mine);
    if (at < b.shared || at >= b.shared + emulator::kSharedBytes) emulator::violation("a peer of what is not dynamic shared memory");
    return reinterpret_cast<const T*>(b.cluster->blocks[rank]->shared + (at - b.shared));
}
}  // namespace cluster
