//! What a real driver has to keep, and the library in front of it. Each test runs itself again with the library
//! preloaded; `HIGHWATER_SHIM_LIBRARY` names it, if it does not lie beside the tests.
//!
//! A stream is held by waiting for a number in host memory that the test writes later.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_void};
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use std::{env, fs, thread};

use cudarc::driver::{CudaContext, sys};

const MARK: &str = "HIGHWATER_SHIM_TEST";
const BLOCKING: u32 = 0;
const NON_BLOCKING: u32 = 1;
const LEGACY: sys::CUstream = 1 as sys::CUstream;
const PER_THREAD: sys::CUstream = 2 as sys::CUstream;

/// Runs the calling test again with the library in front. Whether this is that second run.
fn in_front(test: &str) -> bool {
    if env::var(MARK).as_deref() == Ok(test) {
        return true;
    }
    let this = env::current_exe().unwrap();
    let library =
        env::var_os("HIGHWATER_SHIM_LIBRARY").map_or_else(|| this.with_file_name("libcuda.so"), PathBuf::from);
    assert!(library.exists(), "{} is not there", library.display());
    let out = env::temp_dir().join(format!("highwater-shim-{}", std::process::id())).join(test);
    let _ = fs::remove_dir_all(&out);
    let output = Command::new(this)
        .args(["--exact", test, "--ignored", "--nocapture", "--test-threads=1"])
        .env(MARK, test)
        .env("LD_PRELOAD", library)
        .env("HIGHWATER_SHIM_OUT", &out)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{test}: {} {}{said}", output.status, String::from_utf8_lossy(&output.stdout));
    let line = fs::read_to_string(out.join("stats.jsonl")).expect("the exit writes statistics");
    println!("{line}");
    let line: serde_json::Value = serde_json::from_str(line.lines().last().unwrap()).unwrap();
    assert!(line["allocations"].as_u64().unwrap() > 0, "{line}");
    assert_eq!(line["forwarded"], 0, "{line}");
    assert_eq!(line["allocations"], line["frees"], "{line}");
    assert_eq!(line["context_synchronizations"], 0, "{line}");
    false
}

fn ok(answer: sys::CUresult) {
    assert_eq!(answer, sys::CUresult::CUDA_SUCCESS);
}

fn begin() -> Arc<CudaContext> {
    CudaContext::new(0).unwrap()
}

fn create(flags: u32) -> sys::CUstream {
    let mut stream = std::ptr::null_mut();
    // SAFETY: a place for one handle.
    ok(unsafe { sys::cuStreamCreate(&mut stream, flags) });
    stream
}

fn alloc(bytes: usize) -> u64 {
    let mut address = 0;
    // SAFETY: a place for one address.
    ok(unsafe { sys::cuMemAlloc_v2(&mut address, bytes) });
    address
}

fn free(address: u64) {
    // SAFETY: it is freed once, and the driver waits for what uses it.
    ok(unsafe { sys::cuMemFree_v2(address) });
}

fn alloc_on(stream: sys::CUstream, bytes: usize) -> u64 {
    let mut address = 0;
    // SAFETY: a place for one address; the stream is alive.
    ok(unsafe { sys::cuMemAllocAsync(&mut address, bytes, stream) });
    address
}

fn free_on(address: u64, stream: sys::CUstream) {
    // SAFETY: it is freed once, behind its uses; the stream is alive.
    ok(unsafe { sys::cuMemFreeAsync(address, stream) });
}

fn fill(address: u64, value: u32, bytes: usize, stream: sys::CUstream) {
    // SAFETY: the block has so many bytes; the stream is alive.
    ok(unsafe { sys::cuMemsetD32Async(address, value, bytes / 4, stream) });
}

fn first_number(address: u64) -> u32 {
    let mut value = 0u32;
    // SAFETY: a place for four bytes.
    ok(unsafe { sys::cuMemcpyDtoH_v2((&raw mut value).cast(), address, 4) });
    value
}

fn synchronize(stream: sys::CUstream) {
    // SAFETY: the stream is alive.
    ok(unsafe { sys::cuStreamSynchronize(stream) });
}

/// A number that streams wait for.
struct Hold {
    number: &'static AtomicU32,
    address: u64,
}

