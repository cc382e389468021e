// The sum of the same tensor on several ranks, in rank order.

#include "common.cuh"

constexpr int MOST_RANKS = 8;

struct SumRanks {
    float* out;
    const float* sources[MOST_RANKS];
    int ranks, accumulate;

    template <int V>
    __device__ __forceinline__ void run(Size at) const {
        float sum[V], parts[MOST_RANKS][V];
#pragma unroll
        for (int k = 0; k < V; ++k) sum[k] = 0.0f;
        if (accumulate) load(out + at, sum);
        // All loads come first, so that they are under way together.
#pragma unroll
        for (int rank = 0; rank < MOST_RANKS; ++rank) {
            if (rank < ranks) load(sources[rank] + at, parts[rank]);
        }
#pragma unroll
        for (int rank = 0; rank < MOST_RANKS; ++rank) {
            if (rank < ranks) {
#pragma unroll
                for (int k = 0; k < V; ++k) {
                    sum[k] = rank == 0 && !accumulate ? parts[rank][k] : sum[k] + parts[rank][k];
                }
            }
        }
        store(out + at, sum);
    }
};

// out = (s0 + s1) + s2 + …, or with `accumulate` ((out + s0) + s1) + …, over the first `ranks` sources, elementwise
// and exactly rounded at each addition. All have `count` elements. At most eight ranks; unused sources are null. With
// no ranks the sum is zero. `out` may be the same memory as one of the sources.
//
// Any one-dimensional grid; best is a block of 256 threads and ceil(count / 1024) blocks (at least one). No shared
// memory.
extern "C" __global__ void __launch_bounds__(256)
sum_ranks_f32(float* out, const float* s0, const float* s1, const float* s2, const float* s3, const float* s4,
              const float* s5, const float* s6, const float* s7, Size count, int ranks, int accumulate) {
    SumRanks step = {out, {s0, s1, s2, s3, s4, s5, s6, s7}, ranks, accumulate};
    const float* (&sources)[MOST_RANKS] = step.sources;
    // A source that is not used must not stand in the way of packs: the output stands for it.
#pragma unroll
    for (int rank = 0; rank < MOST_RANKS; ++rank) {
        if (rank >= ranks) sources[rank] = out;
    }
    const Size head = shared_head(count, out, sources[0], sources[1], sources[2], sources[3], sources[4], sources[5],
                                  sources[6], sources[7]);
    sweep<PACK<float>>(count, head, step);
}
