//! The end: whatever is dropped first, nothing hangs, faults or stays behind.

use std::any::Any;

use highwater::device::cuda::{CudaConfig, CudaDevice};
use highwater::device::{Cost, DeviceError};
use highwater::{Allocator, Settings, StreamError};

use crate::world::{LEN, LONG, World};

/// Every order of `len` things.
fn permutations(len: usize) -> Vec<Vec<usize>> {
    let Some(last) = len.checked_sub(1) else { return vec![Vec::new()] };
    let longer = |shorter: Vec<usize>| {
        (0..=shorter.len()).map(move |at| {
            let mut order = shorter.clone();
            order.insert(at, last);
            order
        })
    };
    permutations(last).into_iter().flat_map(longer).collect()
}

#[test]
#[ignore = "needs a GPU"]
fn every_order_of_drops_gives_all_memory_back() {
    let world = World::new();
    let free = || world.context.mem_get_info().unwrap().0;
    let mut before = 0;
    for (round, order) in permutations(6).into_iter().enumerate() {
        let device = CudaDevice::with_context(world.context.clone(), CudaConfig::default()).unwrap();
        let allocator = Allocator::new(device.clone()).unwrap();
        let cuda = world.cudarc_stream();
        let stream = allocator.adopt_stream(&cuda, "adopted").unwrap();
        let own = allocator.default_stream();
        let (buffer, elsewhere) = (own.alloc::<u32>(LEN).unwrap(), stream.alloc::<u32>(LEN).unwrap());
        stream.wait(&own.record().unwrap()).unwrap();
        world.fill(&buffer.on(&stream).unwrap(), 1);
        world.fill(&elsewhere.on(&stream).unwrap(), 2);
        drop(own);
        let mut things: Vec<Option<Box<dyn Any>>> = vec![
            Some(Box::new(device)),
            Some(Box::new(allocator)),
            Some(Box::new(cuda)),
            Some(Box::new(stream)),
            Some(Box::new(buffer)),
            Some(Box::new(elsewhere)),
        ];
        for index in order {
            drop(things[index].take());
        }
        if round == 0 {
            before = free();
        }
    }
    world.context.synchronize().unwrap();
    assert!(free() + (64 << 20) > before, "{} bytes are gone", before - free());
    world.settle();
}

#[test]
fn the_orders_are_all_different() {
    let mut orders = permutations(4);
    assert_eq!(orders.len(), 24);
    orders.sort();
    orders.dedup();
    assert_eq!(orders.len(), 24);
}

/// A fence behind a host body that panicked completes for the driver, and must not for anybody else. In launch-blocking
/// mode the launch itself tells.
#[test]
#[ignore = "needs a GPU"]
fn a_host_body_that_panics_fails_its_fence() {
    let world = World::new();
    for blocking in [false, true] {
        let device = CudaDevice::with_context(world.context.clone(), CudaConfig::default()).unwrap();
        let settings = Settings::builder().launch_blocking(blocking).build().unwrap();
        let stream = Allocator::with_settings(device, settings).unwrap().default_stream();
        let launch = stream.launch("bad", Cost::kernel(0, 0)).body(|_| panic!("on purpose"));
        let error = match launch.submit() {
            Err(error) => error,
            Ok(()) => stream.record().and_then(|fence| fence.wait(LONG)).unwrap_err(),
        };
        let source = match &error {
            StreamError::Failed { source, operation, .. } if blocking && operation == "bad" => &**source,
            StreamError::Device { source, .. } if !blocking => source,
            other => panic!("{other:?}"),
        };
        assert!(matches!(source.failed_work(), Some(DeviceError::BodyPanicked { .. })), "{source:?}");
    }
}
