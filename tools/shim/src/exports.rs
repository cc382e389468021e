//! The functions in front of the driver's, under its names.
//!
//! No panic leaves them. A thread that is inside the library already is passed on to the driver.
//!
//! **driver**: each function has the driver's signature and asks of its caller what the driver asks: places for answers
//! are null or lent for the call, handles are alive.
#![allow(unsafe_code)]
#![allow(non_snake_case, reason = "the driver's names")]

use std::ffi::{c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;

use crate::counts::count;
use crate::ffi::{Answer, SUCCESS, UNKNOWN, real, store, text};
use crate::shim::{Shim, shim};
use crate::{ffi, inside};

fn is_off() -> bool {
    static OFF: OnceLock<bool> = OnceLock::new();
    *OFF.get_or_init(|| std::env::var_os("HIGHWATER_SHIM_OFF").is_some_and(|value| value == "1"))
}

/// Serves a call here, or leaves it to the driver when that is off, impossible, or what `serve` wants.
fn serve(serve: impl FnOnce(&Shim) -> Option<Answer>, forward: impl FnOnce() -> Answer) -> Answer {
    if inside::is_inside() || is_off() || shim().is_over() {
        return forward();
    }
    let _inside = inside::enter();
    match catch_unwind(AssertUnwindSafe(|| serve(shim()))) {
        Ok(Some(answer)) => answer,
        Ok(None) => forward(),
        Err(_) => UNKNOWN,
    }
}

/// A request or a free; those that the driver serves are counted.
fn serve_memory(serve_here: impl FnOnce(&Shim) -> Option<Answer>, forward: impl FnOnce() -> Answer) -> Answer {
    let here = |shim: &Shim| {
        serve_here(shim).or_else(|| {
            count(&shim.counts.forwarded);
            None
        })
    };
    serve(here, forward)
}

/// Serves a request: stores the address.
///
/// # Safety
/// driver.
unsafe fn request(
    out: *mut u64,
    here: impl FnOnce(&Shim) -> Option<Result<u64, Answer>>,
    forward: impl FnOnce() -> Answer,
) -> Answer {
    let here = |shim: &Shim| match here(shim)? {
        Ok(address) => {
            // SAFETY: the caller's.
            unsafe { store(out, address) };
            Some(SUCCESS)
        }
        Err(answer) => Some(answer),
    };
    // A null place is refused by the driver.
    serve_memory(|shim| if out.is_null() { None } else { here(shim) }, forward)
}

/// After the end blocks are forgotten here: the driver has never heard of them.
fn free(address: u64, here: impl FnOnce(&Shim) -> Option<Answer>, forward: impl FnOnce() -> Answer) -> Answer {
    if !inside::is_inside() && shim().is_over() && shim().forget(address) {
        return SUCCESS;
    }
    serve_memory(here, forward)
}

/// The stream that a handle means: the null handle is the legacy default stream, or in the variants for per-thread
/// streams the thread's.
fn meant(stream: usize, null: usize) -> usize {
    match stream {
        0 => null,
        ffi::LEGACY_BY_NAME => ffi::LEGACY,
        other => other,
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemAlloc_v2(out: *mut u64, bytes: usize) -> Answer {
    // SAFETY: driver.
    unsafe { request(out, |shim| shim.alloc(bytes as u64), || real().cuMemAlloc_v2(out, bytes)) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemFree_v2(address: u64) -> Answer {
    // SAFETY: driver.
    free(address, |shim| shim.free(address), || unsafe { real().cuMemFree_v2(address) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemAllocAsync(out: *mut u64, bytes: usize, stream: usize) -> Answer {
    let on = meant(stream, ffi::LEGACY);
    // SAFETY: driver.
    unsafe { request(out, |shim| shim.alloc_on(bytes as u64, on), || real().cuMemAllocAsync(out, bytes, stream)) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemAllocAsync_ptsz(out: *mut u64, bytes: usize, stream: usize) -> Answer {
    let on = meant(stream, ffi::PER_THREAD);
    // SAFETY: driver.
    unsafe { request(out, |shim| shim.alloc_on(bytes as u64, on), || real().cuMemAllocAsync_ptsz(out, bytes, stream)) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemAllocFromPoolAsync(out: *mut u64, bytes: usize, pool: usize, stream: usize) -> Answer {
    let on = meant(stream, ffi::LEGACY);
    let here = |shim: &Shim| shim.alloc_from(bytes as u64, pool, on);
    // SAFETY: driver.
    unsafe { request(out, here, || real().cuMemAllocFromPoolAsync(out, bytes, pool, stream)) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemAllocFromPoolAsync_ptsz(out: *mut u64, bytes: usize, pool: usize, stream: usize) -> Answer {
    let on = meant(stream, ffi::PER_THREAD);
    let here = |shim: &Shim| shim.alloc_from(bytes as u64, pool, on);
    // SAFETY: driver.
    unsafe { request(out, here, || real().cuMemAllocFromPoolAsync_ptsz(out, bytes, pool, stream)) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemFreeAsync(address: u64, stream: usize) -> Answer {
    let on = meant(stream, ffi::LEGACY);
    // SAFETY: driver.
    free(address, |shim| shim.free_on(address, on), || unsafe { real().cuMemFreeAsync(address, stream) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemFreeAsync_ptsz(address: u64, stream: usize) -> Answer {
    let on = meant(stream, ffi::PER_THREAD);
    // SAFETY: driver.
    free(address, |shim| shim.free_on(address, on), || unsafe { real().cuMemFreeAsync_ptsz(address, stream) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) -> Answer {
    // SAFETY: driver.
    let forward = || unsafe { real().cuMemGetInfo_v2(free, total) };
    let here = |shim: &Shim| {
        let cached = usize::try_from(shim.cached_bytes()?).unwrap_or(usize::MAX);
        let (mut real_free, mut real_total) = (0, 0);
        // SAFETY: two places for answers.
        let answer = unsafe { real().cuMemGetInfo_v2(&mut real_free, &mut real_total) };
        if answer == SUCCESS {
            // SAFETY: driver.
            unsafe { store(free, real_free.saturating_add(cached).min(real_total)) };
            // SAFETY: driver.
            unsafe { store(total, real_total) };
        }
        Some(answer)
    };
    serve(here, forward)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemGetAddressRange_v2(base: *mut u64, bytes: *mut usize, address: u64) -> Answer {
    let here = |shim: &Shim| {
        let (block_base, block_bytes) = shim.block_at(address)?;
        // SAFETY: driver.
        unsafe { store(base, block_base) };
        // SAFETY: driver.
        unsafe { store(bytes, usize::try_from(block_bytes).expect("addresses fit")) };
        Some(SUCCESS)
    };
    // SAFETY: driver.
    serve(here, || unsafe { real().cuMemGetAddressRange_v2(base, bytes, address) })
}

/// Makes a stream and gets to know it.
///
/// # Safety
/// driver.
unsafe fn make_stream(out: *mut usize, make: impl Fn() -> Answer) -> Answer {
    let here = |shim: &Shim| {
        let answer = make();
        if answer == SUCCESS && !out.is_null() {
            // SAFETY: the driver has stored a handle there just now.
            shim.stream_made(unsafe { out.read() });
        }
        Some(answer)
    };
    serve(here, &make)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuStreamCreate(out: *mut usize, flags: u32) -> Answer {
    // SAFETY: driver.
    unsafe { make_stream(out, || real().cuStreamCreate(out, flags)) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuStreamCreateWithPriority(out: *mut usize, flags: u32, priority: c_int) -> Answer {
    // SAFETY: driver.
    unsafe { make_stream(out, || real().cuStreamCreateWithPriority(out, flags, priority)) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuGreenCtxStreamCreate(out: *mut usize, context: usize, flags: u32, priority: c_int) -> Answer {
    // SAFETY: driver.
    unsafe { make_stream(out, || real().cuGreenCtxStreamCreate(out, context, flags, priority)) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuStreamDestroy_v2(stream: usize) -> Answer {
    let here = |shim: &Shim| {
        // The default streams are refused.
        if stream > ffi::PER_THREAD {
            shim.stream_ends(stream);
        }
        None
    };
    // SAFETY: driver.
    serve(here, || unsafe { real().cuStreamDestroy_v2(stream) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuCtxDestroy_v2(context: usize) -> Answer {
    let here = |shim: &Shim| {
        shim.context_ends(context);
        None
    };
    // SAFETY: driver.
    serve(here, || unsafe { real().cuCtxDestroy_v2(context) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDevicePrimaryCtxReset_v2(device: c_int) -> Answer {
    let here = |shim: &Shim| {
        shim.device_resets(device);
        None
    };
    // SAFETY: driver.
    serve(here, || unsafe { real().cuDevicePrimaryCtxReset_v2(device) })
}

/// For callers that ask for the variants for per-thread default streams.
const PER_THREAD_VARIANTS: u64 = 2;

/// The function in front of what the driver finds under a name, if there is one. The driver has a name for each function
/// and picks the variant by the version of CUDA that the caller was made for; older ones are left to it.
fn in_front(name: &str, version: c_int, flags: u64) -> Option<usize> {
    let per_thread = flags & PER_THREAD_VARIANTS != 0;
    let (since, function) = match name {
        "cuMemAlloc" => (3020, cuMemAlloc_v2 as *const () as usize),
        "cuMemFree" => (3020, cuMemFree_v2 as *const () as usize),
        "cuMemGetInfo" => (3020, cuMemGetInfo_v2 as *const () as usize),
        "cuMemGetAddressRange" => (3020, cuMemGetAddressRange_v2 as *const () as usize),
        "cuMemAllocAsync" if per_thread => (11020, cuMemAllocAsync_ptsz as *const () as usize),
        "cuMemAllocAsync" => (11020, cuMemAllocAsync as *const () as usize),
        "cuMemAllocFromPoolAsync" if per_thread => (11020, cuMemAllocFromPoolAsync_ptsz as *const () as usize),
        "cuMemAllocFromPoolAsync" => (11020, cuMemAllocFromPoolAsync as *const () as usize),
        "cuMemFreeAsync" if per_thread => (11020, cuMemFreeAsync_ptsz as *const () as usize),
        "cuMemFreeAsync" => (11020, cuMemFreeAsync as *const () as usize),
        "cuStreamCreate" => (2000, cuStreamCreate as *const () as usize),
        "cuStreamCreateWithPriority" => (5050, cuStreamCreateWithPriority as *const () as usize),
        "cuGreenCtxStreamCreate" => (12050, cuGreenCtxStreamCreate as *const () as usize),
        "cuStreamDestroy" => (4000, cuStreamDestroy_v2 as *const () as usize),
        "cuCtxDestroy" => (4000, cuCtxDestroy_v2 as *const () as usize),
        "cuDevicePrimaryCtxReset" => (11000, cuDevicePrimaryCtxReset_v2 as *const () as usize),
        "cuGetProcAddress" if version >= 12000 => (12000, cuGetProcAddress_v2 as *const () as usize),
        "cuGetProcAddress" => (11030, cuGetProcAddress as *const () as usize),
        _ => return None,
    };
    (version >= since).then_some(function)
}

/// Puts the function in front where the driver has stored its own.
///
/// # Safety
/// driver; the driver has answered with success.
unsafe fn put_in_front(name: *const c_char, out: *mut usize, version: c_int, flags: u64) {
    // SAFETY: driver.
    let name = unsafe { text(name) };
    // SAFETY: the driver has stored an address there, or null for a function that it lacks.
    if out.is_null() || unsafe { out.read() } == 0 {
        return;
    }
    if let Some(function) = in_front(name, version, flags) {
        count(&shim().counts.looked_up);
        // SAFETY: driver.
        unsafe { store(out, function) };
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuGetProcAddress(name: *const c_char, out: *mut usize, version: c_int, flags: u64) -> Answer {
    // SAFETY: driver.
    let answer = unsafe { real().cuGetProcAddress(name, out, version, flags) };
    if answer == SUCCESS && !is_off() {
        // SAFETY: driver.
        unsafe { put_in_front(name, out, version, flags) };
    }
    answer
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuGetProcAddress_v2(
    name: *const c_char,
    out: *mut usize,
    version: c_int,
    flags: u64,
    status: *mut c_int,
) -> Answer {
    // SAFETY: driver.
    let answer = unsafe { real().cuGetProcAddress_v2(name, out, version, flags, status) };
    if answer == SUCCESS && !is_off() {
        // SAFETY: driver.
        unsafe { put_in_front(name, out, version, flags) };
    }
    answer
}

/// Whoever opens the driver by its file's name gets this library, as long as it is preloaded: the runtime library does,
/// and asks the driver it got for all functions. Other libraries are opened by the system as if nothing were in between:
/// where it looks depends on who calls, so the call is passed on with the caller's return address in place.
#[cfg(target_arch = "x86_64")]
#[unsafe(no_mangle)]
#[unsafe(naked)]
unsafe extern "C" fn dlopen(name: *const c_char, flags: c_int) -> *mut c_void {
    std::arch::naked_asm!(
        "push rdi",
        "push rsi",
        "sub rsp, 8",
        "call {opened}",
        "mov [rsp], rax",
        "call {system}",
        "mov r11, rax",
        "pop rax",
        "pop rsi",
        "pop rdi",
        "test rax, rax",
        "jnz 2f",
        "jmp r11",
        "2:",
        "ret",
        opened = sym opened_in_front,
        system = sym ffi::real_dlopen,
    )
}

/// This library if `name` is the driver's, else null.
#[cfg(target_arch = "x86_64")]
unsafe extern "C" fn opened_in_front(name: *const c_char) -> *mut c_void {
    // SAFETY: driver: null or text, as `dlopen` asks for.
    let name = unsafe { text(name) };
    let is_driver = name.rsplit('/').next() == Some("libcuda.so.1");
    if is_driver && !is_off() { ffi::this_library() } else { std::ptr::null_mut() }
}
