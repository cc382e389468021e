// Attention on the CUDA cores, in f32 throughout, for any head width up to 256.
//
// A thread block has 16 x 16 threads and owns a block of rows (queries, or keys with their values): thread (y, x) has
// the rows y * (ROWS / 16) and after. The block walks over tiles of COLUMNS rows of the other side. Rows are padded
// with zeros to 16 * C elements, so a product never asks for the head's width.
//
// A warp has whole rows of scores, so scores go from one product to the next through shared memory that only the warp
// uses.
#pragma once

#include "attention_shape.cuh"

namespace attention {

constexpr int SIDE = 16;
constexpr int F32_THREADS = SIDE * SIDE;

// Tiles of ROWS and COLUMNS rows of 16 * C elements.
template <int ROWS_, int COLUMNS_, int C_>
struct Plan {
    static constexpr int ROWS = ROWS_;
    static constexpr int COLUMNS = COLUMNS_;
    static constexpr int C = C_;
    // Rows and columns of scores of one thread.
    static constexpr int R = ROWS / SIDE;
    static constexpr int S = COLUMNS / SIDE;
    // Floats from row to row. An odd number of 16-byte pieces: eight rows lie in different banks.
    static constexpr int PITCH = SIDE * C + 4;
    static constexpr int SCORE_PITCH = COLUMNS + 4;

    static __device__ __forceinline__ int x() { return threadIdx.x % SIDE; }
    static __device__ __forceinline__ int row() { return threadIdx.x / SIDE * R; }

    // Loads N rows of a sequence, with zeros in the padding and from the end of the sequence on.
    template <int N>
    static __device__ __forceinline__ void load(float* tile, const float* source, unsigned stride, int first,
                                                const Shape& shape) {
        for (int row = threadIdx.x / 32; row < N; row += F32_THREADS / 32) {
            for (int i = threadIdx.x % 32; i < SIDE * C; i += 32) {
                const bool inside = first + row < shape.sequence && i < shape.head_width;
                tile[row * PITCH + i] = inside ? source[row_offset(first + row, stride) + i] : 0.0f;
            }
        }
    }

    // Dot products of the thread's rows of `left` with its columns' rows of `right`.
    static __device__ __forceinline__ void multiply_rows(float (&sums)[R][S], const float* left, const float* right) {
#pragma unroll
        for (int r = 0; r < R; ++r) {
#pragma unroll
            for (int s = 0; s < S; ++s) sums[r][s] = 0.0f;
        }
#pragma unroll 2
        for (int k = 0; k < SIDE * C; k += 4) {
            float4 a[R];
#pragma unroll
            for (int r = 0; r < R; ++r) a[r] = *reinterpret_cast<const float4*>(left + (row() + r) * PITCH + k);
#pragma unroll
            for (int s = 0; s < S; ++s) {
                const float4 b = *reinterpret_cast<const float4*>(right + (x() + SIDE * s) * PITCH + k);
#pragma unroll
                for (int r = 0; r < R; ++r) {
                    sums[r][s] = fmaf(a[r].x, b.x, sums[r][s]);
                    sums[r][s] = fmaf(a[r].y, b.y, sums[r][s]);
                    sums[r][s] = fmaf(a[r].z, b.z, sums[r][s]);
                    sums[r][s] = fmaf(a[r].w, b.w, sums[r][s]);
                }
            }
        }
    }

    // Writes the thread's scores. Only its warp may read them, after `__syncwarp`.
    static __device__ __forceinline__ void write_scores(float* to, const float (&scores)[R][S]) {
#pragma unroll
        for (int r = 0; r < R; ++r) {
#pragma unroll
            for (int s = 0; s < S; ++s) to[(row() + r) * SCORE_PITCH + x() + SIDE * s] = scores[r][s];
        }
    }

    // Adds the product of the thread's rows of scores with the rows of `right`, in its columns x, x + 16, ...
    static __device__ __forceinline__ void multiply_scores(float (&sums)[R][C], const float* scores,
                                                           const float* right) {
#pragma unroll 1
        for (int k = 0; k < COLUMNS; k += 4) {
            float a[R][4];
#pragma unroll
            for (int r = 0; r < R; ++r) {
                const float4 four = *reinterpret_cast<const float4*>(scores + (row() + r) * SCORE_PITCH + k);
                a[r][0] = four.x;
                a[r][1] = four.y;
                a[r][2] = four.z;
                a[r][3] = four.w;
            }
#pragma unroll
            for (int i = 0; i < 4; ++i) {
#pragma unroll
                for (int c = 0; c < C; ++c) {
                    const float b = right[(k + i) * PITCH + x() + SIDE * c];
#pragma unroll
                    for (int r = 0; r < R; ++r) sums[r][c] = fmaf(a[r][i], b, sums[r][c]);
                }
            }
        }
    }

    static __device__ __forceinline__ void clear(float (&sums)[R][C]) {
#pragma unroll
        for (int r = 0; r < R; ++r) {
#pragma unroll
            for (int c = 0; c < C; ++c) sums[r][c] = 0.0f;
        }
    }