impl Hold {
    fn new() -> Self {
        let (mut number, mut address): (*mut c_void, u64) = (std::ptr::null_mut(), 0);
        // SAFETY: a place for one address.
        ok(unsafe { sys::cuMemHostAlloc(&mut number, 4, sys::CU_MEMHOSTALLOC_DEVICEMAP) });
        // SAFETY: as above, for memory that was allocated just now.
        ok(unsafe { sys::cuMemHostGetDevicePointer_v2(&mut address, number, 0) });
        // SAFETY: four bytes that are never freed.
        let number: &'static AtomicU32 = unsafe { &*number.cast() };
        number.store(0, Ordering::SeqCst);
        Hold { number, address }
    }

    fn hold(&self, stream: sys::CUstream) {
        // SAFETY: the number is never freed; the stream is alive.
        ok(unsafe { sys::cuStreamWaitValue32_v2(stream, self.address, 1, 0) });
    }

    fn release(&self) {
        self.number.store(1, Ordering::SeqCst);
    }
}

/// Whether an event that is recorded on a stream now is complete at once.
fn is_idle(stream: sys::CUstream) -> bool {
    let mut event = std::ptr::null_mut();
    // SAFETY: a place for one handle, and then that handle; the stream is alive.
    let answer = unsafe {
        ok(sys::cuEventCreate(&mut event, 2));
        ok(sys::cuEventRecord(event, stream));
        // What is not held is done after so long that it is beyond doubt; what is held never is.
        thread::sleep(Duration::from_millis(200));
        let answer = sys::cuEventQuery(event);
        ok(sys::cuEventDestroy_v2(event));
        answer
    };
    assert!([sys::CUresult::CUDA_SUCCESS, sys::CUresult::CUDA_ERROR_NOT_READY].contains(&answer), "{answer:?}");
    answer == sys::CUresult::CUDA_SUCCESS
}

#[test]
#[ignore = "needs a GPU"]
fn the_legacy_stream_stands_for_all_that_are_not_non_blocking() {
    let context = begin();
    let (blocking, apart) = (create(BLOCKING), create(NON_BLOCKING));
    let hold = Hold::new();
    hold.hold(apart);
    assert!(is_idle(LEGACY), "a non-blocking stream is apart");
    hold.release();
    synchronize(apart);

    let hold = Hold::new();
    hold.hold(blocking);
    assert!(!is_idle(LEGACY), "a fence on the legacy stream comes after a blocking one");
    hold.release();
    synchronize(blocking);

    let hold = Arc::new(Hold::new());
    let own = thread::spawn({
        let (context, hold) = (context.clone(), hold.clone());
        move || {
            context.bind_to_thread().unwrap();
            hold.hold(PER_THREAD);
        }
    });
    for _ in 0..1000 {
        if !own.is_finished() {
            thread::sleep(Duration::from_millis(5));
        }
    }
    let ended = own.is_finished();
    if !ended {
        hold.release();
    }
    own.join().unwrap();
    assert!(ended, "the end of a thread does not wait for its stream");
    assert!(!is_idle(LEGACY), "and after another thread's, also when that thread is gone");
    hold.release();
    synchronize(LEGACY);
}

#[test]
#[ignore = "needs a GPU"]
fn the_handles_of_the_legacy_stream_have_one_id() {
    let _context = begin();
    let id = |stream| {
        let mut id = 0;
        // SAFETY: a place for one number.
        ok(unsafe { sys::cuStreamGetId(stream, &mut id) });
        id
    };
    assert_eq!(id(std::ptr::null_mut()), id(LEGACY));
    assert_ne!(id(PER_THREAD), id(LEGACY));
}

#[test]
#[ignore = "needs a GPU"]
fn blocks_are_not_given_out_while_a_stream_uses_them() {
    if !in_front("blocks_are_not_given_out_while_a_stream_uses_them") {
        return;
    }
    let _context = begin();
    const BYTES: usize = 1 << 20;
    for flags in [BLOCKING, NON_BLOCKING] {
        let (stream, hold) = (create(flags), Hold::new());
        let first = alloc(BYTES);
        hold.hold(stream);
        fill(first, 1, BYTES, stream);
        free(first);
        let second = alloc(BYTES);
        assert_ne!(first, second, "it is still to be filled");
        fill(second, 2, BYTES, stream);
        hold.release();
        synchronize(stream);
        assert_eq!(first_number(second), 2);
        free(second);
        // SAFETY: it is alive, and not used any more.
        ok(unsafe { sys::cuStreamDestroy_v2(stream) });
    }
}

