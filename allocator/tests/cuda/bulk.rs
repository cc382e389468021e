//! Loads in bulk: a copy engine of the multiprocessor brings tiles of global memory into shared memory (sm_90 and later).
//!
//! They take another path than loads of threads do, the asynchronous proxy, so they are looked at by themselves.

use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaFunction};
use cudarc::nvrtc::{CompileOptions, compile_ptx_with_opts};

/// Counts wrong words as the other checks do. One barrier a block: its first thread asks for a tile and says how many
/// bytes to expect, all threads wait for the phase to end, look, and meet before the tile is overwritten. What is left
/// over at the end, less than the 16 bytes that a bulk load takes at least, is read by plain loads.
const SOURCE: &str = r#"
constexpr unsigned TILE = 4096;
extern "C" __global__ void check_bulk(const unsigned *words, size_t len, unsigned value, unsigned *wrong) {
    __shared__ alignas(128) unsigned tile[TILE];
    __shared__ alignas(8) unsigned long long barrier;
    const unsigned to = static_cast<unsigned>(__cvta_generic_to_shared(tile));
    const unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(&barrier));
    const size_t whole = len / 4 * 4;
    if (threadIdx.x == 0) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(at) : "memory");
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    }
    __syncthreads();
    unsigned phase = 0;
    for (size_t first = size_t(blockIdx.x) * TILE; first < whole; first += size_t(gridDim.x) * TILE) {
        const unsigned here = whole - first < TILE ? unsigned(whole - first) : TILE;
        if (threadIdx.x == 0) {
            asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at), "r"(here * 4) : "memory");
            asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                         ::"r"(to), "l"(__cvta_generic_to_global(words + first)), "r"(here * 4), "r"(at) : "memory");
        }
        unsigned over = 0;
        while (!over)
            asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                         : "=r"(over) : "r"(at), "r"(phase) : "memory");
        phase ^= 1;
        for (unsigned i = threadIdx.x; i < here; i += blockDim.x)
            if (tile[i] != value) atomicAdd(wrong, 1u);
        __syncthreads();
    }
    if (blockIdx.x == 0)
        for (size_t i = whole + threadIdx.x; i < len; i += blockDim.x)
            if (words[i] != value) atomicAdd(wrong, 1u);
}
"#;

/// The check by bulk loads; where the GPU has none, a line says so.
pub(crate) fn check(context: &Arc<CudaContext>) -> Option<CudaFunction> {
    if context.compute_capability().unwrap() < (9, 0) {
        println!("this GPU has no bulk loads: nothing is checked by them");
        return None;
    }
    let options = CompileOptions { arch: Some("compute_90"), ..CompileOptions::default() };
    let module = context.load_module(compile_ptx_with_opts(SOURCE, options).unwrap()).unwrap();
    Some(module.load_function("check_bulk").unwrap())
}
