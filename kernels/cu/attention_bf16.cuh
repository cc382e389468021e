// Attention on the tensor cores: bf16 operands, f32 scores, sums and statistics.
//
// In each kernel a thread block owns a block of rows (queries, or keys with their values), and each of its warps owns
// 16 * M of them. The block walks over tiles of the other side, which arrive in two stages: the next tile is copied
// while the present one is used, so one barrier a tile is enough. Scores live in registers. Their places there are
// those of the left side of the next product, so they need no shared memory.
//
// Tiles that the mask hides wholly are skipped, by the block or by the warp; only those on the diagonal are masked.
#pragma once

#include "attention_tile.cuh"

namespace attention {

// Largest number of the four lanes that share a row of accumulators.
__device__ __forceinline__ float row_max(float x) {
    x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
    return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}

// Sum over the four lanes that share a row of accumulators.
__device__ __forceinline__ float row_sum(float x) {
    x += __shfl_xor_sync(~0u, x, 1);
    return x + __shfl_xor_sync(~0u, x, 2);
}

// Softmax of rows that are seen piece by piece: the largest score so far and this lane's part of the sum of
// exponentials, for each of the lane's rows.
template <int M>
struct Softmax {
    float largest[M][2];
    float total[M][2];

    __device__ __forceinline__ Softmax() {
#pragma unroll
        for (int m = 0; m < M; ++m) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                largest[m][half] = MINUS_INFINITY;
                total[m][half] = 0.0f;
            }
        }
    }

    // Turns scores into exponentials relative to the largest score so far, the left side of the next product, and scales
    // `sums` to the new one. `factor` is the scale of the scores times log2(e). Each row must see an unmasked score in
    // its first piece.
    template <int N, int O>
    __device__ __forceinline__ void update(unsigned (&left)[M][N / 2][4], float (&sums)[M][O][4],
                                           const float (&scores)[M][N][4], float factor) {
#pragma unroll
        for (int m = 0; m < M; ++m) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                float best = scores[m][0][2 * half];
#pragma unroll
                for (int n = 0; n < N; ++n) {
                    best = fmaxf(best, fmaxf(scores[m][n][2 * half], scores[m][n][2 * half + 1]));
                }
                best = fmaxf(largest[m][half], row_max(best));
                const float shrink = power_of_two((largest[m][half] - best) * factor);
                const float offset = best * factor;
                largest[m][half] = best;
                float sum = 0.0f;
#pragma unroll
                for (int n = 0; n < N; ++n) {
                    const float p0 = power_of_two(fmaf(scores[m][n][2 * half], factor, -offset));
                    const float p1 = power_of_two(fmaf(scores[m][n][2 * half + 1], factor, -offset));
                    sum += p0 + p1;
                    left[m][n / 2][n % 2 * 2 + half] = pack(p0, p1);
                }
                total[m][half] = fmaf(total[m][half], shrink, sum);
#pragma unroll
                for (int n = 0; n < O; ++n) {
                    sums[m][n][2 * half] *= shrink;
                    sums[m][n][2 * half + 1] *= shrink;
                }
            }
        }
    }
};

// Masks scores of queries (rows, from `row` on) with keys (columns, from `column` on) that come after them.
template <int M, int N>
__device__ __forceinline__ void mask_later_columns(float (&scores)[M][N][4], int row, int column, float masked) {
    const int lane = threadIdx.x & 31;
    // How far this lane's first row is behind its first column.
    const int distance = row + lane / 4 - column - lane % 4 * 2;
#pragma unroll
    for (int m = 0; m < M; ++m) {
#pragma unroll
        for (int n = 0; n < N; ++n) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                if (n * 8 + i % 2 > distance + m * 16 + i / 2 * 8) scores[m][n][i] = masked;
            }
        }
    }
}

// Masks scores of keys (rows) with queries (columns) that come before them.
template <int M, int N>
__device__ __forceinline__ void mask_earlier_columns(float (&scores)[M][N][4], int row, int column, float masked) {
    const int lane = threadIdx.x & 31;
    const int distance = row + lane / 4 - column - lane % 4 * 2;
#pragma unroll
    for (int m = 0; m < M; ++m) {
#pragma unroll
        for (int n = 0; n < N; ++n) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                if (n * 8 + i % 2 < distance + m * 16 + i / 2 * 8) scores[m][n][i] = masked;
            }
        }
    }
}

