//! Bad data on a GPU. A fault is the end of a process's use of the GPU, so this is a binary of its own, with one test.

use std::time::Duration;

use highwater::device::DeviceError;
use highwater::device::cuda::{CudaConfig, CudaDevice};
use highwater::{AllocError, Allocator, Stream, StreamError};
use highwater_kernels::host::EmbeddingShape;
use highwater_kernels::{self as kernels, KernelError};

const TIMEOUT: Duration = Duration::from_secs(120);
const SHAPE: EmbeddingShape = EmbeddingShape { vocabulary: 5, positions: 3, width: 2 };

fn device_error(error: StreamError) -> DeviceError {
    match error {
        StreamError::Device { source, .. } => source,
        other => panic!("not the device's: {other}"),
    }
}

/// The first error names what the driver says; from then on the device is poisoned by it, and nothing panics.
#[test]
#[ignore = "needs a GPU"]
fn a_token_outside_its_table_poisons_the_device() {
    let device = CudaDevice::new(CudaConfig::default()).unwrap();
    let allocator = Allocator::new(device.clone()).unwrap();
    let stream = allocator.default_stream();
    let ids = stream.alloc::<u32>(3).unwrap();
    let (words, positions, out) =
        (stream.alloc::<f32>(10).unwrap(), stream.alloc::<f32>(6).unwrap(), stream.alloc::<f32>(6).unwrap());
    let result = allocator.pinned::<f32>(6);
    kernels::fill(&stream, 1.0, words.view()).unwrap();
    kernels::fill(&stream, 2.0, positions.view()).unwrap();
    let look_up = |tokens: [u32; 3]| {
        let staging = allocator.pinned(3);
        staging.write(|elements| elements.copy_from_slice(&tokens)).unwrap();
        stream.copy_to_device(&staging, &ids).unwrap();
        kernels::embedding_forward(&stream, SHAPE, ids.view(), words.view(), positions.view(), out.view())
    };

    look_up([0, 4, 1]).unwrap();
    stream.copy_to_host(&out, &result).unwrap();
    result.wait(TIMEOUT).unwrap();
    result.read(|elements| assert_eq!(elements, [3.0; 6])).unwrap();

    look_up([0, 5, 1]).expect("nothing is known when it is submitted");
    let first = stream.record().and_then(|fence| fence.wait(TIMEOUT)).unwrap_err();
    // Whatever asked the device on the way may have met it before.
    let fault = match device_error(first) {
        DeviceError::Poisoned { fault } => *fault,
        fault => fault,
    };
    let DeviceError::Driver { name, text, .. } = &fault else { panic!("{fault:?}") };
    assert!(name.starts_with("CUDA_ERROR_") && !text.is_empty(), "{name}: {text}");
    println!("{fault}");

    let poisoned = |error: DeviceError| {
        let DeviceError::Poisoned { fault: by } = &error else { panic!("{error:?}") };
        assert_eq!(**by, fault);
    };
    match kernels::fill(&stream, 1.0, out.view()).unwrap_err() {
        KernelError::Stream(error) => poisoned(device_error(error)),
        other => panic!("{other}"),
    }
    poisoned(device_error(stream.copy_to_host(&out, &result).unwrap_err()));
    poisoned(device_error(stream.record().unwrap_err()));
    poisoned(use_new_memory(&allocator, &stream));

    // All of it goes, in any order, and the process goes on.
    drop((out, words));
    drop(allocator);
    drop((stream, ids, positions, result));
    drop(device);
}

/// Memory may still come from what is free already; using it does not work.
fn use_new_memory(allocator: &Allocator, stream: &Stream) -> DeviceError {
    let staging = allocator.pinned::<u32>(3);
    match stream.alloc::<u32>(3) {
        Ok(ids) => device_error(stream.copy_to_device(&staging, &ids).unwrap_err()),
        Err(AllocError::Device { source, .. }) => source,
        Err(other) => panic!("not the device's: {other}"),
    }
}