#[test]
#[ignore = "needs a GPU"]
fn memory_of_a_stream_comes_back_in_its_order() {
    if !in_front("memory_of_a_stream_comes_back_in_its_order") {
        return;
    }
    let _context = begin();
    const BYTES: usize = 1 << 20;
    for stream in [create(NON_BLOCKING), LEGACY, PER_THREAD] {
        let hold = Hold::new();
        let first = alloc_on(stream, BYTES);
        hold.hold(stream);
        fill(first, 1, BYTES, stream);
        free_on(first, stream);
        let second = alloc_on(stream, BYTES);
        assert_eq!(first, second);
        fill(second, 2, BYTES, stream);
        hold.release();
        synchronize(stream);
        assert_eq!(first_number(second), 2);
        free_on(second, stream);
    }
}

#[test]
#[ignore = "needs a GPU"]
fn a_destroyed_stream_is_waited_for() {
    if !in_front("a_destroyed_stream_is_waited_for") {
        return;
    }
    let _context = begin();
    const BYTES: usize = 1 << 20;
    let (stream, hold) = (create(NON_BLOCKING), Hold::new());
    let first = alloc(BYTES);
    hold.hold(stream);
    fill(first, 1, BYTES, stream);
    // SAFETY: it is alive; the driver keeps what is queued.
    ok(unsafe { sys::cuStreamDestroy_v2(stream) });
    free(first);
    let second = alloc(BYTES);
    assert_ne!(first, second);
    hold.release();
    free(second);
}

#[test]
#[ignore = "needs a GPU"]
fn the_driver_tells_addresses_in_front() {
    if !in_front("the_driver_tells_addresses_in_front") {
        return;
    }
    let _context = begin();
    let look_up = |name: &CStr, flags| {
        let mut found = std::ptr::null_mut();
        let mut status = sys::CUdriverProcAddressQueryResult::CU_GET_PROC_ADDRESS_SUCCESS;
        // SAFETY: the name ends with zero; places for two answers.
        ok(unsafe { sys::cuGetProcAddress_v2(name.as_ptr(), &mut found, 12000, flags, &mut status) });
        assert!(!found.is_null());
        found
    };
    let found = look_up(c"cuMemAlloc", 0);
    // SAFETY: the driver's header gives this function this type.
    let found: unsafe extern "C" fn(*mut u64, usize) -> sys::CUresult = unsafe { std::mem::transmute(found) };
    let mut address = 0;
    // SAFETY: a place for one address.
    ok(unsafe { found(&mut address, 4096) });
    let (mut base, mut bytes) = (0, 0);
    // SAFETY: places for two numbers.
    ok(unsafe { sys::cuMemGetAddressRange_v2(&mut base, &mut bytes, address + 100) });
    assert_eq!((base, bytes), (address, 4096));
    free(address);
    assert_ne!(look_up(c"cuMemFreeAsync", 0), look_up(c"cuMemFreeAsync", 2), "one for each meaning of the null stream");
}

#[test]
#[ignore = "needs a GPU"]
fn a_program_on_cudarc_runs_as_it_is() {
    if !in_front("a_program_on_cudarc_runs_as_it_is") {
        return;
    }
    let context = begin();
    for stream in [context.default_stream(), context.per_thread_stream(), context.new_stream().unwrap()] {
        for round in 0..100 {
            let numbers: Vec<u32> = (0..10_000 + round).collect();
            let copy = stream.clone_htod(&numbers).unwrap();
            let zeros = stream.alloc_zeros::<u32>(numbers.len()).unwrap();
            assert_eq!(stream.clone_dtoh(&copy).unwrap(), numbers);
            assert!(stream.clone_dtoh(&zeros).unwrap().iter().all(|&number| number == 0));
        }
    }
}
