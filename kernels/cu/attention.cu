// Causal multi-head self-attention on packed queries, keys and values, forward and backward.
//
// The matrix of scores never leaves the chip: between the passes only the log-sum-exp of each of its rows is kept, and
// the backward pass makes the probabilities from it again (as Dao does, arXiv:2307.08691). The backward pass makes the
// scores twice, once for the gradients of keys and values and once for those of queries. So every sum has one owner,
// no atomics are needed, and two runs give the same bits.
//
// Tensors: qkv and dqkv [batch, sequence, 3, heads, head_width]; out and dout [batch, sequence, heads, head_width];
// lse and delta [batch, heads, sequence], always f32. lse is the natural logarithm of the sum of exponentials of the
// scaled scores of a query. Outputs are written wholly and never read. Tensors do not overlap.
//
// Parameters: forward (qkv, out, lse, batch, sequence, heads, head_width, scale); backward (qkv, out, lse, dout, dqkv,
// delta, batch, sequence, heads, head_width, scale), where delta is scratch. `scale` is 1 / sqrt(head_width).
// The backward stages run in order: delta (rows of dout * out), keys (dK and dV), queries (dQ).
//
// Limits: sequence and batch * heads below 2^30; head_width from 1 to 256 for f32; for bf16 the width in the entry's
// name, with all bf16 tensors aligned to 16 bytes.
//
// Launch, all one-dimensional, with ceil(a / b) rounding up; nothing is launched if batch, sequence or heads is 0:
//
//   delta:      grid ceil(batch * sequence * heads / 32) in f32 and ceil(batch * sequence * heads / 64) in bf16,
//               256 threads, no dynamic shared memory.
//   all others: grid batch * heads * ceil(sequence / rows), threads and dynamic shared bytes as below.
//
//   f32, 256 threads. With p = head_width rounded up to a power of two, at least 16:
//     rows    = p <= 128 ? 64 : 32
//     columns = p <= 64 ? 64 : 32
//     forward             4 * ((rows + 2 * columns) * (p + 4) + rows * (columns + 4)) bytes
//     keys and queries    8 * ((rows + columns) * (p + 4) + rows * (columns + 4)) bytes
//
//   bf16, with W the head width (what was fastest on an H200 among what keeps all registers):
//                 W        rows   columns   threads   bytes
//     forward     32, 64   128    64        128       2 * W * rows + 8 * W * columns
//     forward     128      64     64        128
//     keys        32       128    32        128       4 * W * rows + (8 * W + 16) * columns
//     keys        64       64     64        128
//     keys        128      128    64        256
//     queries     32       128    32        128       4 * W * rows + 8 * W * columns
//     queries     64       128    64        128
//     queries     128      64     64        128
//
// More than 48 KiB of dynamic shared bytes need the function's attribute for it to be set.
#include "attention_bf16.cuh"
#include "attention_f32.cuh"

namespace attention {

// Eight bf16 numbers, as f32.
struct Eight {
    float numbers[8];

    __device__ __forceinline__ explicit Eight(const bf16* from) {
        const uint4 raw = *reinterpret_cast<const uint4*>(from);
        const unsigned pairs[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            // A bf16 is the high half of an f32.
            numbers[2 * i] = __uint_as_float(pairs[i] << 16);
            numbers[2 * i + 1] = __uint_as_float(pairs[i] & 0xffff0000u);
        }
    }
};

__device__ __forceinline__ float dot_part(const float* a, const float* b, int lane, int lanes, int count) {
    float sum = 0.0f;
    for (int i = lane; i < count; i += lanes) sum = fmaf(a[i], b[i], sum);
    return sum;
}

__device__ __forceinline__ float dot_part(const bf16* a, const bf16* b, int lane, int lanes, int count) {
    float sum = 0.0f;
    for (int i = 8 * lane; i < count; i += 8 * lanes) {
        const Eight x(a + i);
        const Eight y(b + i);
#pragma unroll
        for (int j = 0; j < 8; ++j) sum = fmaf(x.numbers[j], y.numbers[j], sum);
    }
    return sum;
}

// Dot product of each head's rows of `out` and `dout`: the average of the gradients of the row's probabilities. LANES
// lanes share a row.
template <typename T, int LANES>
__device__ __forceinline__ void backward_delta(const T* out, const T* dout, float* delta, const Shape shape) {
    const long long rows = static_cast<long long>(shape.batch) * shape.sequence * shape.heads;
    const long long row = (static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x) / LANES;
    const long long offset = min(row, rows - 1) * shape.head_width;
    float sum = dot_part(out + offset, dout + offset, threadIdx.x % LANES, LANES, shape.head_width);
#pragma unroll
    for (int lanes = LANES / 2; lanes > 0; lanes /= 2) sum += __shfl_xor_sync(~0u, sum, lanes);
    if (row < rows && threadIdx.x % LANES == 0) {
        const long long token = row / shape.heads;
        const long long head = row % shape.heads + token / shape.sequence * shape.heads;
        delta[head * shape.sequence + token % shape.sequence] = sum;
    }
}

}  // namespace attention

