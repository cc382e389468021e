//! Errors of work: they are seen by a call that came later, and say whose they are; in launch-blocking mode they are seen
//! by the call that submitted the work.

use std::time::Duration;

use highwater::device::{Access, Address, Body, ByteRange, Cost, Device, DeviceError, Operand, Operation};
use highwater::{AllocError, Settings, Stream, StreamError};

use super::{GRANULE, World, idle, with_launches};

/// As the environment variable would set it.
fn launch_blocking() -> Settings {
    Settings::parse("launch_blocking:True").unwrap()
}

/// A kernel that reads past the end of what is mapped.
fn out_of_bounds(world: &World, stream: &Stream) -> Result<(), StreamError> {
    let operands = vec![Operand { range: ByteRange::new(Address(8), 8), access: Access::Read }];
    let gather = Operation { name: "gather".into(), tag: 0, cost: Cost::exact(2), operands, body: Body::Nothing };
    stream.submit_external::<u8, _>("gather", &[], &[], |id, _| world.device.launch(id, gather))
}

/// A kernel whose assertion fails at its end.
fn assertion(stream: &Stream) -> Result<(), StreamError> {
    let launch = stream.launch("check", Cost::exact(2));
    launch.body(|_| panic!("loss is NaN")).submit()
}

/// The first of many launches on another stream that fails, and its error.
fn first_failure(stream: &Stream) -> (usize, StreamError) {
    let failed = (0..100).find_map(|call| {
        let launched = stream.launch("innocent", Cost::exact(1)).submit();
        launched.err().map(|error| (call, error))
    });
    failed.expect("the device is broken")
}

/// A launch takes one tick. What is wrong is submitted at 2 and starts at 11, so the launches at 3 to 10 succeed.
/// ```text
/// host : [slow][gather][ok][ok][ok][ok][ok][ok][ok][ok][error
/// side :       [slow                                  ][fault
/// ```
#[test]
fn s7_2_an_error_is_returned_many_calls_later_and_says_whose_it_is() {
    let world = World::new(with_launches());
    let (side, main) = (world.stream("side"), world.stream("main"));
    idle(&side, "slow", 10);
    out_of_bounds(&world, &side).unwrap();
    let (calls, error) = first_failure(&main);
    assert_eq!((calls, world.now()), (8, 11));
    let StreamError::Device { doing, source: DeviceError::Poisoned { fault } } = &error else { panic!("{error:?}") };
    assert_eq!(doing, "innocent on \"main\"");
    let (operation, stream) = ("gather".to_owned(), "side".to_owned());
    assert_eq!(**fault, DeviceError::IllegalAddress { operation, stream, address: Address(8) });
    assert_eq!(
        error.to_string(),
        "innocent on \"main\": the device is poisoned by an earlier fault: operation \"gather\" touched 0x8 on \
         \"side\", which is not mapped; this error is asynchronous: operation \"gather\" on \"side\", submitted \
         earlier, failed, and the call that returns the error only noticed it. Set launch_blocking:True in \
         HIGHWATER_ALLOC_CONF and the call that submits the failing work returns the error"
    );
}

#[test]
fn s7_2_launch_blocking_returns_the_error_where_it_was_made() {
    let world = World::with(with_launches(), launch_blocking());
    let (side, main) = (world.stream("side"), world.stream("main"));
    idle(&side, "slow", 10);
    idle(&main, "innocent", 1);
    let error = out_of_bounds(&world, &side).unwrap_err();
    let (operation, stream, address) = ("gather".to_owned(), "side".to_owned(), Address(8));
    let source = DeviceError::IllegalAddress { operation: operation.clone(), stream: stream.clone(), address };
    assert_eq!(error, StreamError::Failed { operation, stream, source: Box::new(source) });
    assert!(error.to_string().starts_with("operation \"gather\" on \"side\" failed: "), "{error}");
}

/// The first call that needs a value is blamed, as a line that prints a loss would be.
#[test]
fn s7_2_whoever_waits_first_gets_the_error_of_an_assertion() {
    let world = World::new(with_launches());
    let (side, main) = (world.stream("side"), world.stream("main"));
    let loss = main.alloc::<u8>(1).unwrap();
    idle(&side, "slow", 10);
    assertion(&side).unwrap();
    idle(&main, "long", 100);
    let printed = main.copy_to_host(&loss, &world.allocator.pageable::<u8>(1)).unwrap_err();
    assert_eq!(world.now(), 13, "when the work failed, and not when the copy would have been done");
    assert!(matches!(&printed, StreamError::Device { source: DeviceError::BodyPanicked { .. }, .. }), "{printed:?}");
    let text = printed.to_string();
    assert!(text.starts_with("copy to the host on \"main\": the body of operation \"check\" on \"side\""), "{text}");
    assert!(text.contains("operation \"check\" on \"side\", submitted earlier, failed"), "{text}");
    // It is sticky: requests for memory fail too, and say the same.
    let request = side.alloc::<u8>(GRANULE).unwrap_err();
    assert!(matches!(request, AllocError::Device { .. }), "{request:?}");
    assert!(request.to_string().contains("operation \"check\" on \"side\", submitted earlier, failed"), "{request}");
}

#[test]
fn s7_2_launch_blocking_finds_the_assertion_too() {
    let world = World::with(with_launches(), launch_blocking());
    let side = world.stream("side");
    idle(&side, "slow", 10);
    let error = assertion(&side).unwrap_err();
    assert!(matches!(&error, StreamError::Failed { operation, .. } if operation == "check"), "{error:?}");
    assert!(error.to_string().ends_with("panicked: loss is NaN"), "{error}");
}

/// A fence of work that failed never completes, whoever asks.
#[test]
fn s7_2_a_fence_of_failed_work_says_so_to_all_who_wait() {
    let world = World::new(with_launches());
    let side = world.stream("side");
    assertion(&side).unwrap();
    let fence = side.record().unwrap();
    for _ in 0..2 {
        let error = fence.wait(Duration::from_secs(1)).unwrap_err().to_string();
        assert!(error.contains("\"check\" on \"side\", submitted earlier, failed"), "{error}");
    }
    assert!(fence.is_complete().is_err());
}

/// ```text
/// host : [slow][wait         ][quick][wait]
/// ```
#[test]
fn s7_2_launch_blocking_takes_all_overlap_away() {
    for (settings, expected, blocked) in [
        (Settings::default(), [("side", "slow", 1, 11), ("main", "quick", 2, 5)], (0, 0)),
        (launch_blocking(), [("side", "slow", 1, 11), ("main", "quick", 12, 15)], (2, 13)),
    ] {
        let world = World::with(with_launches(), settings);
        let (side, main) = (world.stream("side"), world.stream("main"));
        idle(&side, "slow", 10);
        idle(&main, "quick", 3);
        assert_eq!(world.blocked(), blocked);
        world.expect(&expected);
    }
}
