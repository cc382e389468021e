// Shape of an attention and the order of its blocks, the same for every kernel.
#pragma once

namespace attention {

using bf16 = __nv_bfloat16;

constexpr float LOG2_E = 1.4426950408889634f;
constexpr float MINUS_INFINITY = __builtin_bit_cast(float, 0xff800000u);

// Bytes of keys and values (or queries and gradients) that blocks running at the same time should share: they stay in
// the L2 cache.
constexpr unsigned long long SHARED_BYTES = 32ull << 20;

// Shape of an attention, with what its kernels derive from it.
struct Shape {
    unsigned batch;
    int sequence;
    unsigned heads;
    int head_width;
    float scale;

    __device__ __forceinline__ Shape(unsigned long long batch, unsigned long long sequence, unsigned long long heads,
                                     unsigned long long head_width, float scale)
        : batch(static_cast<unsigned>(batch)),
          sequence(static_cast<int>(sequence)),
          heads(static_cast<unsigned>(heads)),
          head_width(static_cast<int>(head_width)),
          scale(scale) {}

    // Elements between rows of an output.
    __device__ __forceinline__ unsigned width() const { return heads * head_width; }

    // Elements between rows of packed queries, keys and values.
    __device__ __forceinline__ unsigned packed_width() const { return 3 * width(); }
};

// Elements from row 0 to a row: a product of 32 bits each, which is one instruction.
__device__ __forceinline__ unsigned long long row_offset(int row, unsigned stride) {
    return static_cast<unsigned long long>(static_cast<unsigned>(row)) * stride;
}

// The head that a thread block works on, and which of the head's blocks of rows.
struct Place {
    unsigned sequence_index;
    unsigned head;
    // 0 is the first of the head's blocks to start.
    int rank;

    // Cuts the grid into groups of heads whose shared bytes fit the cache. In a group the blocks of all heads with the
    // same rank come together, so the ranks with most work must be the lowest: the small ones fill the gaps at the end.
    __device__ __forceinline__ Place(const Shape& shape, int rows, int element_bytes) {
        const unsigned blocks = (shape.sequence + rows - 1) / rows;
        const unsigned all = shape.batch * shape.heads;
        const unsigned long long head_bytes = 2ull * shape.sequence * shape.head_width * element_bytes;
        const unsigned long long fitting = SHARED_BYTES / head_bytes;
        const unsigned group = fitting < 1 ? 1 : fitting < all ? static_cast<unsigned>(fitting) : all;
        const unsigned first = blockIdx.x / (group * blocks) * group;
        const unsigned heads = min(group, all - first);
        const unsigned index = blockIdx.x - first * blocks;
        const unsigned which = first + index % heads;
        rank = static_cast<int>(index / heads);
        sequence_index = which / shape.heads;
        head = which % shape.heads;
    }

    __device__ __forceinline__ unsigned long long first_token(const Shape& shape) const {
        return static_cast<unsigned long long>(sequence_index) * shape.sequence;
    }

    // Offset of the head's row 0 in an output.
    __device__ __forceinline__ unsigned long long plain(const Shape& shape) const {
        return first_token(shape) * shape.width() + head * shape.head_width;
    }

    // Offset of the head's row 0 in packed rows: of its query (part 0), key (part 1) or value (part 2).
    __device__ __forceinline__ unsigned long long packed(const Shape& shape, int part) const {
        return first_token(shape) * shape.packed_width() + part * shape.width() + head * shape.head_width;
    }

    // Offset of the head's row 0 in a tensor [batch, heads, sequence].
    __device__ __forceinline__ unsigned long long saved(const Shape& shape) const {
        return (static_cast<unsigned long long>(sequence_index) * shape.heads + head) * shape.sequence;
    }
};

}  // namespace attention
