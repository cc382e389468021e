// What the kernels share: packs of 16 bytes, walks over elements, groups of threads that work on one row, and sums in
// an order that the shape alone fixes.
//
// Rules of all kernels here:
// - Tensors are f32 or bf16. Arithmetic is in f32; a bf16 result is rounded once, when it is stored.
// - No atomics and no global state. A result has the same bits at every run.
// - A view may start at any element. Packs are used where the addresses allow it, single elements elsewhere.
// - Counts and shapes are 64 bits wide, so no index overflows.

#pragma once

#include <cuda_bf16.h>

using Size = unsigned long long;
using bf16 = __nv_bfloat16;

// Elements of 16 bytes, the widest load and store.
template <class T>
constexpr int PACK = 16 / static_cast<int>(sizeof(T));

// ---- Loads and stores of V elements -------------------------------------------------------------------------------
// V is one, or a multiple of PACK; then the address is a multiple of 16 bytes.

template <int V>
__device__ __forceinline__ void load(const float* source, float (&values)[V]) {
    if constexpr (V == 1) {
        values[0] = *source;
    } else {
#pragma unroll
        for (int k = 0; k < V; k += 4) {
            const float4 pack = *reinterpret_cast<const float4*>(source + k);
            values[k] = pack.x;
            values[k + 1] = pack.y;
            values[k + 2] = pack.z;
            values[k + 3] = pack.w;
        }
    }
}

// Two bf16 of one word; the first is the lower half.
__device__ __forceinline__ void unpack(unsigned word, float& first, float& second) {
    first = __uint_as_float(word << 16);
    second = __uint_as_float(word & 0xffff0000u);
}

__device__ __forceinline__ unsigned pack(float first, float second) {
    const unsigned lower = __bfloat16_as_ushort(__float2bfloat16_rn(first));
    const unsigned upper = __bfloat16_as_ushort(__float2bfloat16_rn(second));
    return lower | upper << 16;
}

template <int V>
__device__ __forceinline__ void load(const bf16* source, float (&values)[V]) {
    if constexpr (V == 1) {
        values[0] = __bfloat162float(*source);
    } else {
#pragma unroll
        for (int k = 0; k < V; k += 8) {
            const uint4 words = *reinterpret_cast<const uint4*>(source + k);
            unpack(words.x, values[k], values[k + 1]);
            unpack(words.y, values[k + 2], values[k + 3]);
            unpack(words.z, values[k + 4], values[k + 5]);
            unpack(words.w, values[k + 6], values[k + 7]);
        }
    }
}

template <int V>
__device__ __forceinline__ void store(float* target, const float (&values)[V]) {
    if constexpr (V == 1) {
        *target = values[0];
    } else {
#pragma unroll
        for (int k = 0; k < V; k += 4) {
            *reinterpret_cast<float4*>(target + k) =
                make_float4(values[k], values[k + 1], values[k + 2], values[k + 3]);
        }
    }
}

template <int V>
__device__ __forceinline__ void store(bf16* target, const float (&values)[V]) {
    if constexpr (V == 1) {
        *target = __float2bfloat16_rn(values[0]);
    } else {
#pragma unroll
        for (int k = 0; k < V; k += 8) {
            *reinterpret_cast<uint4*>(target + k) =
                make_uint4(pack(values[k], values[k + 1]), pack(values[k + 2], values[k + 3]),
                           pack(values[k + 4], values[k + 5]), pack(values[k + 6], values[k + 7]));
        }
    }
}

// Stores the values, or adds them to what the target holds. Storing never reads the target.
template <class T, int V>
__device__ __forceinline__ void update(T* target, const float (&values)[V], int accumulate) {
    if (accumulate) {
        float sum[V];
        load(target, sum);
#pragma unroll
        for (int k = 0; k < V; ++k) sum[k] += values[k];
        store(target, sum);
    } else {
        store(target, values);
    }
}

template <class T>
__device__ __forceinline__ bool aligned(const T* address) {
    return reinterpret_cast<Size>(address) % 16 == 0;
}

