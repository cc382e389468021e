// Looking up tokens and positions in tables, and the gradient of the tables.
//
// Token t of a batch stands at position t modulo `positions`. In the backward pass each row of a table is summed by one
// owner, first token first, so no atomics and no sorting are needed. The owner of a row of the token table is the block
// of the first token that has this id; rows without a token have no owner, so a stage before clears the table.

#include "common.cuh"

constexpr int THREADS = 256;

// A warp for each token.
template <int V, class T>
__device__ __forceinline__ void look_up(const unsigned* ids, const T* token_table, const T* position_table, T* out,
                                        Size tokens, Size vocabulary, Size positions, Size width) {
    const Size warps = static_cast<Size>(gridDim.x) * (blockDim.x / 32);
    Size token = static_cast<Size>(blockIdx.x) * (blockDim.x / 32) + threadIdx.x / 32;
    for (; token < tokens; token += warps) {
        const Size id = ids[token];
        if (id >= vocabulary) __trap();
        const T* left = token_table + id * width;
        const T* right = position_table + token % positions * width;
#pragma unroll 2
        for (Size column = threadIdx.x % 32 * V; column < width; column += 32 * V) {
            float a[V], b[V];
            load(left + column, a);
            load(right + column, b);
#pragma unroll
            for (int k = 0; k < V; ++k) a[k] += b[k];
            store(out + token * width + column, a);
        }
    }
}

template <class T>
__device__ __forceinline__ void forward(const unsigned* ids, const T* token_table, const T* position_table, T* out,
                                        Size tokens, Size vocabulary, Size positions, Size width) {
    if (width % PACK<T> == 0 && aligned(token_table) && aligned(position_table) && aligned(out)) {
        look_up<PACK<T>>(ids, token_table, position_table, out, tokens, vocabulary, positions, width);
    } else {
        look_up<1>(ids, token_table, position_table, out, tokens, vocabulary, positions, width);
    }
}

template <class T>
struct Clear {
    T* table;

    template <int V>
    __device__ __forceinline__ void run(Size at) const {
        float zeros[V];
#pragma unroll
        for (int k = 0; k < V; ++k) zeros[k] = 0.0f;
        store(table + at, zeros);
    }
};

template <class T>
__device__ __forceinline__ void clear(T* table, Size count, int accumulate) {
    if (!accumulate) sweep<PACK<T>>(count, shared_head(count, table), Clear<T>{table});
}

// Ids that a block looks at together: four for each thread.
constexpr int SCAN = 4 * THREADS;
// The list of tokens has room for one more scan when it is as long as this.
constexpr int FLUSH = SCAN;

struct Owner {
    Size tokens[FLUSH + SCAN];
    unsigned warp_counts[THREADS / 32];
};

// Adds the rows of the listed tokens to `sum`, in their order. Several loads are under way at a time.
template <int V, class T>
__device__ __forceinline__ void add_listed(const Size* listed, unsigned count, const T* dout, Size width,
                                           float (&sum)[V]) {
#pragma unroll 8
    for (unsigned index = 0; index < count; ++index) {
        float row[V];
        load(dout + listed[index] * width, row);
#pragma unroll
        for (int k = 0; k < V; ++k) sum[k] += row[k];
    }
}

// Whether a token of [start, end), at most SCAN of them, has this id. All threads of the block get the same answer.
__device__ __forceinline__ bool occurs(const unsigned* ids, Size start, Size end, unsigned id) {
    bool found = false;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
        const Size token = start + k * THREADS + threadIdx.x;
        if (token < end && ids[token] == id) found = true;
    }
    return __syncthreads_or(found) != 0;
}

// Whether some token before `token` has the same id. All threads of the block get the same answer.
__device__ __forceinline__ bool seen_before(const unsigned* ids, Size token, unsigned id) {
    for (Size start = 0; start < token; start += SCAN) {
        if (occurs(ids, start, token, id)) return true;
    }
    return false;
}

