// Adding one row to all rows, and its gradient, which is the sum of the rows.

#include "common.cuh"

// Threads of a block of the first two entries.
constexpr int THREADS = 256;
constexpr int WARPS = THREADS / 32;

// `per_row` packs of V elements make a row. The column of a thread moves by a fixed step, so there is one division.
template <int V, class T>
__device__ __forceinline__ void add_to_rows(const T* bias, T* x, Size rows, Size per_row) {
    const Size packs = rows * per_row;
    const Size stride = static_cast<Size>(gridDim.x) * blockDim.x;
    const Size step = stride % per_row;
    Size pack = static_cast<Size>(blockIdx.x) * blockDim.x + threadIdx.x;
    Size column = pack % per_row;
    for (; pack < packs; pack += stride) {
        float b[V], a[V];
        load(bias + column * V, b);
        load(x + pack * V, a);
#pragma unroll
        for (int k = 0; k < V; ++k) a[k] += b[k];
        store(x + pack * V, a);
        column += step;
        if (column >= per_row) column -= per_row;
    }
}

template <class T>
__device__ __forceinline__ void forward(const T* bias, T* x, Size rows, Size width) {
    if (width % PACK<T> == 0 && aligned(bias) && aligned(x)) {
        add_to_rows<PACK<T>>(bias, x, rows, width / PACK<T>);
    } else {
        add_to_rows<1>(bias, x, rows, width);
    }
}

// Parts of the rows in the first stage of the backward pass: clamp(ceil(rows / 128), 1, 128).
__device__ __forceinline__ Size bias_chunks(Size rows) {
    const Size chunks = (rows + 127) / 128;
    return chunks < 1 ? 1 : chunks > 128 ? 128 : chunks;
}

// A warp has 32 packs of V columns side by side and every eighth row of a chunk; then the warps are added in order.
template <int V, class T>
__device__ __forceinline__ void sum_chunks(const T* dout, float* partial, Size rows, Size width, float* sums) {
    constexpr int COLUMNS = 32 * V;
    const unsigned lane = threadIdx.x % 32;
    const unsigned warp = threadIdx.x / 32;
    const Size tiles = (width + COLUMNS - 1) / COLUMNS;
    const Size chunks = bias_chunks(rows);
    for (Size index = blockIdx.y; index < chunks; index += gridDim.y) {
        const Chunk chunk(rows, chunks, index);
        for (Size tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
            const Size column = tile * COLUMNS + lane * V;
            float total[V];
#pragma unroll
            for (int k = 0; k < V; ++k) total[k] = 0.0f;
            if (column < width) {
#pragma unroll 4
                for (Size row = chunk.begin + warp; row < chunk.end; row += WARPS) {
                    float d[V];
                    load(dout + row * width + column, d);
#pragma unroll
                    for (int k = 0; k < V; ++k) total[k] += d[k];
                }
            }
            store(sums + warp * COLUMNS + lane * V, total);
            __syncthreads();
            const Size own = tile * COLUMNS + threadIdx.x;
            if (threadIdx.x < COLUMNS && own < width) {
                float sum = sums[threadIdx.x];
#pragma unroll
                for (int other = 1; other < WARPS; ++other) sum += sums[other * COLUMNS + threadIdx.x];
                partial[index * width + own] = sum;
            }
            __syncthreads();
        }
    }
}

template <class T>
__device__ __forceinline__ void backward_partial(const T* dout, float* partial, Size rows, Size width) {
    __shared__ __align__(16) float sums[WARPS * 32 * PACK<T>];
    if (width % PACK<T> == 0 && aligned(dout)) {
        sum_chunks<PACK<T>>(dout, partial, rows, width, sums);
    } else {
        sum_chunks<1>(dout, partial, rows, width, sums);
    }
}

template <class T>
__device__ __forceinline__ void backward_final(T* dbias, const float* partial, Size rows, Size width, int accumulate) {
    column_totals(partial, bias_chunks(rows), width, [=](Size column, float total) {
        const float value[1] = {total};
        update(dbias + column, value, accumulate);
    });
}

// Adds bias [width] to every row of x [rows, width], in place.
//
// Any one-dimensional grid; best is a block of 256 threads and ceil(rows · width / 4096) blocks (at least one), so that
// a thread has a few packs. No shared memory to be given.
extern "C" __global__ void __launch_bounds__(THREADS)
bias_forward_f32(const float* bias, float* x, Size rows, Size width) {
    forward(bias, x, rows, width);
}

extern "C" __global__ void __launch_bounds__(THREADS)
bias_forward_bf16(const bf16* bias, bf16* x, Size rows, Size width) {
    forward(bias, x, rows, width);
}

// First stage of dbias [width] = the sum of the rows of dout [rows, width]: writes all of the scratch `partial`, f32
// [chunks, width], with chunks = clamp(ceil(rows / 128), 1, 128).
//
// Block of 256 threads (exactly). Any two-dimensional grid; best is x = ceil(width / 128) for f32, ceil(width / 256)
// for bf16, and y = chunks. No shared memory to be given.
extern "C" __global__ void __launch_bounds__(THREADS)
bias_backward_partial_f32(const float* dout, float*, float* partial, Size rows, Size width, int) {
    backward_partial(dout, partial, rows, width);
}

extern "C" __global__ void __launch_bounds__(THREADS)
bias_backward_partial_bf16(const bf16* dout, bf16*, float* partial, Size rows, Size width, int) {
    backward_partial(dout, partial, rows, width);
}

// Second stage: dbias = (or +=, with `accumulate`) the sum of the rows of `partial`.
//
// Block of 512 threads (exactly). Any one-dimensional grid; best is ceil(width / 32) blocks. No shared memory to be
// given.
extern "C" __global__ void __launch_bounds__(512)
bias_backward_final_f32(const float*, float* dbias, const float* partial, Size rows, Size width, int accumulate) {
    backward_final(dbias, partial, rows, width, accumulate);
}

extern "C" __global__ void __launch_bounds__(512)
bias_backward_final_bf16(const bf16*, bf16* dbias, const float* partial, Size rows, Size width, int accumulate) {
    backward_final(dbias, partial, rows, width, accumulate);
}
