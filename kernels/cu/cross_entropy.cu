// Softmax and cross-entropy of logits with known next tokens.
//
// The loss of a row is (log Σ exp(logit) − logit of its target) · scale. A group of threads works on one row (see
// common.cuh). Rows of whole packs that fit are held in registers. Others are read twice: once for the largest logit and the sum of
// exponentials together, with the sum scaled down whenever a larger logit comes up, and once for the gradient, last
// pack first, as the last packs are still in the caches.

#include "common.cuh"

// The smallest finite number, where the search for the largest logit starts.
constexpr float LEAST = -3.402823466e+38f;

template <class T>
struct Loss {
    const T* logits;
    const unsigned* targets;
    float* token_losses;  // Null when only the gradient is wanted.
    T* dlogits;           // Null when only the losses are wanted.
    Size rows, width;
    float scale;
};

struct Shared {
    One largest[MOST_GROUP_WARPS];
    One total[MOST_GROUP_WARPS];
};

template <class T>
__device__ __forceinline__ void write_loss(const Loss<T>& args, const Group& group, Size row, Size target,
                                           float largest, float total) {
    if (args.token_losses != nullptr && group.thread == 0) {
        float logit[1];
        load(args.logits + row * args.width + target, logit);
        args.token_losses[row] = (logf(total) + (largest - logit[0])) * args.scale;
    }
}

// Turns the exponentials of the pack that starts at column `at` into the gradient.
template <int V, class T>
__device__ __forceinline__ void write_gradient(float (&values)[V], Size at, Size target, float factor, float scale,
                                               T* dlogits) {
#pragma unroll
    for (int j = 0; j < V; ++j) values[j] *= factor;
    if (target >= at && target < at + V) {
#pragma unroll
        for (int j = 0; j < V; ++j) {
            if (at + j == target) values[j] -= scale;
        }
    }
    store(dlogits + at, values);
}

// A row that the group holds.
template <int V, class T>
__device__ __forceinline__ void held_row(const Loss<T>& args, const Group& group, Size row, Size target,
                                         Shared& shared) {
    constexpr int HELD = HELD_ELEMENTS / V;
    const Size packs = args.width / V;
    const T* logits = args.logits + row * args.width;
    float held[HELD][V];
    float largest = LEAST;
    held_packs<HELD>(group, packs, [&](Size pack, int k) { load(logits + pack * V, held[k]); });
    held_packs<HELD>(group, packs, [&](Size, int k) {
#pragma unroll
        for (int j = 0; j < V; ++j) largest = fmaxf(largest, held[k][j]);
    });
    largest = group_max(group, largest, shared.largest);
    float total = 0.0f;
    held_packs<HELD>(group, packs, [&](Size, int k) {
#pragma unroll
        for (int j = 0; j < V; ++j) {
            held[k][j] = exponential<T>(held[k][j] - largest);
            total += held[k][j];
        }
    });
    total = group_sum(group, total, shared.total);
    write_loss(args, group, row, target, largest, total);
    if (args.dlogits != nullptr) {
        const float factor = args.scale / total;
        T* dlogits = args.dlogits + row * args.width;
        held_packs<HELD>(group, packs, [&](Size pack, int k) {
            write_gradient(held[k], pack * V, target, factor, args.scale, dlogits);
        });
    }
}

// A row of any width.
template <int V, class T>
__device__ __forceinline__ void wide_row(const Loss<T>& args, const Group& group, Size row, Size target,
                                         Shared& shared) {
    const Size packs = args.width / V;
    const T* logits = args.logits + row * args.width;
    float largest = LEAST, total = 0.0f;
#pragma unroll 4
    for (Size pack = group.thread; pack < packs; pack += group.threads) {
        float values[V];
        load(logits + pack * V, values);
        float most = values[0];
#pragma unroll
        for (int j = 1; j < V; ++j) most = fmaxf(most, values[j]);
        if (most > largest) {
            total *= exponential<T>(largest - most);
            largest = most;
        }
#pragma unroll
        for (int j = 0; j < V; ++j) total += exponential<T>(values[j] - largest);
    }
    const float own = largest;
    largest = group_max(group, own, shared.largest);
    total = group_sum(group, total * exponential<T>(own - largest), shared.total);
    write_loss(args, group, row, target, largest, total);
    if (args.dlogits != nullptr && group.thread < packs) {
        const float factor = args.scale / total;
        T* dlogits = args.dlogits + row * args.width;
        const Size last = (packs - 1 - group.thread) / group.threads;
#pragma unroll 2
        for (Size left = last + 1; left > 0; --left) {
            const Size pack = group.thread + (left - 1) * group.threads;
            float values[V];
            load(logits + pack * V, values);
#pragma unroll
            for (int j = 0; j < V; ++j) values[j] = exponential<T>(values[j] - largest);
            write_gradient(values, pack * V, target, factor, args.scale, dlogits);
        }
    }
}

template <int V, class T>
__device__ __forceinline__ void loss_rows(const Loss<T>& args, Shared& shared) {
    const Group group(args.width);
    for (Size row = static_cast<Size>(blockIdx.x) * group.count + group.index; row < args.rows;
         row += static_cast<Size>(gridDim.x) * group.count) {
        const Size target = args.targets[row];
        if (target >= args.width) __trap();
        if constexpr (V > 1) {
            if (args.width <= static_cast<Size>(HELD_ELEMENTS) * group.threads) {
                held_row<V>(args, group, row, target, shared);
                continue;
            }
        }
        wide_row<V>(args, group, row, target, shared);
    }
}

