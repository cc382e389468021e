//! Data that is no data: the device reports a fault, later.

use highwater::StreamError;
use highwater::device::DeviceError;
use highwater::device::sim::{Mode, SimConfig};
use highwater_kernels::host::{EmbeddingShape, Rows, Update};
use highwater_kernels::{self as kernels, CrossEntropy, KernelError};

use crate::operands::{Bench, Data, TIMEOUT};

const SHAPE: EmbeddingShape = EmbeddingShape { vocabulary: 5, positions: 3, width: 2 };

fn configs() -> Vec<SimConfig> {
    let modes = [Mode::Timed, Mode::Adversarial { seed: 5 }];
    let config = |mode| move |workers| SimConfig { mode, workers, ..SimConfig::default() };
    modes.into_iter().flat_map(|mode| [0, 2].map(config(mode))).collect()
}

/// Submits something with a bad token: no error yet. Then the fence, and all later work, fail.
fn assert_faults(operation: &str, submit: impl Fn(&Bench, &[u32]) -> Result<(), KernelError>) {
    for config in configs() {
        let bench = Bench::new(config.clone());
        submit(&bench, &[0, 4, 1]).unwrap();
        bench.stream.record().unwrap().wait(TIMEOUT).unwrap();

        let bench = Bench::new(config);
        submit(&bench, &[0, 5, 1]).expect("nothing is known when it is submitted");
        let waited = bench.stream.record().and_then(|fence| fence.wait(TIMEOUT)).unwrap_err();
        let StreamError::Device { source, .. } = &waited else { panic!("{waited}") };
        let fault = match source {
            DeviceError::Poisoned { fault } => fault,
            fault => fault,
        };
        let DeviceError::BodyPanicked { operation: found, stream, message } = fault else { panic!("{fault}") };
        assert_eq!((found.as_str(), stream.as_str()), (operation, "default"));
        assert!(message.contains('5'), "the message names the token: {message}");

        let later = bench.stream.alloc::<f32>(4).map(|buffer| kernels::fill(&bench.stream, 1.0, buffer.view()));
        let poisoned = match later {
            Ok(submitted) => submitted.unwrap_err().to_string(),
            Err(error) => error.to_string(),
        };
        assert!(poisoned.contains("poisoned"), "{poisoned}");
        assert_eq!(bench.device.cluster().settle().unwrap_err(), fault.clone());
        bench.allocator.check().unwrap();
    }
}

#[test]
fn embedding_of_a_token_outside_its_table() {
    assert_faults("embedding", |bench, tokens| {
        let ids = bench.upload(&Data::Tokens(tokens.to_vec()));
        let table = |rows: usize| bench.upload(&Data::Floats(vec![1.0; rows * SHAPE.width]));
        let (words, positions, out) = (table(SHAPE.vocabulary), table(SHAPE.positions), table(tokens.len()));
        let (words, positions) = (words.floats(), positions.floats());
        kernels::embedding_forward(&bench.stream, SHAPE, ids.tokens(), words, positions, out.floats())
    });
}

#[test]
fn embedding_backward_of_a_token_outside_its_table() {
    for update in [Update::Store, Update::Accumulate] {
        assert_faults("embedding backward", |bench, tokens| {
            let ids = bench.upload(&Data::Tokens(tokens.to_vec()));
            let table = |rows: usize| bench.upload(&Data::Floats(vec![1.0; rows * SHAPE.width]));
            let (words, positions, dout) = (table(SHAPE.vocabulary), table(SHAPE.positions), table(tokens.len()));
            let (words, positions) = (words.floats(), positions.floats());
            kernels::embedding_backward(&bench.stream, SHAPE, ids.tokens(), dout.floats(), update, words, positions)
        });
    }
}

#[test]
fn a_target_outside_the_logits() {
    assert_faults("cross-entropy", |bench, tokens| {
        let shape = Rows { rows: tokens.len(), width: 5 };
        let targets = bench.upload(&Data::Tokens(tokens.to_vec()));
        let floats = |len: usize| bench.upload(&Data::Floats(vec![0.5; len]));
        let (logits, dlogits) = (floats(shape.elements()), floats(shape.elements()));
        let (token_losses, loss) = (floats(shape.rows), floats(1));
        let views = CrossEntropy {
            logits: logits.floats(),
            targets: targets.tokens(),
            token_losses: token_losses.floats(),
            loss: loss.floats(),
            dlogits: dlogits.floats(),
        };
        kernels::cross_entropy(&bench.stream, shape, 1.0, views)
    });
}

#[test]
fn a_target_outside_the_logits_of_one_pass() {
    let shape = Rows { rows: 3, width: 5 };
    assert_faults("cross-entropy forward", |bench, tokens| {
        let targets = bench.upload(&Data::Tokens(tokens.to_vec()));
        let floats = |len: usize| bench.upload(&Data::Floats(vec![0.5; len]));
        let (logits, token_losses, loss) = (floats(shape.elements()), floats(shape.rows), floats(1));
        let (logits, targets, loss) = (logits.floats(), targets.tokens(), loss.floats());
        kernels::cross_entropy_forward(&bench.stream, shape, 1.0, logits, targets, token_losses.floats(), loss)
    });
    assert_faults("cross-entropy backward", |bench, tokens| {
        let targets = bench.upload(&Data::Tokens(tokens.to_vec()));
        let floats = || bench.upload(&Data::Floats(vec![0.5; shape.elements()]));
        let (logits, dlogits) = (floats(), floats());
        kernels::cross_entropy_backward(&bench.stream, shape, 1.0, logits.floats(), targets.tokens(), dlogits.floats())
    });
}
