// One element at a time: sums, scaling, filling, and the Gaussian error linear unit in its tanh form.
//
// All entries: any one-dimensional grid; best is a block of 256 threads and a thread for each 16 bytes of the output,
// ceil(count / 1024) blocks for f32 and ceil(count / 2048) for bf16 (at least one). No shared memory. An output may be
// the same memory as an input.

#include "common.cuh"

constexpr int THREADS = 256;

template <class T>
struct Add {
    const T* left;
    const T* right;
    T* out;

    template <int V>
    __device__ __forceinline__ void run(Size at) const {
        float a[V], b[V];
        load(left + at, a);
        load(right + at, b);
#pragma unroll
        for (int k = 0; k < V; ++k) a[k] += b[k];
        store(out + at, a);
    }
};

template <class T>
struct Scale {
    T* target;
    float factor;

    template <int V>
    __device__ __forceinline__ void run(Size at) const {
        float a[V];
        load(target + at, a);
#pragma unroll
        for (int k = 0; k < V; ++k) a[k] *= factor;
        store(target + at, a);
    }
};

template <class T>
struct Fill {
    T* target;
    float value;

    template <int V>
    __device__ __forceinline__ void run(Size at) const {
        float a[V];
#pragma unroll
        for (int k = 0; k < V; ++k) a[k] = value;
        store(target + at, a);
    }
};

// gelu(x) = x · gate(x), where the gate is the logistic function of SLOPE · (x + CUBIC · x³). SLOPE is 2 · √(2/π).
constexpr float SLOPE = 1.5957691216057308f;
constexpr float CUBIC = 0.044715f;
constexpr float THREE_CUBIC = 0.134145f;

template <class T>
__device__ __forceinline__ float gate(float x) {
    return reciprocal<T>(1.0f + exponential<T>(-(SLOPE * (x + CUBIC * x * x * x))));
}

template <class T>
struct GeluForward {
    const T* x;
    T* out;

    template <int V>
    __device__ __forceinline__ void run(Size at) const {
        float a[V];
        load(x + at, a);
#pragma unroll
        for (int k = 0; k < V; ++k) a[k] *= gate<T>(a[k]);
        store(out + at, a);
    }
};

template <class T>
struct GeluBackward {
    const T* x;
    const T* dout;
    T* dx;

    template <int V>
    __device__ __forceinline__ void run(Size at) const {
        float a[V], d[V];
        load(x + at, a);
        load(dout + at, d);
#pragma unroll
        for (int k = 0; k < V; ++k) {
            const float g = gate<T>(a[k]);
            const float gate_slope = g * (1.0f - g) * SLOPE * (1.0f + THREE_CUBIC * a[k] * a[k]);
            d[k] *= g + a[k] * gate_slope;
        }
        store(dx + at, d);
    }
};

// out = left + right. All have `count` elements.
extern "C" __global__ void __launch_bounds__(THREADS)
add_f32(const float* left, const float* right, float* out, Size count) {
    sweep<PACK<float>>(count, shared_head(count, out, left, right), Add<float>{left, right, out});
}

extern "C" __global__ void __launch_bounds__(THREADS)
add_bf16(const bf16* left, const bf16* right, bf16* out, Size count) {
    sweep<PACK<bf16>>(count, shared_head(count, out, left, right), Add<bf16>{left, right, out});
}

// target += source. Both have `count` elements.
extern "C" __global__ void __launch_bounds__(THREADS) accumulate_f32(const float* source, float* target, Size count) {
    sweep<PACK<float>>(count, shared_head(count, target, source), Add<float>{target, source, target});
}

extern "C" __global__ void __launch_bounds__(THREADS) accumulate_bf16(const bf16* source, bf16* target, Size count) {
    sweep<PACK<bf16>>(count, shared_head(count, target, source), Add<bf16>{target, source, target});
}

// target *= factor. `count` elements.
extern "C" __global__ void __launch_bounds__(THREADS) scale_f32(float* target, Size count, float factor) {
    sweep<PACK<float>>(count, shared_head(count, target), Scale<float>{target, factor});
}

extern "C" __global__ void __launch_bounds__(THREADS) scale_bf16(bf16* target, Size count, float factor) {
    sweep<PACK<bf16>>(count, shared_head(count, target), Scale<bf16>{target, factor});
}

// Every one of `count` elements of the target = value.
extern "C" __global__ void __launch_bounds__(THREADS) fill_f32(float* target, Size count, float value) {
    sweep<PACK<float>>(count, shared_head(count, target), Fill<float>{target, value});
}

extern "C" __global__ void __launch_bounds__(THREADS) fill_bf16(bf16* target, Size count, float value) {
    sweep<PACK<bf16>>(count, shared_head(count, target), Fill<bf16>{target, value});
}

// out = gelu(x). Both have `count` elements.
extern "C" __global__ void __launch_bounds__(THREADS) gelu_forward_f32(const float* x, float* out, Size count) {
    sweep<PACK<float>>(count, shared_head(count, out, x), GeluForward<float>{x, out});
}

extern "C" __global__ void __launch_bounds__(THREADS) gelu_forward_bf16(const bf16* x, bf16* out, Size count) {
    sweep<PACK<bf16>>(count, shared_head(count, out, x), GeluForward<bf16>{x, out});
}

// dx = dout · gelu′(x), where x is the input of the forward pass. All have `count` elements.
extern "C" __global__ void __launch_bounds__(THREADS)
gelu_backward_f32(const float* x, const float* dout, float* dx, Size count) {
    sweep<PACK<float>>(count, shared_head(count, dx, x, dout), GeluBackward<float>{x, dout, dx});
}

extern "C" __global__ void __launch_bounds__(THREADS)
gelu_backward_bf16(const bf16* x, const bf16* dout, bf16* dx, Size count) {
    sweep<PACK<bf16>>(count, shared_head(count, dx, x, dout), GeluBackward<bf16>{x, dout, dx});
}
