//! Every launcher on a GPU, for both elements, against the host function of the same name in f64.
//!
//! Each test prints its largest errors (`--nocapture` shows them).

mod gate;
mod moves;
#[path = "../operations/mod.rs"]
mod operations;
mod ranks;
mod refusals;

use half::bf16;
use highwater::Allocator;
use highwater::device::cuda::{CudaConfig, CudaDevice};
use highwater_kernels::host::AttentionShape;

use operations::{Bench, Run, attention, elementwise, embedding, linear, loss, norm, optimizer};

fn bench() -> Bench {
    let device = CudaDevice::new(CudaConfig::default()).unwrap();
    Bench::new(Allocator::new(device).unwrap())
}

fn run(checks: impl FnOnce(&mut Run<'_>)) {
    let bench = bench();
    checks(&mut Run::new(&bench));
    bench.allocator.check().unwrap();
}

#[test]
#[ignore = "needs a GPU"]
fn elementwise_operations_in_f32() {
    run(elementwise::all::<f32>);
}

#[test]
#[ignore = "needs a GPU"]
fn elementwise_operations_in_bf16() {
    run(elementwise::all::<bf16>);
}

#[test]
#[ignore = "needs a GPU"]
fn products_in_f32() {
    run(linear::matmuls::<f32>);
}

#[test]
#[ignore = "needs a GPU"]
fn products_in_bf16() {
    run(linear::matmuls::<bf16>);
}

#[test]
#[ignore = "needs a GPU"]
fn biases() {
    run(|run| {
        linear::biases::<f32>(run);
        linear::biases::<bf16>(run);
    });
}

#[test]
#[ignore = "needs a GPU"]
fn layer_norms_in_f32() {
    run(norm::all::<f32>);
}

#[test]
#[ignore = "needs a GPU"]
fn layer_norms_in_bf16() {
    run(norm::all::<bf16>);
}

#[test]
#[ignore = "needs a GPU"]
fn losses_in_f32() {
    run(loss::all::<f32>);
}

#[test]
#[ignore = "needs a GPU"]
fn losses_in_bf16() {
    run(loss::all::<bf16>);
}

#[test]
#[ignore = "needs a GPU"]
fn embeddings() {
    run(|run| {
        embedding::all::<f32>(run);
        embedding::all::<bf16>(run);
    });
}

#[test]
#[ignore = "needs a GPU"]
fn the_optimizer() {
    run(optimizer::all);
}

/// With more keys and values than blocks that run together may share (32 MiB), so that heads come in two groups, of which
/// the second is small.
fn large_attention(batch: usize) -> AttentionShape {
    AttentionShape { batch, sequence: 65, heads: 130, head_width: 128 }
}

#[test]
#[ignore = "needs a GPU"]
fn attentions_in_f32() {
    run(|run| attention::all::<f32>(run, &[1, 8, 33, 64, 128, 256], &[large_attention(4)]));
}

#[test]
#[ignore = "needs a GPU"]
fn attentions_in_bf16() {
    run(|run| attention::all::<bf16>(run, &[32, 64, 128], &[large_attention(8)]));
}