using attention::Plan;
using attention::Shape;
using attention::bf16;

#define FORWARD(TYPE)                                                                                            \
    const TYPE *__restrict__ qkv, TYPE *__restrict__ out, float *__restrict__ lse, unsigned long long batch,     \
        unsigned long long sequence, unsigned long long heads, unsigned long long head_width, float scale

#define BACKWARD(TYPE)                                                                                           \
    const TYPE *__restrict__ qkv, const TYPE *__restrict__ out, const float *__restrict__ lse,                   \
        const TYPE *__restrict__ dout, TYPE *__restrict__ dqkv, float *__restrict__ delta,                       \
        unsigned long long batch, unsigned long long sequence, unsigned long long heads,                         \
        unsigned long long head_width, float scale

#define SHAPE Shape(batch, sequence, heads, head_width, scale)

// Calls a function with the `Plan` that fits the head width.
#define DISPATCH(FUNCTION, ...)                                                 \
    if (head_width <= 16) {                                                     \
        attention::FUNCTION<Plan<64, 64, 1>>(__VA_ARGS__, SHAPE);               \
    } else if (head_width <= 32) {                                              \
        attention::FUNCTION<Plan<64, 64, 2>>(__VA_ARGS__, SHAPE);               \
    } else if (head_width <= 64) {                                              \
        attention::FUNCTION<Plan<64, 64, 4>>(__VA_ARGS__, SHAPE);               \
    } else if (head_width <= 128) {                                             \
        attention::FUNCTION<Plan<64, 32, 8>>(__VA_ARGS__, SHAPE);               \
    } else {                                                                    \
        attention::FUNCTION<Plan<32, 32, 16>>(__VA_ARGS__, SHAPE);              \
    }

extern "C" __global__ void __launch_bounds__(256, 2) attention_forward_f32(FORWARD(float)) {
    DISPATCH(forward_f32, qkv, out, lse)
}

extern "C" __global__ void __launch_bounds__(256) attention_backward_delta_f32(BACKWARD(float)) {
    attention::backward_delta<float, 8>(out, dout, delta, SHAPE);
}

extern "C" __global__ void __launch_bounds__(256, 1) attention_backward_keys_f32(BACKWARD(float)) {
    DISPATCH(backward_keys_f32, qkv, lse, dout, dqkv, delta)
}

extern "C" __global__ void __launch_bounds__(256, 2) attention_backward_queries_f32(BACKWARD(float)) {
    DISPATCH(backward_queries_f32, qkv, lse, dout, dqkv, delta)
}

extern "C" __global__ void __launch_bounds__(256) attention_backward_delta_bf16(BACKWARD(bf16)) {
    attention::backward_delta<bf16, 4>(out, dout, delta, SHAPE);
}

// The entries of the tensor cores for one head width: for each kernel its warps, sixteens of rows of a warp, columns,
// and thread blocks that a multiprocessor should hold.
#define FORWARD_BF16(W, WARPS, M, COLUMNS, RESIDENT)                                                             \
    extern "C" __global__ void __launch_bounds__(32 * WARPS, RESIDENT)                                           \
        attention_forward_bf16_##W(FORWARD(bf16)) {                                                              \
        const Shape shape(batch, sequence, heads, W, scale); \
        attention::forward_bf16<W, WARPS, M, COLUMNS>(qkv, out, lse, shape); \
    }

#define KEYS_BF16(W, WARPS, M, COLUMNS, RESIDENT)                                                                \
    extern "C" __global__ void __launch_bounds__(32 * WARPS, RESIDENT)                                           \
        attention_backward_keys_bf16_##W(BACKWARD(bf16)) {                                                       \
        const Shape shape(batch, sequence, heads, W, scale); \
        attention::backward_keys_bf16<W, WARPS, M, COLUMNS>(qkv, lse, dout, dqkv, delta, shape); \
    }

#define QUERIES_BF16(W, WARPS, M, COLUMNS, RESIDENT)                                                             \
    extern "C" __global__ void __launch_bounds__(32 * WARPS, RESIDENT)                                           \
        attention_backward_queries_bf16_##W(BACKWARD(bf16)) {                                                    \
        const Shape shape(batch, sequence, heads, W, scale); \
        attention::backward_queries_bf16<W, WARPS, M, COLUMNS>(qkv, lse, dout, dqkv, delta, shape); \
    }

FORWARD_BF16(32, 4, 2, 64, 3)
FORWARD_BF16(64, 4, 2, 64, 2)
FORWARD_BF16(128, 4, 1, 64, 2)

KEYS_BF16(32, 4, 2, 32, 3)
KEYS_BF16(64, 4, 1, 64, 2)
KEYS_BF16(128, 8, 1, 64, 1)

QUERIES_BF16(32, 4, 2, 32, 3)
QUERIES_BF16(64, 4, 2, 64, 1)
QUERIES_BF16(128, 4, 1, 64, 2)