// Appends the tokens of [start, start + THREADS) that have this id to the list, in order. Returns the new length.
__device__ __forceinline__ unsigned append(const unsigned* ids, Size tokens, Size start, unsigned id, unsigned length,
                                           Owner& owner) {
    const Size token = start + threadIdx.x;
    const bool match = token < tokens && ids[token] == id;
    const unsigned matches = __ballot_sync(EVERY_LANE, match);
    const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (lane == 0) owner.warp_counts[warp] = __popc(matches);
    __syncthreads();
    unsigned before = 0, total = 0;
#pragma unroll
    for (unsigned other = 0; other < THREADS / 32; ++other) {
        const unsigned count = owner.warp_counts[other];
        before += other < warp ? count : 0;
        total += count;
    }
    if (match) owner.tokens[length + before + __popc(matches & ((1u << lane) - 1))] = token;
    __syncthreads();
    return length + total;
}

// Sums the rows of all tokens with the id of `token`, its first, for the packs of this block.
template <int V, class T>
__device__ __forceinline__ void sum_owned(const unsigned* ids, const T* dout, T* table_row, Size token, Size tokens,
                                          Size width, int accumulate, Owner& owner) {
    const unsigned id = ids[token];
    const Size tile_width = static_cast<Size>(THREADS) * V;
    for (Size tile = blockIdx.y * tile_width; tile < width; tile += gridDim.y * tile_width) {
        const Size column = tile + static_cast<Size>(threadIdx.x) * V;
        const bool inside = column < width;
        float sum[V];
#pragma unroll
        for (int k = 0; k < V; ++k) sum[k] = 0.0f;
        if (inside && accumulate) load(table_row + column, sum);
        unsigned length = 0;
        for (Size start = token; start < tokens; start += SCAN) {
            if (occurs(ids, start, tokens, id)) {
                for (int k = 0; k < 4; ++k) length = append(ids, tokens, start + k * THREADS, id, length, owner);
            }
            if (length > FLUSH || start + SCAN >= tokens) {
                if (inside) add_listed(owner.tokens, length, dout + column, width, sum);
                length = 0;
                __syncthreads();
            }
        }
        if (inside) store(table_row + column, sum);
    }
}

template <int V, class T>
__device__ __forceinline__ void token_rows(const unsigned* ids, const T* dout, T* table, Size tokens, Size vocabulary,
                                           Size width, int accumulate, Owner& owner) {
    for (Size token = blockIdx.x; token < tokens; token += gridDim.x) {
        const Size id = ids[token];
        if (id >= vocabulary) __trap();
        if (!seen_before(ids, token, static_cast<unsigned>(id))) {
            sum_owned<V>(ids, dout, table + id * width, token, tokens, width, accumulate, owner);
        }
    }
}

template <class T>
__device__ __forceinline__ void backward_tokens(const unsigned* ids, const T* dout, T* table, Size tokens,
                                                Size vocabulary, Size width, int accumulate) {
    __shared__ Owner owner;
    if (width % PACK<T> == 0 && aligned(dout) && aligned(table)) {
        token_rows<PACK<T>>(ids, dout, table, tokens, vocabulary, width, accumulate, owner);
    } else {
        token_rows<1>(ids, dout, table, tokens, vocabulary, width, accumulate, owner);
    }
}

// A thread for each pack of the position table.
template <int V, class T>
__device__ __forceinline__ void position_rows(const T* dout, T* table, Size tokens, Size positions, Size width,
                                              int accumulate) {
    const Size per_row = width / V;
    const Size packs = positions * per_row;
    const Size stride = static_cast<Size>(gridDim.x) * blockDim.x;
    for (Size pack = static_cast<Size>(blockIdx.x) * blockDim.x + threadIdx.x; pack < packs; pack += stride) {
        float sum[V];
#pragma unroll
        for (int k = 0; k < V; ++k) sum[k] = 0.0f;
        if (accumulate) load(table + pack * V, sum);
        // The next sequence has the same position `packs` packs further on.
#pragma unroll 4
        for (Size token = pack / per_row, at = pack * V; token < tokens; token += positions, at += packs * V) {
            float row[V];
            load(dout + at, row);
#pragma unroll
            for (int k = 0; k < V; ++k) sum[k] += row[k];
        }
        store(table + pack * V, sum);
    }
}

template <class T>
__device__ __forceinline__ void backward_positions(const T* dout, T* table, Size tokens, Size positions, Size width,
                                                   int accumulate) {
    if (width % PACK<T> == 0 && aligned(dout) && aligned(table)) {
        position_rows<PACK<T>>(dout, table, tokens, positions, width, accumulate);
    } else {
        position_rows<1>(dout, table, tokens, positions, width, accumulate);
    }
}