    // Stores the thread's sums times a factor for each row.
    static __device__ __forceinline__ void store(float* target, unsigned stride, int first, const Shape& shape,
                                                 const float (&sums)[R][C], const float (&factor)[R]) {
#pragma unroll
        for (int r = 0; r < R; ++r) {
#pragma unroll
            for (int c = 0; c < C; ++c) {
                const int index = first + row() + r;
                const int i = x() + SIDE * c;
                if (index < shape.sequence && i < shape.head_width) target[row_offset(index, stride) + i] = sums[r][c] * factor[r];
            }
        }
    }
};

// Forward pass of a block of queries.
template <typename P>
__device__ __forceinline__ void forward_f32(const float* qkv, float* out, float* lse, const Shape shape) {
    extern __shared__ __align__(1024) unsigned char shared[];
    float* queries = reinterpret_cast<float*>(shared);
    float* keys = queries + P::ROWS * P::PITCH;
    float* values = keys + P::COLUMNS * P::PITCH;
    float* probabilities = values + P::COLUMNS * P::PITCH;
    const Place place(shape, P::ROWS, sizeof(float));
    const int blocks = (shape.sequence + P::ROWS - 1) / P::ROWS;
    const int first = (blocks - 1 - place.rank) * P::ROWS;
    const int last = min(first + P::ROWS, shape.sequence);
    const unsigned stride = shape.packed_width();

    P::template load<P::ROWS>(queries, qkv + place.packed(shape, 0), stride, first, shape);
    float sums[P::R][P::C];
    P::clear(sums);
    float largest[P::R];
    float total[P::R];
#pragma unroll
    for (int r = 0; r < P::R; ++r) {
        largest[r] = MINUS_INFINITY;
        total[r] = 0.0f;
    }
#pragma unroll 1
    for (int column = 0; column < last; column += P::COLUMNS) {
        __syncthreads();
        P::template load<P::COLUMNS>(keys, qkv + place.packed(shape, 1), stride, column, shape);
        P::template load<P::COLUMNS>(values, qkv + place.packed(shape, 2), stride, column, shape);
        __syncthreads();
        float scores[P::R][P::S];
        P::multiply_rows(scores, queries, keys);
#pragma unroll
        for (int r = 0; r < P::R; ++r) {
            const int query = first + P::row() + r;
            // The first tile has key 0, which every query sees: from there on `best` is no minus infinity.
            float best = largest[r];
#pragma unroll
            for (int s = 0; s < P::S; ++s) {
                const bool seen = column + P::x() + SIDE * s <= query;
                scores[r][s] = seen ? scores[r][s] * shape.scale : MINUS_INFINITY;
                best = fmaxf(best, scores[r][s]);
            }
#pragma unroll
            for (int lanes = SIDE / 2; lanes > 0; lanes /= 2) best = fmaxf(best, __shfl_xor_sync(~0u, best, lanes));
            const float shrink = expf(largest[r] - best);
            largest[r] = best;
            total[r] *= shrink;
#pragma unroll
            for (int s = 0; s < P::S; ++s) {
                scores[r][s] = expf(scores[r][s] - best);
                total[r] += scores[r][s];
            }
#pragma unroll
            for (int c = 0; c < P::C; ++c) sums[r][c] *= shrink;
        }
        P::write_scores(probabilities, scores);
        __syncwarp();
        P::multiply_scores(sums, probabilities, values);
    }

    float inverse[P::R];
#pragma unroll
    for (int r = 0; r < P::R; ++r) {
#pragma unroll
        for (int lanes = SIDE / 2; lanes > 0; lanes /= 2) total[r] += __shfl_xor_sync(~0u, total[r], lanes);
        inverse[r] = 1.0f / total[r];
        const int query = first + P::row() + r;
        if (P::x() == 0 && query < shape.sequence) lse[place.saved(shape) + query] = largest[r] + logf(total[r]);
    }
    P::store(out + place.plain(shape), shape.width(), first, shape, sums, inverse);
}

// Gradients of a block of keys and values. A row of scores is a key's.
template <typename P>
__device__ __forceinline__ void backward_keys_f32(const float* qkv, const float* lse, const float* dout, float* dqkv,
                                                  const float* delta, const Shape shape) {
    extern __shared__ __align__(1024) unsigned char shared[];
    float* keys = reinterpret_cast<float*>(shared);
    float* values = keys + P::ROWS * P::PITCH;
    float* queries = values + P::ROWS * P::PITCH;
    float* gradients = queries + P::COLUMNS * P::PITCH;
    float* probabilities = gradients + P::COLUMNS * P::PITCH;
    float* dprobabilities = probabilities + P::ROWS * P::SCORE_PITCH;
    const Place place(shape, P::ROWS, sizeof(float));
    const int first = place.rank * P::ROWS;
    const unsigned stride = shape.packed_width();

    P::template load<P::ROWS>(keys, qkv + place.packed(shape, 1), stride, first, shape);
    P::template load<P::ROWS>(values, qkv + place.packed(shape, 2), stride, first, shape);
    float dkeys[P::R][P::C];
    float dvalues[P::R][P::C];
    P::clear(dkeys);
    P::clear(dvalues);
#pragma unroll 1
    for (int column = first / P::COLUMNS * P::COLUMNS; column < shape.sequence; column += P::COLUMNS) {
        __syncthreads();
        P::template load<P::COLUMNS>(queries, qkv + place.packed(shape, 0), stride, column, shape);
        P::template load<P::COLUMNS>(gradients, dout + place.plain(shape), shape.width(), column, shape);
        __syncthreads();
        float scores[P::R][P::S];
        float dscores[P::R][P::S];
        P::multiply_rows(scores, keys, queries);
        P::multiply_rows(dscores, values, gradients);
#pragma unroll
        for (int s = 0; s < P::S; ++s) {
            const int query = column + P::x() + SIDE * s;
            const bool inside = query < shape.sequence;
            const float saved = inside ? lse[place.saved(shape) + query] : 0.0f;
            const float average = inside ? delta[place.saved(shape) + query] : 0.0f;
#pragma unroll
            for (int r = 0; r < P::R; ++r) {
                const bool seen = inside && first + P::row() + r <= query;
                scores[r][s] = seen ? expf(scores[r][s] * shape.scale - saved) : 0.0f;
                dscores[r][s] = scores[r][s] * (dscores[r][s] - average);
            }
        }
        P::write_scores(probabilities, scores);
        P::write_scores(dprobabilities, dscores);
        __syncwarp();
        P::multiply_scores(dvalues, probabilities, gradients);
        P::multiply_scores(dkeys, dprobabilities, queries);
    }

    float factors[P::R];
#pragma unroll
    for (int r = 0; r < P::R; ++r) factors[r] = shape.scale;
    P::store(dqkv + place.packed(shape, 1), stride, first, shape, dkeys, factors);
#pragma unroll
    for (int r = 0; r < P::R; ++r) factors[r] = 1.0f;
    P::store(dqkv + place.packed(shape, 2), stride, first, shape, dvalues, factors);
}

// Gradients of a block of queries.
template <typename P>
__device__ __forceinline__ void backward_queries_f32(const float* qkv, const float* lse, const float* dout, float* dqkv,
                                                     const float* delta, const Shape shape) {
    extern __shared__ __align__(1024) unsigned char shared[];
    float* queries = reinterpret_cast<float*>(shared);
    float* gradients = queries + P::ROWS * P::PITCH;
    float* keys = gradients + P::ROWS * P::PITCH;
    float* values = keys + P::COLUMNS * P::PITCH;
    float* dprobabilities = values + P::COLUMNS * P::PITCH;
    const Place place(shape, P::ROWS, sizeof(float));
    const int blocks = (shape.sequence + P::ROWS - 1) / P::ROWS;
    const int first = (blocks - 1 - place.rank) * P::ROWS;
    const int last = min(first + P::ROWS, shape.sequence);
    const unsigned stride = shape.packed_width();

    P::template load<P::ROWS>(queries, qkv + place.packed(shape, 0), stride, first, shape);
    P::template load<P::ROWS>(gradients, dout + place.plain(shape), shape.width(), first, shape);
    // Beyond the end a statistic is zero; those rows are not stored.
    float saved[P::R];
    float average[P::R];
    float factors[P::R];
#pragma unroll
    for (int r = 0; r < P::R; ++r) {
        const int query = first + P::row() + r;
        saved[r] = query < shape.sequence ? lse[place.saved(shape) + query] : 0.0f;
        average[r] = query < shape.sequence ? delta[place.saved(shape) + query] : 0.0f;
        factors[r] = shape.scale;
    }
    float dqueries[P::R][P::C];
    P::clear(dqueries);
#pragma unroll 1
    for (int column = 0; column < last; column += P::COLUMNS) {
        __syncthreads();
        P::template load<P::COLUMNS>(keys, qkv + place.packed(shape, 1), stride, column, shape);
        P::template load<P::COLUMNS>(values, qkv + place.packed(shape, 2), stride, column, shape);
        __syncthreads();
        float scores[P::R][P::S];
        float dscores[P::R][P::S];
        P::multiply_rows(scores, queries, keys);
        P::multiply_rows(dscores, gradients, values);
#pragma unroll
        for (int r = 0; r < P::R; ++r) {
            const int query = first + P::row() + r;
#pragma unroll
            for (int s = 0; s < P::S; ++s) {
                const bool seen = column + P::x() + SIDE * s <= query;
                const float probability = seen ? expf(scores[r][s] * shape.scale - saved[r]) : 0.0f;
                dscores[r][s] = probability * (dscores[r][s] - average[r]);
            }
        }
        P::write_scores(dprobabilities, dscores);
        __syncwarp();
        P::multiply_scores(dqueries, dprobabilities, keys);
    }
    P::store(dqkv + place.packed(shape, 0), stride, first, shape, dqueries, factors);
}

}  // namespace attention