// Forward pass. The block owns 16 * M * WARPS queries and walks over tiles of COLUMNS keys and values, in rising order:
// so each row's first tile has an unmasked key.
// Shared: the queries, then two stages of keys and values: 2 * W * (rows + 4 * COLUMNS) bytes.
template <int W, int WARPS, int M, int COLUMNS>
__device__ __forceinline__ void forward_bf16(const bf16* qkv, bf16* out, float* lse, const Shape shape) {
    constexpr int ROWS = 16 * M * WARPS;
    constexpr int THREADS = 32 * WARPS;
    constexpr unsigned HALF_STAGE = COLUMNS * Tile<W>::ROW_BYTES;
    extern __shared__ __align__(1024) unsigned char shared[];
    const int warp = threadIdx.x / 32;
    const int lane = threadIdx.x & 31;
    const Place place(shape, ROWS, sizeof(bf16));
    const int sequence = shape.sequence;
    const int blocks = (sequence + ROWS - 1) / ROWS;
    // The last queries see most keys.
    const int first = (blocks - 1 - place.rank) * ROWS;
    const int row = first + warp * 16 * M;
    const int last_column = min(first + ROWS, sequence);
    const unsigned stride = shape.packed_width();
    const bf16* keys = qkv + place.packed(shape, 1);
    const bf16* values = qkv + place.packed(shape, 2);
    const unsigned queries = shared_address(shared);
    const unsigned stages = queries + ROWS * Tile<W>::ROW_BYTES;
    const unsigned left = queries + warp * M * Tile<W>::STEP_BYTES + Tile<W>::left_lane();
    const float factor = shape.scale * LOG2_E;

    const auto load_stage = [&](int stage, int column) {
        const unsigned to = stages + stage * (2 * HALF_STAGE);
        Tile<W>::template load<COLUMNS, THREADS>(to, keys, stride, column, sequence);
        Tile<W>::template load<COLUMNS, THREADS>(to + HALF_STAGE, values, stride, column, sequence);
    };
    Tile<W>::template load<ROWS, THREADS>(queries, qkv + place.packed(shape, 0), stride, first, sequence);
    load_stage(0, 0);

    Softmax<M> softmax;
    float sums[M][W / 8][4];
    clear(sums);
    int stage = 0;
#pragma unroll 1
    for (int column = 0; column < last_column; column += COLUMNS, stage ^= 1) {
        wait_for_copies();
        // The tile is there for all, and nobody uses the other stage any more.
        __syncthreads();
        if (column + COLUMNS < last_column) load_stage(stage ^ 1, column + COLUMNS);
        if (column >= row + 16 * M) continue;
        const unsigned tile = stages + stage * (2 * HALF_STAGE);
        float scores[M][COLUMNS / 8][4];
        multiply_rows<W>(scores, left, tile + Tile<W>::right_lane());
        if (column + COLUMNS - 1 > row) mask_later_columns(scores, row, column, MINUS_INFINITY);
        unsigned probabilities[M][COLUMNS / 16][4];
        softmax.update(probabilities, sums, scores, factor);
        multiply_packed<W>(sums, probabilities, tile + HALF_STAGE + Tile<W>::left_lane());
    }

    float inverse[M][2];
#pragma unroll
    for (int m = 0; m < M; ++m) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const float total = row_sum(softmax.total[m][half]);
            const int query = row + m * 16 + half * 8 + lane / 4;
            inverse[m][half] = 1.0f / total;
            if (lane % 4 == 0 && query < sequence) {
                lse[place.saved(shape) + query] = fmaf(softmax.largest[m][half], shape.scale, logf(total));
            }
        }
    }
    Tile<W>::template store<M>(shared + warp * M * Tile<W>::STEP_BYTES, out + place.plain(shape), shape.width(), row,
                               sequence, sums, inverse);
}

