//! What kernels on a GPU do not take is refused before anything is submitted.

use half::bf16;
use highwater::View;
use highwater::device::DeviceCall;
use highwater_kernels::host::AttentionShape;
use highwater_kernels::{self as kernels, AttentionBackward, Element, KernelError};

use crate::bench;
use crate::operations::Bench;

fn launches(bench: &Bench) -> u64 {
    bench.allocator.device().counters().of(DeviceCall::Launch)
}

/// Both passes with views of the right lengths in one piece of memory, from `offset` on.
fn both_passes<E: Element>(bench: &Bench, head_width: usize, offset: usize) -> [Result<(), KernelError>; 2] {
    let shape = AttentionShape { batch: 1, sequence: 3, heads: 2, head_width };
    let (packed, plain, rows) = (shape.qkv_elements(), shape.out_elements(), shape.lse_elements());
    let memory = |len: usize| bench.stream.alloc::<E>(offset + len).unwrap();
    let (qkv, out, dout, dqkv) = (memory(packed), memory(plain), memory(plain), memory(packed));
    let lse = bench.stream.alloc::<f32>(rows).unwrap();
    let [qkv, out, dout, dqkv]: [View<'_, E>; 4] = [&qkv, &out, &dout, &dqkv].map(|buffer| buffer.slice(offset..));
    let views = AttentionBackward { qkv, out, lse: lse.view(), dout, dqkv };
    [
        kernels::attention_forward(&bench.stream, shape, qkv, out, lse.view()),
        kernels::attention_backward(&bench.stream, shape, views),
    ]
}

fn assert_refused(bench: &Bench, results: impl FnOnce(&Bench) -> [Result<(), KernelError>; 2], expected: &str) {
    let before = launches(bench);
    for (result, name) in results(bench).into_iter().zip(["attention", "attention backward"]) {
        let Err(KernelError::Invalid { kernel, what }) = &result else { panic!("{name}: {result:?}") };
        assert_eq!((*kernel, *what), (name, expected));
    }
    assert_eq!(launches(bench), before, "something was submitted");
}

#[test]
#[ignore = "needs a GPU"]
fn heads_and_views_that_no_kernel_takes() {
    let bench = bench();
    let widths = "a GPU takes bf16 heads of 32, 64 or 128 elements";
    for width in [1, 16, 48, 256] {
        assert_refused(&bench, |bench| both_passes::<bf16>(bench, width, 0), widths);
    }
    let aligned = "a GPU takes bf16 views that begin at multiples of 8 elements";
    for offset in [1, 4, 7, 9] {
        assert_refused(&bench, |bench| both_passes::<bf16>(bench, 64, offset), aligned);
    }
    assert_refused(&bench, |bench| both_passes::<f32>(bench, 257, 0), "a GPU takes heads of at most 256 elements");
    // Their neighbours are taken.
    for results in
        [both_passes::<bf16>(&bench, 64, 8), both_passes::<f32>(&bench, 256, 0), both_passes::<f32>(&bench, 48, 1)]
    {
        assert_eq!(results, [Ok(()), Ok(())]);
    }
    bench.stream.record().unwrap().wait(std::time::Duration::from_secs(60)).unwrap();
}

#[test]
#[ignore = "needs a GPU"]
fn too_many_positions() {
    let bench = bench();
    let shape = AttentionShape { batch: 0, sequence: 1 << 30, heads: 1, head_width: 1 };
    let memory = bench.stream.alloc::<f32>(1).unwrap();
    let none = memory.slice(..0);
    let refused = kernels::attention_forward(&bench.stream, shape, none, none, none);
    assert!(matches!(refused, Err(KernelError::Invalid { kernel: "attention", .. })), "{refused:?}");
}
