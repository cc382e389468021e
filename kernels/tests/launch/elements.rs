//! Both elements on a simulated device: the bits are those of the host function in f32, each result rounded once, and
//! lie about the host function in f64 as a GPU's have to.

use half::bf16;
use highwater::Allocator;
use highwater::device::sim::{SimConfig, SimDevice};

use crate::operations::{Bench, Run, attention, elementwise, embedding, linear, loss, norm, optimizer};

fn run(checks: impl FnOnce(&mut Run<'_>)) {
    let device = SimDevice::new(SimConfig { workers: 0, ..SimConfig::default() });
    let bench = Bench::new(Allocator::new(device.clone()).unwrap());
    checks(&mut Run::new(&bench));
    assert!(device.cluster().hazards().is_empty());
}

#[test]
fn elementwise_operations() {
    run(|run| {
        elementwise::all::<f32>(run);
        elementwise::all::<bf16>(run);
    });
}

#[test]
fn products_and_biases() {
    run(|run| {
        linear::matmuls::<f32>(run);
        linear::matmuls::<bf16>(run);
        linear::biases::<f32>(run);
        linear::biases::<bf16>(run);
    });
}

#[test]
fn layer_norms() {
    run(|run| {
        norm::all::<f32>(run);
        norm::all::<bf16>(run);
    });
}

#[test]
fn losses() {
    run(|run| {
        loss::all::<f32>(run);
        loss::all::<bf16>(run);
    });
}

#[test]
fn embeddings_and_the_optimizer() {
    run(|run| {
        embedding::all::<f32>(run);
        embedding::all::<bf16>(run);
        optimizer::all(run);
    });
}

#[test]
fn attentions() {
    run(|run| {
        attention::all::<f32>(run, &[1, 8, 33], &[]);
        attention::all::<bf16>(run, &[32], &[]);
    });
}
