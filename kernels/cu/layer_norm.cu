// Layer normalisation with scale and shift, and its gradients.
//
// A group of threads works on one row (see common.cuh); a row is read once and held in registers between the sums. The
// backward pass makes dx and, on the way, the sums over its rows for dgamma and dbeta; a second stage adds those up.
//
// Mean and variance are two sums one after the other: the variance is the average square of x − mean.

#include "common.cuh"

// ---- Forward ----------------------------------------------------------------------------------------------------------

// The sum over the row of `term` of each element, for the row at `x`, of which `held` are the held packs.
template <int V, int HELD, class T, class Term>
__device__ __forceinline__ float row_sum(const Group& group, Size packs, const T* x, const float (&held)[HELD][V],
                                         One* parts, Term term) {
    float sum = 0.0f;
    held_packs<HELD>(group, packs, [&](Size, int k) {
#pragma unroll
        for (int j = 0; j < V; ++j) sum += term(held[k][j]);
    });
    other_packs<HELD>(group, packs, [&](Size pack) {
        float values[V];
        load(x + pack * V, values);
#pragma unroll
        for (int j = 0; j < V; ++j) sum += term(values[j]);
    });
    return group_sum(group, sum, parts);
}

template <int V, class T>
__device__ __forceinline__ void normalise_pack(float (&values)[V], const T* gamma, const T* beta, T* out, float mean,
                                               float rstd) {
    float g[V], b[V];
    load(gamma, g);
    load(beta, b);
#pragma unroll
    for (int j = 0; j < V; ++j) values[j] = (values[j] - mean) * rstd * g[j] + b[j];
    store(out, values);
}

template <int V, class T>
__device__ __forceinline__ void forward_rows(const T* x, const T* gamma, const T* beta, T* out, float* means,
                                             float* rstds, Size rows, Size width, float eps,
                                             One (*parts)[MOST_GROUP_WARPS]) {
    constexpr int HELD = HELD_ELEMENTS / V;
    const Group group(width);
    const Size packs = width / V;
    const float count = static_cast<float>(width);
    for (Size row = static_cast<Size>(blockIdx.x) * group.count + group.index; row < rows;
         row += static_cast<Size>(gridDim.x) * group.count) {
        const T* source = x + row * width;
        T* target = out + row * width;
        float held[HELD][V];
        held_packs<HELD>(group, packs, [&](Size pack, int k) { load(source + pack * V, held[k]); });
        const float mean =
            row_sum<V>(group, packs, source, held, parts[0], [](float value) { return value; }) / count;
        const float variance = row_sum<V>(group, packs, source, held, parts[1], [=](float value) {
            return (value - mean) * (value - mean);
        }) / count;
        const float rstd = 1.0f / sqrtf(variance + eps);
        held_packs<HELD>(group, packs, [&](Size pack, int k) {
            normalise_pack(held[k], gamma + pack * V, beta + pack * V, target + pack * V, mean, rstd);
        });
        other_packs<HELD>(group, packs, [&](Size pack) {
            float values[V];
            load(source + pack * V, values);
            normalise_pack(values, gamma + pack * V, beta + pack * V, target + pack * V, mean, rstd);
        });
        if (group.thread == 0) {
            means[row] = mean;
            rstds[row] = rstd;
        }
    }
}

template <class T>
__device__ __forceinline__ void forward(const T* x, const T* gamma, const T* beta, T* out, float* means, float* rstds,
                                        Size rows, Size width, float eps) {
    __shared__ One parts[2][MOST_GROUP_WARPS];
    if (width % PACK<T> == 0 && aligned(x) && aligned(gamma) && aligned(beta) && aligned(out)) {
        forward_rows<PACK<T>>(x, gamma, beta, out, means, rstds, rows, width, eps, parts);
    } else {
        forward_rows<1>(x, gamma, beta, out, means, rstds, rows, width, eps, parts);
    }
}

// ---- Backward ---------------------------------------------------------------------------------------------------------

// Parts of the rows in the first stage; see the entries.
__device__ __forceinline__ Size layer_norm_chunks(Size rows, Size width) {
    const unsigned group = group_threads(width);
    const unsigned groups = groups_of_block(group);
    const unsigned blocks = 576 / (group * groups);
    const Size most = 128 * static_cast<Size>(blocks < 1 ? 1 : blocks);
    const Size chunks = (rows + 4 * groups - 1) / (4 * groups);
    return chunks < 1 ? 1 : chunks > most ? most : chunks;
}

// Widest row that several groups of a block work on: a group of 96 threads.
constexpr int MOST_SHARED_WIDTH = 1536;

// Turns a pack of dout into dout · gamma, a pack of x into its normalised values, and adds to the sums of the row
// (`sums`) and of the columns.
template <int V>
__device__ __forceinline__ void first_half(float (&x)[V], float (&dout)[V], const float (&gamma)[V], float mean,
                                           float rstd, Two& sums, float (&dgamma)[V], float (&dbeta)[V]) {
#pragma unroll
    for (int j = 0; j < V; ++j) {
        x[j] = (x[j] - mean) * rstd;
        dgamma[j] += dout[j] * x[j];
        dbeta[j] += dout[j];
        dout[j] *= gamma[j];
        sums.a += dout[j];
        sums.b += dout[j] * x[j];
    }
}

