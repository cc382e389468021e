// One step of AdamW over any range of a flat parameter.
//
// Each element is updated on its own with exactly rounded operations that are never fused, so the result has the same
// bits however the parameter is cut into ranges, and the same bits as this arithmetic has on a host.

#include "common.cuh"

struct AdamW {
    const float* gradient;
    float* parameter;
    float* first_moment;
    float* second_moment;
    float keep, step_size, root_factor, eps, old1, new1, old2, new2;

    template <int V>
    __device__ __forceinline__ void run(Size at) const {
        float g[V], p[V], m[V], v[V];
        load(gradient + at, g);
        load(parameter + at, p);
        load(first_moment + at, m);
        load(second_moment + at, v);
#pragma unroll
        for (int k = 0; k < V; ++k) {
            m[k] = __fadd_rn(__fmul_rn(old1, m[k]), __fmul_rn(new1, g[k]));
            v[k] = __fadd_rn(__fmul_rn(old2, v[k]), __fmul_rn(__fmul_rn(new2, g[k]), g[k]));
            const float root = __fadd_rn(__fmul_rn(__fsqrt_rn(v[k]), root_factor), eps);
            p[k] = __fsub_rn(__fmul_rn(p[k], keep), __fdiv_rn(__fmul_rn(step_size, m[k]), root));
        }
        store(parameter + at, p);
        store(first_moment + at, m);
        store(second_moment + at, v);
    }
};

// For each of `count` elements, in place:
//   first     = old1 · first + new1 · gradient
//   second    = old2 · second + (new2 · gradient) · gradient
//   parameter = parameter · keep − (step_size · first) / (√second · root_factor + eps)
//
// Any one-dimensional grid; best is a block of 256 threads and ceil(count / 1024) blocks (at least one). No shared
// memory.
extern "C" __global__ void __launch_bounds__(256)
adamw_f32(const float* gradient, float* parameter, float* first_moment, float* second_moment, Size count, float keep,
          float step_size, float root_factor, float eps, float old1, float new1, float old2, float new2) {
    const Size head = shared_head(count, parameter, gradient, first_moment, second_moment);
    const AdamW step = {gradient, parameter, first_moment, second_moment, keep, step_size,
                        root_factor, eps, old1, new1, old2, new2};
    sweep<PACK<float>>(count, head, step);
}