// ---- Functions ------------------------------------------------------------------------------------------------------

// 2 to the power of x within a few units in the last place; zero under 2^-126.
__device__ __forceinline__ float fast_exp2(float x) {
    float result;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
    return result;
}

// The exponential that a type needs: for bf16 a short one, whose error the rounding hides.
template <class T>
__device__ __forceinline__ float exponential(float x) {
    if constexpr (sizeof(T) == sizeof(float)) {
        return expf(x);
    } else {
        return fast_exp2(x * 1.44269504f);
    }
}

// 1 / x, exactly rounded for f32. For bf16 it is zero when x is over 2^126.
template <class T>
__device__ __forceinline__ float reciprocal(float x) {
    if constexpr (sizeof(T) == sizeof(float)) {
        return __frcp_rn(x);
    } else {
        return __fdividef(1.0f, x);
    }
}

// ---- Walks over elements --------------------------------------------------------------------------------------------

// Elements before the first pack boundary of all operands; `count` when they have no boundary in common.
template <class T, class... Others>
__device__ __forceinline__ Size shared_head(Size count, const T* first, const Others*... others) {
    const Size past = reinterpret_cast<Size>(first) % 16;
    const Size head = past == 0 ? 0 : (16 - past) / sizeof(T);
    return head < count && (aligned(others + head) && ... && true) ? head : count;
}

// Calls `body.run<V>(offset)` so that all elements are covered once: V is N for the packs after `head`, and one for the
// elements before and after them. Any one-dimensional grid does.
template <int N, class Body>
__device__ __forceinline__ void sweep(Size count, Size head, Body body) {
    const Size thread = static_cast<Size>(blockIdx.x) * blockDim.x + threadIdx.x;
    const Size stride = static_cast<Size>(gridDim.x) * blockDim.x;
    const Size packs = (count - head) / N;
    for (Size index = thread; index < packs; index += stride) body.template run<N>(head + index * N);
    const Size rest = count - packs * N;
    for (Size index = thread; index < rest; index += stride) {
        body.template run<1>(index < head ? index : index + packs * N);
    }
}

// ---- Groups of threads that work on one row ---------------------------------------------------------------------------
//
// The block of every row kernel follows from the width alone:
//   group  = 32 · clamp(ceil(width / 512), 1, 8)    threads work on one row,
//   groups = max(1, floor(192 / group))              rows are worked on at once by a block,
//   block  = group · groups                          threads.
// A thread holds up to 16 elements of its row in registers. Rows of more than 4096 elements are read again instead.

constexpr int HELD_ELEMENTS = 16;
constexpr int MOST_GROUP_THREADS = 256;
constexpr int MOST_GROUP_WARPS = MOST_GROUP_THREADS / 32;
constexpr unsigned EVERY_LANE = 0xffffffffu;

__device__ __forceinline__ unsigned group_threads(Size width) {
    const Size threads = (width + 511) / 512 * 32;
    return threads < 32 ? 32 : threads > MOST_GROUP_THREADS ? MOST_GROUP_THREADS : static_cast<unsigned>(threads);
}

__device__ __forceinline__ unsigned groups_of_block(unsigned group) {
    return group > 192 ? 1 : 192 / group;
}

struct Group {
    unsigned threads;  // Of each group.
    unsigned count;    // Groups of the block.
    unsigned index;    // This group.
    unsigned thread;   // This thread in its group.

    __device__ __forceinline__ explicit Group(Size width)
        : threads(group_threads(width)), count(groups_of_block(threads)), index(threadIdx.x / threads),
          thread(threadIdx.x % threads) {}

    // Waits for the group. Barrier 0 belongs to the whole block.
    __device__ __forceinline__ void barrier() const {
        asm volatile("bar.sync %0, %1;" ::"r"(index + 1), "r"(threads) : "memory");
    }