// From normalised values and dout · gamma to dx.
template <int V, class T>
__device__ __forceinline__ void second_half(const float (&normalised)[V], float (&scaled)[V], float rstd,
                                            Two averages, T* dx, int accumulate) {
#pragma unroll
    for (int j = 0; j < V; ++j) scaled[j] = rstd * (scaled[j] - averages.a - normalised[j] * averages.b);
    update(dx, scaled, accumulate);
}

// values += the pack at `source`.
template <int V>
__device__ __forceinline__ void add_pack(float (&values)[V], const float* source) {
    float other[V];
    load(source, other);
#pragma unroll
    for (int j = 0; j < V; ++j) values[j] += other[j];
}

template <class T>
struct Backward {
    const T* x;
    const T* gamma;
    const float* means;
    const float* rstds;
    const T* dout;
    T* dx;
    float* partial;
    Size rows, width;
    int accumulate;
};

// One chunk of rows, for each group every `group.count`-th row. Leaves the sums over the rows of the block in its row of
// `partial`: [dgamma, dbeta].
template <int V, class T>
__device__ __forceinline__ void backward_chunk(const Backward<T>& args, const Group& group, const Chunk& chunk,
                                               float* partial, float* totals, Two (*parts)[MOST_GROUP_WARPS]) {
    constexpr int HELD = HELD_ELEMENTS / V;
    const Size width = args.width;
    const Size packs = width / V;
    const float per_element = 1.0f / static_cast<float>(width);
    float dgamma[HELD][V], dbeta[HELD][V];
#pragma unroll
    for (int k = 0; k < HELD; ++k) {
#pragma unroll
        for (int j = 0; j < V; ++j) dgamma[k][j] = dbeta[k][j] = 0.0f;
    }
    // The column sums of packs that are not held live in `partial`. Each pack has one thread.
    other_packs<HELD>(group, packs, [&](Size pack) {
        store(partial + pack * V, dgamma[0]);
        store(partial + width + pack * V, dbeta[0]);
    });

    int turn = 0;
    for (Size row = chunk.begin + group.index; row < chunk.end; row += group.count, turn ^= 1) {
        const T* x = args.x + row * width;
        const T* dout = args.dout + row * width;
        T* dx = args.dx + row * width;
        const float mean = args.means[row], rstd = args.rstds[row];
        float normalised[HELD][V], scaled[HELD][V];
        Two sums = {0.0f, 0.0f};
        held_packs<HELD>(group, packs, [&](Size pack, int k) {
            load(x + pack * V, normalised[k]);
            load(dout + pack * V, scaled[k]);
        });
        held_packs<HELD>(group, packs, [&](Size pack, int k) {
            float gamma[V];
            load(args.gamma + pack * V, gamma);
            first_half(normalised[k], scaled[k], gamma, mean, rstd, sums, dgamma[k], dbeta[k]);
        });
        other_packs<HELD>(group, packs, [&](Size pack) {
            float xs[V], ds[V], gamma[V], gamma_sums[V], beta_sums[V];
            load(x + pack * V, xs);
            load(dout + pack * V, ds);
            load(args.gamma + pack * V, gamma);
            load(partial + pack * V, gamma_sums);
            load(partial + width + pack * V, beta_sums);
            first_half(xs, ds, gamma, mean, rstd, sums, gamma_sums, beta_sums);
            store(partial + pack * V, gamma_sums);
            store(partial + width + pack * V, beta_sums);
        });
        Two averages = group_sum(group, sums, parts[turn]);
        averages.a *= per_element;
        averages.b *= per_element;
        held_packs<HELD>(group, packs, [&](Size pack, int k) {
            second_half(normalised[k], scaled[k], rstd, averages, dx + pack * V, args.accumulate);
        });
        other_packs<HELD>(group, packs, [&](Size pack) {
            float xs[V], ds[V], gamma[V];
            load(x + pack * V, xs);
            load(dout + pack * V, ds);
            load(args.gamma + pack * V, gamma);
#pragma unroll
            for (int j = 0; j < V; ++j) {
                xs[j] = (xs[j] - mean) * rstd;
                ds[j] *= gamma[j];
            }
            second_half(xs, ds, rstd, averages, dx + pack * V, args.accumulate);
        });
    }

    // The groups add their sums one after the other; the last one writes them out.
    for (unsigned index = 0; index < group.count; ++index) {
        if (group.index == index) {
            held_packs<HELD>(group, packs, [&](Size pack, int k) {
                float* gamma_totals = totals + pack * V;
                float* beta_totals = totals + MOST_SHARED_WIDTH + pack * V;
                if (index > 0) {
                    add_pack(dgamma[k], gamma_totals);
                    add_pack(dbeta[k], beta_totals);
                }
                if (index + 1 < group.count) {
                    store(gamma_totals, dgamma[k]);
                    store(beta_totals, dbeta[k]);
                } else {
                    store(partial + pack * V, dgamma[k]);
                    store(partial + width + pack * V, dbeta[k]);
                }
            });
        }
        __syncthreads();
    }
}

