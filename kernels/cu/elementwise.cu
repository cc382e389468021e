// One element at a time: sums, scaling, filling, and the Gaussian error linear unit in its tanh form.
//
// All entries: any one-dimensional grid; best is a block of 256 threads and a thread for each 16 bytes of the output,
// ceil(count / 1024) blocks for f32 and ceil(count / 2048) for bf16 (at least one). No shared memory. An output may be
// the same memory as an input.

#include "common.cuh"

constexpr int THREADS = 256;

template <class T>
__device__ __forceinline__ void add(const T* left, const T* right, T* out, Size count) {
    sweep<PACK<T>>(count, shared_head(count, out, left, right), [=](auto lanes, Size at) {
        constexpr int V = decltype(lanes)::value;
        float a[V], b[V];
        load(left + at, a);
        load(right + at, b);
#pragma unroll
        for (int k = 0; k < V; ++k) a[k] += b[k];
        store(out + at, a);
    });
}

template <class T>
__device__ __forceinline__ void scale(T* target, Size count, float factor) {
    sweep<PACK<T>>(count, shared_head(count, target), [=](auto lanes, Size at) {
        constexpr int V = decltype(lanes)::value;
        float a[V];
        load(target + at, a);
#pragma unroll
        for (int k = 0; k < V; ++k) a[k] *= factor;
        store(target + at, a);
    });
}

template <class T>
__device__ __forceinline__ void fill(T* target, Size count, float value) {
    sweep<PACK<T>>(count, shared_head(count, target), [=](auto lanes, Size at) {
        constexpr int V = decltype(lanes)::value;
        float a[V];
#pragma unroll
        for (int k = 0; k < V; ++k) a[k] = value;
        store(target + at, a);
    });
}

// gelu(x) = x · gate(x), where the gate is the logistic function of SLOPE · (x + CUBIC · x³). SLOPE is 2 · √(2/π).
constexpr float SLOPE = 1.5957691216057308f;
constexpr float CUBIC = 0.044715f;

template <class T>
__device__ __forceinline__ float gate(float x) {
    return reciprocal<T>(1.0f + exponential<T>(-(SLOPE * (x + CUBIC * x * x * x))));
}

template <class T>
__device__ __forceinline__ void gelu_forward(const T* x, T* out, Size count) {
    sweep<PACK<T>>(count, shared_head(count, out, x), [=](auto lanes, Size at) {
        constexpr int V = decltype(lanes)::value;
        float a[V];
        load(x + at, a);
#pragma unroll
        for (int k = 0; k < V; ++k) a[k] *= gate<T>(a[k]);
        store(out + at, a);
    });
}

template <class T>
__device__ __forceinline__ void gelu_backward(const T* x, const T* dout, T* dx, Size count) {
    sweep<PACK<T>>(count, shared_head(count, dx, x, dout), [=](auto lanes, Size at) {
        constexpr int V = decltype(lanes)::value;
        float a[V], d[V];
        load(x + at, a);
        load(dout + at, d);
#pragma unroll
        for (int k = 0; k < V; ++k) {
            const float g = gate<T>(a[k]);
            const float gate_slope = g * (1.0f - g) * SLOPE * (1.0f + 3.0f * CUBIC * a[k] * a[k]);
            d[k] *= g + a[k] * gate_slope;
        }
        store(dx + at, d);
    });
}

// out = left + right. All have `count` elements.
extern "C" __global__ void __launch_bounds__(THREADS)
add_f32(const float* left, const float* right, float* out, Size count) {
    add(left, right, out, count);
}

extern "C" __global__ void __launch_bounds__(THREADS)
add_bf16(const bf16* left, const bf16* right, bf16* out, Size count) {
    add(left, right, out, count);
}

// target += source. Both have `count` elements.
extern "C" __global__ void __launch_bounds__(THREADS) accumulate_f32(const float* source, float* target, Size count) {
    add(target, source, target, count);
}

extern "C" __global__ void __launch_bounds__(THREADS) accumulate_bf16(const bf16* source, bf16* target, Size count) {
    add(target, source, target, count);
}

// target *= factor. `count` elements.
extern "C" __global__ void __launch_bounds__(THREADS) scale_f32(float* target, Size count, float factor) {
    scale(target, count, factor);
}

extern "C" __global__ void __launch_bounds__(THREADS) scale_bf16(bf16* target, Size count, float factor) {
    scale(target, count, factor);
}

// Every one of `count` elements of the target = value.
extern "C" __global__ void __launch_bounds__(THREADS) fill_f32(float* target, Size count, float value) {
    fill(target, count, value);
}

extern "C" __global__ void __launch_bounds__(THREADS) fill_bf16(bf16* target, Size count, float value) {
    fill(target, count, value);
}

// out = gelu(x). Both have `count` elements.
extern "C" __global__ void __launch_bounds__(THREADS) gelu_forward_f32(const float* x, float* out, Size count) {
    gelu_forward(x, out, count);
}

extern "C" __global__ void __launch_bounds__(THREADS) gelu_forward_bf16(const bf16* x, bf16* out, Size count) {
    gelu_forward(x, out, count);
}

// dx = dout · gelu′(x), where x is the input of the forward pass. All have `count` elements.
extern "C" __global__ void __launch_bounds__(THREADS)
gelu_backward_f32(const float* x, const float* dout, float* dx, Size count) {
    gelu_backward(x, dout, dx, count);
}

extern "C" __global__ void __launch_bounds__(THREADS)
gelu_backward_bf16(const bf16* x, const bf16* dout, bf16* dx, Size count) {
    gelu_backward(x, dout, dx, count);
}
