//! Adopted streams: which one it is, and which ones are refused.

use std::sync::Arc;

use cudarc::driver::{CudaContext, DeviceSlice};
use highwater::device::sim::SimDevice;
use highwater::{Allocator, Settings, StreamError};

use crate::world::World;

#[test]
#[ignore = "needs a GPU"]
fn a_stream_that_is_adopted_twice_is_one() {
    let world = World::new();
    let (cuda, stream) = world.adopted("adopted");
    let again = world.allocator.adopt_stream(&cuda, "another name").unwrap();
    assert_eq!((&again, again.name()), (&stream, "adopted"));
    assert_eq!(stream.id(), world.device.id_of(&cuda).unwrap());
    assert!(Arc::ptr_eq(&stream.cuda_stream().unwrap(), &cuda));

    // As long as a buffer lives, so does the stream.
    let buffer = stream.alloc::<u32>(1).unwrap();
    drop((stream, again));
    assert_eq!(&world.allocator.adopt_stream(&cuda, "third").unwrap(), buffer.stream());
    drop(buffer);
    let id = world.device.id_of(&cuda).unwrap();
    assert!(world.device.cuda_stream(id).is_none(), "the device has let go of it");
    assert_eq!(world.allocator.adopt_stream(&cuda, "third").unwrap().name(), "third");
    world.settle();
}

#[test]
#[ignore = "needs a GPU"]
fn a_stream_of_the_allocator_is_adopted_as_itself() {
    let world = World::new();
    let own = world.allocator.create_stream("own").unwrap();
    for stream in [own, world.allocator.default_stream()] {
        let cuda = stream.cuda_stream().unwrap();
        assert_eq!(world.device.id_of(&cuda).unwrap(), stream.id());
        assert_eq!(world.allocator.adopt_stream(&cuda, "adopted").unwrap(), stream);
    }
    world.settle();
}

#[test]
#[ignore = "needs a GPU"]
fn the_legacy_default_stream_is_one_stream_whatever_names_it() {
    let world = World::new();
    let first = world.allocator.adopt_stream(&world.context.default_stream(), "legacy").unwrap();
    let second = world.allocator.adopt_stream(&world.context.default_stream(), "legacy").unwrap();
    assert_eq!(first, second);
    let buffer = world.filled(&first, 3);
    world.check(&buffer.on(&first).unwrap(), 3);
    world.settle();
}

#[test]
#[ignore = "needs a GPU"]
fn a_stream_is_alive_as_long_as_memory_needs_it() {
    let world = World::new();
    let stream = {
        let (cuda, stream) = world.adopted("adopted");
        drop(cuda);
        stream
    };
    let buffer = world.filled(&stream, 5);
    drop(stream);
    let stream = buffer.stream().clone();
    world.check(&buffer.on(&stream).unwrap(), 5);
    world.settle();
}

#[test]
#[ignore = "needs a GPU"]
fn streams_that_cannot_be_adopted_are_refused_with_the_reason() {
    let world = World::new();
    let per_thread = world.allocator.adopt_stream(&world.context.per_thread_stream(), "mine").unwrap_err();
    assert_eq!(per_thread, StreamError::PerThreadStream { stream: "mine".into() });

    let elsewhere = CudaContext::new_non_primary(0, 0).unwrap();
    let foreign = elsewhere.new_stream().unwrap();
    let refused = world.allocator.adopt_stream(&foreign, "foreign").unwrap_err();
    assert_eq!(refused, StreamError::OtherContext { stream: "foreign".into() });

    let simulated = Allocator::with_settings(SimDevice::new(Default::default()), Settings::default()).unwrap();
    let refused = simulated.adopt_stream(&world.cudarc_stream(), "real").unwrap_err();
    assert!(matches!(&refused, StreamError::NotCuda { .. }), "{refused}");
    assert!(simulated.default_stream().cuda_stream().is_none());
    drop((foreign, elsewhere));
    world.settle();
}

#[test]
#[ignore = "needs a GPU"]
fn a_guard_adopts_the_stream_that_it_is_given() {
    let world = World::new();
    let s = world.allocator.default_stream();
    let buffer = world.filled(&s, 4);
    let cuda = world.cudarc_stream();
    cuda.join(&s.cuda_stream().unwrap()).unwrap();
    let on = buffer.on(&cuda).unwrap();
    assert!(Arc::ptr_eq(DeviceSlice::stream(&on), &cuda));
    world.check(&on, 4);
    drop(on);
    // The guard was the last that held the stream: the allocator has let it go, and knows when its work ends.
    assert!(world.device.cuda_stream(world.device.id_of(&cuda).unwrap()).is_none());
    drop(buffer);
    world.settle();
}

#[test]
#[should_panic(expected = "cudarc takes memory of a GPU alone")]
fn memory_of_a_simulated_device_is_not_for_cudarc() {
    let simulated = Allocator::with_settings(SimDevice::new(Default::default()), Settings::default()).unwrap();
    let buffer = simulated.default_stream().alloc::<f32>(4).unwrap();
    let _ = DeviceSlice::stream(&buffer);
}