// Gradients of keys and values. The block owns 16 * M * WARPS keys and walks over tiles of COLUMNS queries, from the
// diagonal on. Scores are transposed: a row is a key's.
// Shared: the keys, the values, then two stages of queries and gradients of the output, then two stages of
// log-sum-exps and deltas: 4 * W * rows + (8 * W + 16) * COLUMNS bytes.
template <int W, int WARPS, int M, int COLUMNS>
__device__ __forceinline__ void backward_keys_bf16(const bf16* qkv, const float* lse, const bf16* dout, bf16* dqkv,
                                                   const float* delta, const Shape shape) {
    constexpr int ROWS = 16 * M * WARPS;
    constexpr int THREADS = 32 * WARPS;
    constexpr unsigned ROWS_BYTES = ROWS * Tile<W>::ROW_BYTES;
    constexpr unsigned HALF_STAGE = COLUMNS * Tile<W>::ROW_BYTES;
    static_assert(2 * COLUMNS <= THREADS, "a thread copies one statistic at most");
    extern __shared__ __align__(1024) unsigned char shared[];
    const int warp = threadIdx.x / 32;
    const int lane = threadIdx.x & 31;
    const Place place(shape, ROWS, sizeof(bf16));
    const int sequence = shape.sequence;
    // The first keys are seen by most queries.
    const int first = place.rank * ROWS;
    const int row = first + warp * 16 * M;
    const int first_column = first / COLUMNS * COLUMNS;
    const unsigned stride = shape.packed_width();
    const bf16* queries = qkv + place.packed(shape, 0);
    const bf16* gradients = dout + place.plain(shape);
    const unsigned keys = shared_address(shared);
    const unsigned stages = keys + 2 * ROWS_BYTES;
    constexpr unsigned STATISTICS = 2 * ROWS_BYTES + 4 * HALF_STAGE;
    const unsigned left = keys + warp * M * Tile<W>::STEP_BYTES + Tile<W>::left_lane();
    const float factor = shape.scale * LOG2_E;

    const auto load_stage = [&](int stage, int column) {
        const unsigned to = stages + stage * (2 * HALF_STAGE);
        Tile<W>::template load<COLUMNS, THREADS>(to, queries, stride, column, sequence);
        Tile<W>::template load<COLUMNS, THREADS>(to + HALF_STAGE, gradients, shape.width(), column, sequence);
        if (threadIdx.x < 2 * COLUMNS) {
            const int query = column + threadIdx.x % COLUMNS;
            // Beyond the end a statistic is zero: the probabilities are finite, and gradients are zero there.
            copy_4(keys + STATISTICS + stage * (8 * COLUMNS) + threadIdx.x * 4,
                   (threadIdx.x < COLUMNS ? lse : delta) + place.saved(shape) + min(query, sequence - 1), query < sequence);
        }
    };
    Tile<W>::template load<ROWS, THREADS>(keys, qkv + place.packed(shape, 1), stride, first, sequence);
    Tile<W>::template load<ROWS, THREADS>(keys + ROWS_BYTES, qkv + place.packed(shape, 2), stride, first, sequence);
    load_stage(0, first_column);

    float dkeys[M][W / 8][4];
    float dvalues[M][W / 8][4];
    clear(dkeys);
    clear(dvalues);
    int stage = 0;
#pragma unroll 1
    for (int column = first_column; column < sequence; column += COLUMNS, stage ^= 1) {
        wait_for_copies();
        // The tile is there for all, and nobody uses the other stage any more.
        __syncthreads();
        if (column + COLUMNS < sequence) load_stage(stage ^ 1, column + COLUMNS);
        if (column + COLUMNS <= row) continue;
        const unsigned tile = stages + stage * (2 * HALF_STAGE);
        const float* tile_lse = reinterpret_cast<const float*>(shared + STATISTICS + stage * (8 * COLUMNS));
        float scores[M][COLUMNS / 8][4];
        multiply_rows<W>(scores, left, tile + Tile<W>::right_lane());
#pragma unroll
        for (int n = 0; n < COLUMNS / 8; ++n) {
            const float2 saved = *reinterpret_cast<const float2*>(tile_lse + n * 8 + lane % 4 * 2);
            const float offset[2] = {saved.x * LOG2_E, saved.y * LOG2_E};
#pragma unroll
            for (int m = 0; m < M; ++m) {
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    scores[m][n][i] = power_of_two(fmaf(scores[m][n][i], factor, -offset[i % 2]));
                }
            }
        }
        if (column < row + 16 * M - 1) mask_earlier_columns(scores, row, column, 0.0f);
        unsigned packed[M][COLUMNS / 16][4];
        pack_left(packed, scores);
        multiply_packed<W>(dvalues, packed, tile + HALF_STAGE + Tile<W>::left_lane());

        float dscores[M][COLUMNS / 8][4];
        multiply_rows<W>(dscores, left + ROWS_BYTES, tile + HALF_STAGE + Tile<W>::right_lane());
#pragma unroll
        for (int n = 0; n < COLUMNS / 8; ++n) {
            const float2 saved = *reinterpret_cast<const float2*>(tile_lse + COLUMNS + n * 8 + lane % 4 * 2);
#pragma unroll
            for (int m = 0; m < M; ++m) {
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    dscores[m][n][i] = scores[m][n][i] * (dscores[m][n][i] - (i % 2 == 0 ? saved.x : saved.y));
                }
            }
        }
        pack_left(packed, dscores);
        multiply_packed<W>(dkeys, packed, tile + Tile<W>::left_lane());
    }

    float factors[M][2];
#pragma unroll
    for (int m = 0; m < M; ++m) factors[m][0] = factors[m][1] = shape.scale;
    unsigned char* rows = shared + warp * M * Tile<W>::STEP_BYTES;
    Tile<W>::template store<M>(rows, dqkv + place.packed(shape, 1), stride, row, sequence, dkeys, factors);
#pragma unroll
    for (int m = 0; m < M; ++m) factors[m][0] = factors[m][1] = 1.0f;
    Tile<W>::template store<M>(rows + ROWS_BYTES, dqkv + place.packed(shape, 2), stride, row, sequence, dvalues,
                               factors);
}