// Row t of out [tokens, width] = row ids[t] of token_table [vocabulary, width] + row t mod positions of position_table
// [positions, width]; ids is [tokens]. An id that is not under the vocabulary is a trap.
//
// Block of any whole warps up to 256 threads; any one-dimensional grid; best is 256 threads and ceil(tokens / 8) blocks
// (at least one). No shared memory.
extern "C" __global__ void __launch_bounds__(THREADS)
embedding_forward_f32(const unsigned* ids, const float* token_table, const float* position_table, float* out,
                      Size tokens, Size vocabulary, Size positions, Size width) {
    forward(ids, token_table, position_table, out, tokens, vocabulary, positions, width);
}

extern "C" __global__ void __launch_bounds__(THREADS)
embedding_forward_bf16(const unsigned* ids, const bf16* token_table, const bf16* position_table, bf16* out,
                       Size tokens, Size vocabulary, Size positions, Size width) {
    forward(ids, token_table, position_table, out, tokens, vocabulary, positions, width);
}

// First stage of the backward pass: clears dtoken_table [vocabulary, width]. Does nothing with `accumulate`, and may
// then be left out.
//
// Block of 256 threads; any one-dimensional grid; best is ceil(vocabulary · width / 1024) blocks for f32 and half as
// many for bf16 (at least one). No shared memory.
extern "C" __global__ void __launch_bounds__(THREADS)
embedding_backward_clear_f32(const unsigned*, const float*, float* dtoken_table, float*, Size, Size vocabulary, Size,
                             Size width, int accumulate) {
    clear(dtoken_table, vocabulary * width, accumulate);
}

extern "C" __global__ void __launch_bounds__(THREADS)
embedding_backward_clear_bf16(const unsigned*, const bf16*, bf16* dtoken_table, bf16*, Size, Size vocabulary, Size,
                              Size width, int accumulate) {
    clear(dtoken_table, vocabulary * width, accumulate);
}

// Second stage: row v of dtoken_table [vocabulary, width] = (or +=) the rows t of dout [tokens, width] with ids[t] = v,
// added one by one, first token first. Rows without a token stay as they are. Each block reads up to all ids for each of
// its tokens, so the time grows with the square of `tokens`. An id that is not under the vocabulary is a trap.
//
// Block of 256 threads (exactly). Any two-dimensional grid; best is x = tokens (at least one), and
// y = ceil(width / 1024) for f32 or ceil(width / 2048) for bf16. No shared memory to be given.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
embedding_backward_tokens_f32(const unsigned* ids, const float* dout, float* dtoken_table, float*, Size tokens,
                              Size vocabulary, Size, Size width, int accumulate) {
    backward_tokens(ids, dout, dtoken_table, tokens, vocabulary, width, accumulate);
}

extern "C" __global__ void __launch_bounds__(THREADS)
embedding_backward_tokens_bf16(const unsigned* ids, const bf16* dout, bf16* dtoken_table, bf16*, Size tokens,
                               Size vocabulary, Size, Size width, int accumulate) {
    backward_tokens(ids, dout, dtoken_table, tokens, vocabulary, width, accumulate);
}

// Third stage: row p of dposition_table [positions, width] = (or +=) the rows p, p + positions, p + 2 · positions, … of
// dout [tokens, width], added one by one in this order. It does not depend on the stages before.
//
// Block of up to 256 threads; any one-dimensional grid; best is 256 threads and ceil(positions · width / 1024) blocks
// for f32 and half as many for bf16 (at least one). No shared memory.
extern "C" __global__ void __launch_bounds__(THREADS)
embedding_backward_positions_f32(const unsigned*, const float* dout, float*, float* dposition_table, Size tokens, Size,
                                 Size positions, Size width, int accumulate) {
    backward_positions(dout, dposition_table, tokens, positions, width, accumulate);
}

extern "C" __global__ void __launch_bounds__(THREADS)
embedding_backward_positions_bf16(const unsigned*, const bf16* dout, bf16*, bf16* dposition_table, Size tokens, Size,
                                  Size positions, Size width, int accumulate) {
    backward_positions(dout, dposition_table, tokens, positions, width, accumulate);
}
