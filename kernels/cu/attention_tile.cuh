// Tiles of bf16 rows in shared memory, and matrix products with them.
//
// A tile is rows of W elements. The 16-byte chunks of a row are permuted by the row's number, so the eight rows that
// one matrix load touches lie in different banks. A tile starts at a multiple of 256 bytes of shared memory: then a
// step along a row is an exclusive or on an address.
#pragma once

#include "attention_ptx.cuh"
#include "attention_shape.cuh"

namespace attention {

template <int W>
struct Tile {
    static_assert(W == 32 || W == 64 || W == 128, "the permutation is made for these widths");

    static constexpr int ROW_BYTES = 2 * W;
    static constexpr int CHUNKS = W / 8;
    static constexpr int STEP_BYTES = 16 * ROW_BYTES;

    // Byte offset of a chunk.
    static __device__ __forceinline__ unsigned at(int row, int chunk) {
        const int key = W == 32 ? (row >> 1) & 3 : row & 7;
        return row * ROW_BYTES + ((chunk ^ key) << 4);
    }

    // Byte offset that this lane adds to load a matrix of 16 rows and 16 columns as the left side of a product, or,
    // transposed, as the right side of `multiply_packed`.
    static __device__ __forceinline__ unsigned left_lane() {
        const int lane = threadIdx.x & 31;
        return at(lane & 15, lane >> 4);
    }

    // Byte offset that this lane adds to load 16 rows and 16 columns as the right side of `multiply_rows`.
    static __device__ __forceinline__ unsigned right_lane() {
        const int lane = threadIdx.x & 31;
        return at((lane & 7) + ((lane >> 4) << 3), (lane >> 3) & 1);
    }

    // Address of the 16 columns that come `step` sixteens after those of `address`. Only two bits of the step meet the
    // permutation, so the others are a constant in the instruction.
    static __device__ __forceinline__ unsigned step(unsigned address, int step) {
        return (address ^ ((step & 3) * 32)) + (step >> 2) * 128;
    }

    // Starts the copy of ROWS rows into the tile. Rows from `sequence` on become zeros. `source` is row 0 of the
    // sequence, `stride` counts elements.
    template <int ROWS, int THREADS>
    static __device__ __forceinline__ void load(unsigned tile, const bf16* source, unsigned stride, int first,
                                                int sequence) {
        constexpr int COPIES = ROWS * CHUNKS / THREADS;
        static_assert(COPIES * THREADS == ROWS * CHUNKS, "every thread copies equally much");
        constexpr int STEP = THREADS / CHUNKS;
        static_assert(STEP % 8 == 0, "the rows of a thread have the same permutation");
        const int row = first + threadIdx.x / CHUNKS;
        const bf16* from = source + threadIdx.x % CHUNKS * 8;
        const unsigned to = tile + at(threadIdx.x / CHUNKS, threadIdx.x % CHUNKS);
#pragma unroll
        for (int i = 0; i < COPIES; ++i) {
            const bool inside = row < sequence - i * STEP;
            copy_16(to + i * STEP * ROW_BYTES, from + row_offset(min(row + i * STEP, sequence - 1), stride), inside);
        }
    }

    // Writes 16 * M rows of accumulators, times a factor for each row, by way of a tile whose rows only this warp
    // uses. `rows` is the byte address of the tile's first row, `first` its number in the sequence.
    template <int M>
    static __device__ __forceinline__ void store(unsigned char* rows, bf16* target, unsigned stride, int first,
                                                 int sequence, const float (&sums)[M][W / 8][4],
                                                 const float (&factor)[M][2]) {
        const int lane = threadIdx.x & 31;
        // The warp may still be loading matrices from these rows.
        __syncwarp();
#pragma unroll
        for (int m = 0; m < M; ++m) {
#pragma unroll
            for (int n = 0; n < W / 8; ++n) {
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    const int row = m * 16 + half * 8 + lane / 4;
                    unsigned* to = reinterpret_cast<unsigned*>(rows + at(row, n)) + lane % 4;
                    *to = pack(sums[m][n][2 * half] * factor[m][half], sums[m][n][2 * half + 1] * factor[m][half]);
                }
            }
        }
        __syncwarp();
#pragma unroll
        for (int i = 0; i < 16 * M * CHUNKS / 32; ++i) {
            const int row = (lane + 32 * i) / CHUNKS;
            const int chunk = (lane + 32 * i) % CHUNKS;
            if (first + row < sequence) {
                *reinterpret_cast<uint4*>(target + row_offset(first + row, stride) + chunk * 8) =
                    *reinterpret_cast<const uint4*>(rows + at(row, chunk));
            }
        }
    }
};

// Sets accumulators to zero.
template <int M, int N>
__device__ __forceinline__ void clear(float (&sums)[M][N][4]) {
#pragma unroll
    for (int m = 0; m < M; ++m) {
#pragma unroll
        for (int n = 0; n < N; ++n) {
#pragma unroll
            for (int i = 0; i < 4; ++i) sums[m][n][i] = 0.0f;
        }
    }
}

// sums = A * B^T: dot products of 16 * M rows of a tile with 8 * N rows of another one. The addresses include the
// lane's `left_lane` and `right_lane`.
template <int W, int M, int N>
__device__ __forceinline__ void multiply_rows(float (&sums)[M][N][4], unsigned left, unsigned right) {
    clear(sums);
#pragma unroll 4
    for (int k = 0; k < W / 16; ++k) {
        unsigned a[M][4];
#pragma unroll
        for (int m = 0; m < M; ++m) load_matrices(a[m], Tile<W>::step(left, k) + m * Tile<W>::STEP_BYTES);
#pragma unroll
        for (int n = 0; n < N / 2; ++n) {
            unsigned b[4];
            load_matrices(b, Tile<W>::step(right, k) + n * Tile<W>::STEP_BYTES);
#pragma unroll
            for (int m = 0; m < M; ++m) {
                multiply_add(sums[m][2 * n], a[m], b[0], b[1]);
                multiply_add(sums[m][2 * n + 1], a[m], b[2], b[3]);
            }
        }
    }
}

// sums += A * B, with A from `pack_left` and B the 16 * K rows of a tile. The address includes `left_lane`.
template <int W, int M, int K>
__device__ __forceinline__ void multiply_packed(float (&sums)[M][W / 8][4], const unsigned (&a)[M][K][4],
                                                unsigned right) {
#pragma unroll
    for (int k = 0; k < K; ++k) {
#pragma unroll
        for (int n = 0; n < W / 16; ++n) {
            unsigned b[4];
            load_matrices_transposed(b, Tile<W>::step(right, n) + k * Tile<W>::STEP_BYTES);
#pragma unroll
            for (int m = 0; m < M; ++m) {
                multiply_add(sums[m][2 * n], a[m][k], b[0], b[1]);
                multiply_add(sums[m][2 * n + 1], a[m][k], b[2], b[3]);
            }
        }
    }
}

// Rounds accumulators to bf16. Their places in the lanes are those of a left side.
template <int M, int N>
__device__ __forceinline__ void pack_left(unsigned (&a)[M][N / 2][4], const float (&sums)[M][N][4]) {
#pragma unroll
    for (int m = 0; m < M; ++m) {
#pragma unroll
        for (int n = 0; n < N; ++n) {
            a[m][n / 2][n % 2 * 2] = pack(sums[m][n][0], sums[m][n][1]);
            a[m][n / 2][n % 2 * 2 + 1] = pack(sums[m][n][2], sums[m][n][3]);
        }
    }
}

}  // namespace attention