// Gradients of queries. The block owns 16 * M * WARPS queries and walks over tiles of COLUMNS keys and values.
// Shared: the queries, the gradients of the output, then two stages of keys and values:
// 4 * W * rows + 8 * W * COLUMNS bytes.
template <int W, int WARPS, int M, int COLUMNS>
__device__ __forceinline__ void backward_queries_bf16(const bf16* qkv, const float* lse, const bf16* dout, bf16* dqkv,
                                                      const float* delta, const Shape shape) {
    constexpr int ROWS = 16 * M * WARPS;
    constexpr int THREADS = 32 * WARPS;
    constexpr unsigned ROWS_BYTES = ROWS * Tile<W>::ROW_BYTES;
    constexpr unsigned HALF_STAGE = COLUMNS * Tile<W>::ROW_BYTES;
    extern __shared__ __align__(1024) unsigned char shared[];
    const int warp = threadIdx.x / 32;
    const int lane = threadIdx.x & 31;
    const Place place(shape, ROWS, sizeof(bf16));
    const int sequence = shape.sequence;
    const int blocks = (sequence + ROWS - 1) / ROWS;
    // The last queries see most keys.
    const int first = (blocks - 1 - place.rank) * ROWS;
    const int row = first + warp * 16 * M;
    const int last_column = min(first + ROWS, sequence);
    const unsigned stride = shape.packed_width();
    const bf16* keys = qkv + place.packed(shape, 1);
    const bf16* values = qkv + place.packed(shape, 2);
    const unsigned queries = shared_address(shared);
    const unsigned stages = queries + 2 * ROWS_BYTES;
    const unsigned left = queries + warp * M * Tile<W>::STEP_BYTES + Tile<W>::left_lane();
    const float factor = shape.scale * LOG2_E;

    const auto load_stage = [&](int stage, int column) {
        const unsigned to = stages + stage * (2 * HALF_STAGE);
        Tile<W>::template load<COLUMNS, THREADS>(to, keys, stride, column, sequence);
        Tile<W>::template load<COLUMNS, THREADS>(to + HALF_STAGE, values, stride, column, sequence);
    };
    Tile<W>::template load<ROWS, THREADS>(queries, qkv + place.packed(shape, 0), stride, first, sequence);
    Tile<W>::template load<ROWS, THREADS>(queries + ROWS_BYTES, dout + place.plain(shape), shape.width(), first,
                                          sequence);
    load_stage(0, 0);

    // Beyond the end a statistic is zero; those rows are not stored.
    float offset[M][2];
    float row_delta[M][2];
#pragma unroll
    for (int m = 0; m < M; ++m) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int query = row + m * 16 + half * 8 + lane / 4;
            offset[m][half] = query < sequence ? lse[place.saved(shape) + query] * LOG2_E : 0.0f;
            row_delta[m][half] = query < sequence ? delta[place.saved(shape) + query] : 0.0f;
        }
    }

    float dqueries[M][W / 8][4];
    clear(dqueries);
    int stage = 0;
#pragma unroll 1
    for (int column = 0; column < last_column; column += COLUMNS, stage ^= 1) {
        wait_for_copies();
        // The tile is there for all, and nobody uses the other stage any more.
        __syncthreads();
        if (column + COLUMNS < last_column) load_stage(stage ^ 1, column + COLUMNS);
        if (column >= row + 16 * M) continue;
        const unsigned tile = stages + stage * (2 * HALF_STAGE);
        float scores[M][COLUMNS / 8][4];
        float dscores[M][COLUMNS / 8][4];
        multiply_rows<W>(scores, left, tile + Tile<W>::right_lane());
        multiply_rows<W>(dscores, left + ROWS_BYTES, tile + HALF_STAGE + Tile<W>::right_lane());
        if (column + COLUMNS - 1 > row) mask_later_columns(scores, row, column, MINUS_INFINITY);
#pragma unroll
        for (int m = 0; m < M; ++m) {
#pragma unroll
            for (int n = 0; n < COLUMNS / 8; ++n) {
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    const float probability = power_of_two(fmaf(scores[m][n][i], factor, -offset[m][i / 2]));
                    dscores[m][n][i] = probability * (dscores[m][n][i] - row_delta[m][i / 2]);
                }
            }
        }
        unsigned packed[M][COLUMNS / 16][4];
        pack_left(packed, dscores);
        multiply_packed<W>(dqueries, packed, tile + Tile<W>::left_lane());
    }

    float factors[M][2];
#pragma unroll
    for (int m = 0; m < M; ++m) factors[m][0] = factors[m][1] = shape.scale;
    Tile<W>::template store<M>(shared + warp * M * Tile<W>::STEP_BYTES, dqkv + place.packed(shape, 0), stride, row,
                               sequence, dqueries, factors);
}

}  // namespace attention