    // One value for all threads of the group, from one value of each. `combine` must not depend on the order of its
    // arguments. `parts` is shared memory, one entry for each warp of the block; between two uses of the same entries
    // there must be a use of others.
    template <class Value, class Combine>
    __device__ __forceinline__ Value reduce(Value value, Value* parts, Combine combine) const {
#pragma unroll
        for (int distance = 16; distance > 0; distance /= 2) value = combine(value, value.partner(distance));
        if (threads == 32) return value;
        if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = value;
        barrier();
        const Value* own = parts + index * (threads / 32);
        Value total = own[0];
        for (unsigned warp = 1; warp < threads / 32; ++warp) total = combine(total, own[warp]);
        return total;
    }
};

// One number of each thread.
struct One {
    float a;

    __device__ __forceinline__ One partner(int distance) const {
        return One{__shfl_xor_sync(EVERY_LANE, a, distance)};
    }
};

// Two numbers of each thread.
struct Two {
    float a, b;

    __device__ __forceinline__ Two partner(int distance) const {
        return Two{__shfl_xor_sync(EVERY_LANE, a, distance), __shfl_xor_sync(EVERY_LANE, b, distance)};
    }
};

__device__ __forceinline__ float group_sum(const Group& group, float value, One* parts) {
    return group.reduce(One{value}, parts, [](One left, One right) { return One{left.a + right.a}; }).a;
}

__device__ __forceinline__ float group_max(const Group& group, float value, One* parts) {
    return group.reduce(One{value}, parts, [](One left, One right) { return One{fmaxf(left.a, right.a)}; }).a;
}

__device__ __forceinline__ Two group_sum(const Group& group, Two value, Two* parts) {
    return group.reduce(value, parts, [](Two left, Two right) { return Two{left.a + right.a, left.b + right.b}; });
}

// Calls `body(pack, k)` for the packs k that this thread holds of a row of `packs` packs.
template <int HELD, class Body>
__device__ __forceinline__ void held_packs(const Group& group, Size packs, Body body) {
#pragma unroll
    for (int k = 0; k < HELD; ++k) {
        const Size pack = group.thread + static_cast<Size>(k) * group.threads;
        if (pack < packs) body(pack, k);
    }
}

// Calls `body(pack)` for the packs of this thread that are too many to be held.
template <int HELD, class Body>
__device__ __forceinline__ void other_packs(const Group& group, Size packs, Body body) {
    for (Size pack = group.thread + static_cast<Size>(HELD) * group.threads; pack < packs; pack += group.threads) {
        body(pack);
    }
}

// ---- Sums over rows, in two stages ------------------------------------------------------------------------------------

// The rows that one of `chunks` equal parts of `rows` covers.
struct Chunk {
    Size begin, end;

    __device__ __forceinline__ Chunk(Size rows, Size chunks, Size index) {
        const Size length = (rows + chunks - 1) / chunks;
        begin = index * length < rows ? index * length : rows;
        end = begin + length < rows ? begin + length : rows;
    }
};

// The second stage: calls `write(column, sum)` with the sum over the `chunks` rows of `partial` for each of `columns`
// columns. 512 threads; block b takes the columns from 32 · b, so ceil(columns / 32) blocks are enough; any grid does.
template <class Write>
__device__ __forceinline__ void column_totals(const float* partial, Size chunks, Size columns, Write write) {
    __shared__ float sums[16][32];
    const unsigned lane = threadIdx.x % 32;
    const unsigned warp = threadIdx.x / 32;
    const Size tiles = (columns + 31) / 32;
    for (Size tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        const Size column = tile * 32 + lane;
        float sum = 0.0f;
        if (column < columns) {
#pragma unroll 4
            for (Size chunk = warp; chunk < chunks; chunk += 16) sum += partial[chunk * columns + column];
        }
        sums[warp][lane] = sum;
        __syncthreads();
        if (warp == 0 && column < columns) {
            float total = sums[0][lane];
#pragma unroll
            for (int other = 1; other < 16; ++other) total += sums[other][lane];
            write(column, total);
        }
        __syncthreads();
    }
}