template <class T>
__device__ __forceinline__ void loss_of(const Loss<T>& args) {
    __shared__ Shared shared;
    if (args.width % PACK<T> == 0 && aligned(args.logits) && aligned(args.dlogits)) {
        loss_rows<PACK<T>>(args, shared);
    } else {
        loss_rows<1>(args, shared);
    }
}

constexpr int TOTAL_THREADS = 1024;

// The sum of the losses: each thread of one block adds every 1024th, then the threads are added in a tree.
__device__ __forceinline__ void total_loss(const float* token_losses, float* loss, Size rows) {
    __shared__ float sums[TOTAL_THREADS];
    if (blockIdx.x > 0) return;
    float sum = 0.0f;
#pragma unroll 8
    for (Size row = threadIdx.x; row < rows; row += TOTAL_THREADS) sum += token_losses[row];
    sums[threadIdx.x] = sum;
    __syncthreads();
    for (unsigned half = TOTAL_THREADS / 2; half > 0; half /= 2) {
        if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
        __syncthreads();
    }
    if (threadIdx.x == 0) *loss = sums[0];
}

// First stage of the losses and the gradient of the logits in one: logits [rows, width], targets [rows],
// token_losses [rows] (f32, scaled) and dlogits [rows, width] = (softmax − one-hot of the target) · scale. A target
// that is not under the width is a trap.
//
// Block as common.cuh says (exactly). Any one-dimensional grid; best is ceil(rows / groups) blocks. No shared memory to
// be given.
extern "C" __global__ void __launch_bounds__(MOST_GROUP_THREADS, 1)
cross_entropy_rows_f32(const float* logits, const unsigned* targets, float* token_losses, float*, float* dlogits,
                       Size rows, Size width, float scale) {
    loss_of(Loss<float>{logits, targets, token_losses, dlogits, rows, width, scale});
}

extern "C" __global__ void __launch_bounds__(MOST_GROUP_THREADS, 1)
cross_entropy_rows_bf16(const bf16* logits, const unsigned* targets, float* token_losses, float*, bf16* dlogits,
                        Size rows, Size width, float scale) {
    loss_of(Loss<bf16>{logits, targets, token_losses, dlogits, rows, width, scale});
}

// Second stage: loss [1] (f32) = the sum of token_losses. One block of 1024 threads (exactly); further blocks do
// nothing. No shared memory to be given.
extern "C" __global__ void __launch_bounds__(TOTAL_THREADS)
cross_entropy_total_f32(const float*, const unsigned*, const float* token_losses, float* loss, float*, Size rows, Size,
                        float) {
    total_loss(token_losses, loss, rows);
}

extern "C" __global__ void __launch_bounds__(TOTAL_THREADS)
cross_entropy_total_bf16(const bf16*, const unsigned*, const float* token_losses, float* loss, bf16*, Size rows, Size,
                         float) {
    total_loss(token_losses, loss, rows);
}

// First stage of the losses alone; otherwise as `cross_entropy_rows`.
extern "C" __global__ void __launch_bounds__(MOST_GROUP_THREADS, 1)
cross_entropy_forward_rows_f32(const float* logits, const unsigned* targets, float* token_losses, float*, Size rows,
                               Size width, float scale) {
    loss_of(Loss<float>{logits, targets, token_losses, nullptr, rows, width, scale});
}

extern "C" __global__ void __launch_bounds__(MOST_GROUP_THREADS, 1)
cross_entropy_forward_rows_bf16(const bf16* logits, const unsigned* targets, float* token_losses, float*, Size rows,
                                Size width, float scale) {
    loss_of(Loss<bf16>{logits, targets, token_losses, nullptr, rows, width, scale});
}

// Second stage, as `cross_entropy_total`.
extern "C" __global__ void __launch_bounds__(TOTAL_THREADS)
cross_entropy_forward_total_f32(const float*, const unsigned*, const float* token_losses, float* loss, Size rows, Size,
                                float) {
    total_loss(token_losses, loss, rows);
}

extern "C" __global__ void __launch_bounds__(TOTAL_THREADS)
cross_entropy_forward_total_bf16(const bf16*, const unsigned*, const float* token_losses, float* loss, Size rows, Size,
                                 float) {
    total_loss(token_losses, loss, rows);
}

// The gradient of the logits alone; otherwise as `cross_entropy_rows`.
extern "C" __global__ void __launch_bounds__(MOST_GROUP_THREADS, 1)
cross_entropy_backward_f32(const float* logits, const unsigned* targets, float* dlogits, Size rows, Size width,
                           float scale) {
    loss_of(Loss<float>{logits, targets, nullptr, dlogits, rows, width, scale});
}

extern "C" __global__ void __launch_bounds__(MOST_GROUP_THREADS, 1)
cross_entropy_backward_bf16(const bf16* logits, const unsigned* targets, bf16* dlogits, Size rows, Size width,
                            float scale) {
    loss_of(Loss<bf16>{logits, targets, nullptr, dlogits, rows, width, scale});
}
