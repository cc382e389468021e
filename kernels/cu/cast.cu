// Casts between f32 and bf16, to the nearest value, ties to even.
//
// Both entries: any one-dimensional grid; best is a block of 256 threads and ceil(count / 2048) blocks (at least one).
// No shared memory.

#include "common.cuh"

constexpr int THREADS = 256;

template <class From, class To>
struct Cast {
    const From* source;
    To* target;

    template <int V>
    __device__ __forceinline__ void run(Size at) const {
        float a[V];
        load(source + at, a);
        store(target + at, a);
    }
};

// target (bf16) = source (f32). Both have `count` elements.
extern "C" __global__ void __launch_bounds__(THREADS) cast_f32_bf16(const float* source, bf16* target, Size count) {
    sweep<PACK<bf16>>(count, shared_head(count, target, source), Cast<float, bf16>{source, target});
}

// target (f32) = source (bf16). Both have `count` elements. Exact.
extern "C" __global__ void __launch_bounds__(THREADS) cast_bf16_f32(const bf16* source, float* target, Size count) {
    sweep<PACK<bf16>>(count, shared_head(count, source, target), Cast<bf16, float>{source, target});
}
