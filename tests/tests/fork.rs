//! A forked child drops everything of its parent without a driver call.

#![allow(unsafe_code, reason = "there is no safe way to fork")]

use std::time::Duration;

use highwater::Allocator;
use highwater::device::Cost;
use highwater::device::Device;
use highwater::device::sim::{SimConfig, SimDevice};

/// Runs `child` in a forked process, and waits for its exit code: 0 when `child` says yes, 1 when no.
fn forked(child: impl FnOnce() -> bool) -> Option<i32> {
    // SAFETY: the child touches only memory of the thread that forks: no other thread of this process holds a lock that
    // it takes (the device under test has no worker threads), and it ends by `_exit`, so nothing of the test harness
    // runs in it.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let code = i32::from(!child());
        // SAFETY: ends the process at once, whatever its state.
        unsafe { libc::_exit(code) };
    }
    assert!(pid > 0, "fork failed");
    for _ in 0..500 {
        let mut status = 0;
        // SAFETY: `status` is a valid place for the answer, and `pid` is a child of this process.
        let ended = unsafe { libc::waitpid(pid, &raw mut status, libc::WNOHANG) };
        if ended == pid {
            return Some(libc::WEXITSTATUS(status));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    // SAFETY: as above.
    unsafe { libc::kill(pid, libc::SIGKILL) };
    None
}

/// Drops an allocator with everything that was made by it, in a child.
fn drop_in_a_child(capturing: bool) {
    let device = SimDevice::new(SimConfig { workers: 0, ..SimConfig::default() });
    let allocator = Allocator::new(device.clone()).unwrap();
    let (compute, side) = (allocator.default_stream(), allocator.create_stream("side").unwrap());
    let own = compute.alloc::<u8>(5000).unwrap();
    let shared = compute.alloc::<u8>(3 << 20).unwrap();
    side.launch("use", Cost::exact(1000)).read(&shared).submit().unwrap();
    let fence = side.record().unwrap();
    let host = allocator.pinned::<u8>(5000);
    compute.copy_to_device(&host, &own).unwrap();
    let capture = capturing.then(|| compute.begin_capture().unwrap());
    let captured = compute.alloc::<u8>(700).unwrap();
    let before = device.counters();

    // The child owns everything; the parent's own copy is dropped when it has ended.
    let watched = device.clone();
    let all = (own, shared, fence, host, captured, capture, side, compute, allocator, device);
    let code = forked(move || {
        drop(all);
        watched.counters() == before
    });
    assert_eq!(code, Some(0), "None: it hung; 1: it called the driver");
}

#[test]
fn a_forked_child_drops_everything_without_a_driver_call() {
    drop_in_a_child(false);
}

#[test]
fn a_forked_child_drops_a_capture_without_a_driver_call() {
    drop_in_a_child(true);
}