template <int V, class T>
__device__ __forceinline__ void backward_chunks(const Backward<T>& args, float* totals,
                                                Two (*parts)[MOST_GROUP_WARPS]) {
    const Group group(args.width);
    const Size chunks = layer_norm_chunks(args.rows, args.width);
    for (Size index = blockIdx.x; index < chunks; index += gridDim.x) {
        const Chunk chunk(args.rows, chunks, index);
        backward_chunk<V>(args, group, chunk, args.partial + index * 2 * args.width, totals, parts);
    }
}

template <class T>
__device__ __forceinline__ void backward_partial(const Backward<T>& args) {
    __shared__ Two parts[2][MOST_GROUP_WARPS];
    __shared__ __align__(16) float totals[2 * MOST_SHARED_WIDTH];
    const bool packed = args.width % PACK<T> == 0 && aligned(args.x) && aligned(args.gamma) && aligned(args.dout) &&
                        aligned(args.dx) && aligned(args.partial);
    if (packed) {
        backward_chunks<PACK<T>>(args, totals, parts);
    } else {
        backward_chunks<1>(args, totals, parts);
    }
}

template <class T>
__device__ __forceinline__ void backward_final(T* dgamma, T* dbeta, const float* partial, Size rows, Size width,
                                               int accumulate) {
    column_totals(partial, layer_norm_chunks(rows, width), 2 * width, [=](Size column, float total) {
        const float value[1] = {total};
        update(column < width ? dgamma + column : dbeta + (column - width), value, accumulate);
    });
}

// ---- Entries ----------------------------------------------------------------------------------------------------------

// out [rows, width] = (x − mean) · rstd · gamma + beta for each row of x [rows, width], with gamma and beta [width]. The
// mean of each row and rstd = 1/√(variance + eps) are saved in `mean` and `rstd` [rows], f32.
//
// Block as common.cuh says (exactly). Any one-dimensional grid; best is ceil(rows / groups) blocks. No shared memory to
// be given.
extern "C" __global__ void __launch_bounds__(MOST_GROUP_THREADS)
layer_norm_forward_f32(const float* x, const float* gamma, const float* beta, float* out, float* mean, float* rstd,
                       Size rows, Size width, float eps) {
    forward(x, gamma, beta, out, mean, rstd, rows, width, eps);
}

extern "C" __global__ void __launch_bounds__(MOST_GROUP_THREADS)
layer_norm_forward_bf16(const bf16* x, const bf16* gamma, const bf16* beta, bf16* out, float* mean, float* rstd,
                        Size rows, Size width, float eps) {
    forward(x, gamma, beta, out, mean, rstd, rows, width, eps);
}

// First stage of the backward pass: dx [rows, width] (stored, or added with `dx_accumulate`) from x and dout
// [rows, width], gamma [width] and the saved mean and rstd [rows], f32. Writes all of the scratch `partial`, f32
// [chunks, 2, width], where
//   chunks = clamp(ceil(rows / (4 · groups)), 1, 128 · max(1, floor(576 / block))).
//
// Block as common.cuh says (exactly). Any one-dimensional grid; best is `chunks` blocks. No shared memory to be given.
extern "C" __global__ void __launch_bounds__(MOST_GROUP_THREADS)
layer_norm_backward_partial_f32(const float* x, const float* gamma, const float* mean, const float* rstd,
                                const float* dout, float* dx, float*, float*, float* partial, Size rows, Size width,
                                int dx_accumulate, int) {
    backward_partial(Backward<float>{x, gamma, mean, rstd, dout, dx, partial, rows, width, dx_accumulate});
}

extern "C" __global__ void __launch_bounds__(MOST_GROUP_THREADS)
layer_norm_backward_partial_bf16(const bf16* x, const bf16* gamma, const float* mean, const float* rstd,
                                 const bf16* dout, bf16* dx, bf16*, bf16*, float* partial, Size rows, Size width,
                                 int dx_accumulate, int) {
    backward_partial(Backward<bf16>{x, gamma, mean, rstd, dout, dx, partial, rows, width, dx_accumulate});
}

// Second stage: dgamma and dbeta [width] = (or +=, with `parameter_accumulate`) the sums over the chunks.
//
// Block of 512 threads (exactly). Any one-dimensional grid; best is ceil(2 · width / 32) blocks. No shared memory to be
// given.
extern "C" __global__ void __launch_bounds__(512)
layer_norm_backward_final_f32(const float*, const float*, const float*, const float*, const float*, float*,
                              float* dgamma, float* dbeta, const float* partial, Size rows, Size width, int,
                              int parameter_accumulate) {
    backward_final(dgamma, dbeta, partial, rows, width, parameter_accumulate);
}

extern "C" __global__ void __launch_bounds__(512)
layer_norm_backward_final_bf16(const bf16*, const bf16*, const float*, const float*, const bf16*, bf16*, bf16* dgamma,
                               bf16* dbeta, const float* partial, Size rows, Size width, int,
                               int parameter_accumulate) {
    backward_final(dgamma, dbeta, partial, rows, width, parameter_accumulate);
}
