//! The real driver and the system, called safely.
//!
//! The real driver is opened by its file's name, `libcuda.so.1`, which this library does not have: what is looked up
//! there is never one of the functions that this library puts in front. Three invariants carry the unsafe code:
//!
//! - **signature**: the types in [`Real`] are those of the driver's header; handles are numbers of the size of a pointer.
//! - **numbers**: the driver checks handles as far as it can; a handle comes from the program, which promised the driver
//!   that it is alive, or was made here.
//! - **out**: a place for an answer is a local variable that lives through the call.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use cudarc::driver::{CudaContext, CudaStream};

/// What the driver's functions answer.
pub(crate) type Answer = c_int;

/// A call succeeded.
pub(crate) const SUCCESS: Answer = 0;
/// No memory.
pub(crate) const OUT_OF_MEMORY: Answer = 2;
/// The driver has no such function.
const NOT_FOUND: Answer = 500;
/// Something failed inside of this library.
pub(crate) const UNKNOWN: Answer = 999;

/// The legacy default stream.
pub(crate) const LEGACY: usize = 0;
/// The other handle of the legacy default stream.
pub(crate) const LEGACY_BY_NAME: usize = 1;
/// The calling thread's default stream.
pub(crate) const PER_THREAD: usize = 2;

const EVENT_WITHOUT_TIMING: u32 = 2;
const CAPTURE_STATUS_NONE: c_int = 0;

unsafe extern "C" {
    fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
    fn atexit(handler: extern "C" fn()) -> c_int;
    fn pthread_atfork(
        before: Option<extern "C" fn()>,
        in_parent: Option<extern "C" fn()>,
        in_child: Option<extern "C" fn()>,
    ) -> c_int;
    fn signal(number: c_int, handler: usize) -> usize;
    fn pipe(ends: *mut c_int) -> c_int;
    fn read(file: c_int, buffer: *mut c_void, bytes: usize) -> isize;
    fn write(file: c_int, buffer: *const c_void, bytes: usize) -> isize;
}

const RTLD_NOW: c_int = 2;
/// The libraries behind this one.
const RTLD_NEXT: *mut c_void = usize::MAX as *mut c_void;
const SIGUSR1: c_int = 10;

macro_rules! functions {
    ($($name:ident($($argument:ident: $kind:ty),*);)*) => {
        /// The functions of the real driver that are called from here.
        #[derive(Default)]
        #[allow(non_snake_case, reason = "the driver's names")]
        pub(crate) struct Real {
            $($name: Option<unsafe extern "C" fn($($kind),*) -> Answer>,)*
        }

        #[allow(non_snake_case, reason = "the driver's names")]
        impl Real {
            fn load(library: *mut c_void) -> Self {
                Real { $($name: {
                    let name = concat!(stringify!($name), "\0");
                    // SAFETY: the library is open and the name ends with zero.
                    let found = unsafe { dlsym(library, name.as_ptr().cast()) };
                    // SAFETY: signature; null is `None`.
                    unsafe { std::mem::transmute::<*mut c_void, Option<unsafe extern "C" fn($($kind),*) -> Answer>>(found) }
                },)* }
            }

            $(
                /// The driver's function of this name.
                ///
                /// # Safety
                /// As the driver's header says.
                pub(crate) unsafe fn $name(&self, $($argument: $kind),*) -> Answer {
                    match self.$name {
                        // SAFETY: the caller's.
                        Some(function) => unsafe { function($($argument),*) },
                        None => NOT_FOUND,
                    }
                }
            )*
        }
    };
}

functions! {
    cuMemAlloc_v2(out: *mut u64, bytes: usize);
    cuMemFree_v2(address: u64);
    cuMemAllocAsync(out: *mut u64, bytes: usize, stream: usize);
    cuMemAllocAsync_ptsz(out: *mut u64, bytes: usize, stream: usize);
    cuMemAllocFromPoolAsync(out: *mut u64, bytes: usize, pool: usize, stream: usize);
    cuMemAllocFromPoolAsync_ptsz(out: *mut u64, bytes: usize, pool: usize, stream: usize);
    cuMemFreeAsync(address: u64, stream: usize);
    cuMemFreeAsync_ptsz(address: u64, stream: usize);
    cuMemGetInfo_v2(free: *mut usize, total: *mut usize);
    cuMemGetAddressRange_v2(base: *mut u64, bytes: *mut usize, address: u64);
    cuDeviceGetMemPool(pool: *mut usize, device: c_int);
    cuDeviceGetDefaultMemPool(pool: *mut usize, device: c_int);
    cuStreamCreate(stream: *mut usize, flags: u32);
    cuStreamCreateWithPriority(stream: *mut usize, flags: u32, priority: c_int);
    cuGreenCtxStreamCreate(stream: *mut usize, context: usize, flags: u32, priority: c_int);
    cuStreamDestroy_v2(stream: usize);
    cuStreamGetId(stream: usize, id: *mut u64);
    cuStreamGetCtx(stream: usize, context: *mut usize);
    cuStreamSynchronize(stream: usize);
    cuStreamIsCapturing(stream: usize, status: *mut c_int);
    cuStreamWaitEvent(stream: usize, event: usize, flags: u32);
    cuEventCreate(event: *mut usize, flags: u32);
    cuEventRecord(event: usize, stream: usize);
    cuEventDestroy_v2(event: usize);
    cuCtxGetCurrent(context: *mut usize);
    cuCtxSetCurrent(context: usize);
    cuCtxGetDevice(device: *mut c_int);
    cuCtxSynchronize();
    cuCtxDestroy_v2(context: usize);
    cuDevicePrimaryCtxGetState(device: c_int, flags: *mut u32, active: *mut c_int);
    cuDevicePrimaryCtxReset_v2(device: c_int);
    cuGetProcAddress(name: *const c_char, out: *mut usize, version: c_int, flags: u64);
    cuGetProcAddress_v2(name: *const c_char, out: *mut usize, version: c_int, flags: u64, status: *mut c_int);
}

/// The real driver. Without one every function answers that it is not there.
pub(crate) fn real() -> &'static Real {
    static REAL: OnceLock<Real> = OnceLock::new();
    REAL.get_or_init(|| {
        let library = open(c"libcuda.so.1");
        if library.is_null() { Real::default() } else { Real::load(library) }
    })
}

/// The system's `dlopen`, past the one in front.
pub(crate) extern "C" fn real_dlopen() -> usize {
    static FOUND: AtomicUsize = AtomicUsize::new(0);
    let known = FOUND.load(Ordering::Relaxed);
    if known != 0 {
        return known;
    }
    // SAFETY: the name ends with zero.
    let found = unsafe { dlsym(RTLD_NEXT, c"dlopen".as_ptr()) } as usize;
    assert!(found != 0, "the system can open libraries");
    FOUND.store(found, Ordering::Relaxed);
    found
}

/// Opens a library, or finds it open. Null when it is not there.
fn open(name: &CStr) -> *mut c_void {
    let dlopen = real_dlopen();
    // SAFETY: it was found under the name of the function that has this type.
    let dlopen = unsafe { std::mem::transmute::<usize, extern "C" fn(*const c_char, c_int) -> *mut c_void>(dlopen) };
    dlopen(name.as_ptr(), RTLD_NOW)
}

/// This library, as whoever opens the driver by this library's name gets it.
pub(crate) fn this_library() -> *mut c_void {
    open(c"libcuda.so")
}

/// The context that is current in this thread.
pub(crate) fn current_context() -> Option<usize> {
    let mut context = 0;
    // SAFETY: out.
    let answer = unsafe { real().cuCtxGetCurrent(&mut context) };
    (answer == SUCCESS && context != 0).then_some(context)
}

/// Makes a context current.
pub(crate) fn set_current_context(context: usize) {
    // SAFETY: numbers; it was current before.
    let _ = unsafe { real().cuCtxSetCurrent(context) };
}

/// The device of the current context.
pub(crate) fn current_device() -> Option<c_int> {
    let mut device = 0;
    // SAFETY: out.
    let answer = unsafe { real().cuCtxGetDevice(&mut device) };
    (answer == SUCCESS).then_some(device)
}

/// Whether the device has a primary context now. Asking does not make one.
pub(crate) fn has_primary_context(device: c_int) -> bool {
    let (mut flags, mut active) = (0, 0);
    // SAFETY: out, both.
    let answer = unsafe { real().cuDevicePrimaryCtxGetState(device, &mut flags, &mut active) };
    answer == SUCCESS && active != 0
}

/// Blocks the host until the current context has nothing more to do.
pub(crate) fn synchronize() -> Answer {
    // SAFETY: it has no arguments.
    unsafe { real().cuCtxSynchronize() }
}

/// Blocks the host until a stream has nothing more to do.
pub(crate) fn synchronize_stream(stream: usize) -> Answer {
    // SAFETY: numbers.
    unsafe { real().cuStreamSynchronize(stream) }
}

/// Whether a pool is what requests without a pool come from on this device.
pub(crate) fn is_own_pool(pool: usize, device: c_int) -> bool {
    let (mut current, mut default) = (0, 0);
    // SAFETY: out.
    let known = unsafe { real().cuDeviceGetMemPool(&mut current, device) };
    // SAFETY: out.
    let known_default = unsafe { real().cuDeviceGetDefaultMemPool(&mut default, device) };
    (known == SUCCESS && pool == current) || (known_default == SUCCESS && pool == default)
}

/// The driver's id of a stream; of a per-thread one, that of the calling thread's.
pub(crate) fn stream_id(stream: usize) -> Option<u64> {
    let mut id = 0;
    // SAFETY: numbers, out.
    let answer = unsafe { real().cuStreamGetId(stream, &mut id) };
    (answer == SUCCESS).then_some(id)
}

/// The context of a stream.
pub(crate) fn stream_context(stream: usize) -> Option<usize> {
    let mut context = 0;
    // SAFETY: numbers, out.
    let answer = unsafe { real().cuStreamGetCtx(stream, &mut context) };
    (answer == SUCCESS).then_some(context)
}

/// Whether a stream captures.
pub(crate) fn is_capturing(stream: usize) -> bool {
    let mut status = CAPTURE_STATUS_NONE;
    // SAFETY: numbers, out.
    let answer = unsafe { real().cuStreamIsCapturing(stream, &mut status) };
    answer == SUCCESS && status != CAPTURE_STATUS_NONE
}

/// Holds `follower` back until everything that `leader` was given so far is complete.
///
/// # Errors
/// The driver's answer.
pub(crate) fn hold_back(follower: &CudaStream, leader: usize) -> Result<(), Answer> {
    let mut event = 0;
    // SAFETY: out.
    check(unsafe { real().cuEventCreate(&mut event, EVENT_WITHOUT_TIMING) })?;
    // SAFETY: numbers; the event was made just now.
    let recorded = check(unsafe { real().cuEventRecord(event, leader) });
    // SAFETY: as above, and the reference keeps the follower alive.
    let held =
        recorded.and_then(|()| check(unsafe { real().cuStreamWaitEvent(follower.cu_stream() as usize, event, 0) }));
    // SAFETY: made here and gone now; the driver keeps what the wait needs.
    let _ = unsafe { real().cuEventDestroy_v2(event) };
    held
}

fn check(answer: Answer) -> Result<(), Answer> {
    if answer == SUCCESS { Ok(()) } else { Err(answer) }
}

/// A stream of the program, for the device; it is never destroyed from here. Whoever destroys it has to make the device
/// forget it first.
pub(crate) fn borrow_stream(context: &Arc<CudaContext>, stream: usize) -> Arc<CudaStream> {
    // SAFETY: numbers: it is of this context (the device checks what it is told), and the program's destruction of it
    // comes through this library, which lets go of it first.
    unsafe { context.wrap_borrowed_stream(stream as _) }
}

/// The primary context of a device.
///
/// # Errors
/// The driver's answer.
pub(crate) fn primary_context(ordinal: u32) -> Result<Arc<CudaContext>, u32> {
    let context = CudaContext::new(ordinal as usize).map_err(|error| error.0 as u32)?;
    // SAFETY: no memory is made through this context's wrapper, so none needs the events. With them the first stream
    // would wait for the whole context, and break a capture.
    unsafe { context.disable_event_tracking() };
    Ok(context)
}

/// The handle of a context.
pub(crate) fn context_handle(context: &CudaContext) -> usize {
    context.cu_ctx() as usize
}

/// Stores an answer where the program wants it.
///
/// # Safety
/// Null, or a place that the program lent for this call.
pub(crate) unsafe fn store<T>(place: *mut T, value: T) {
    if !place.is_null() {
        // SAFETY: the caller's.
        unsafe { place.write(value) };
    }
}

/// A name that the program gave; empty when it is none.
///
/// # Safety
/// Null, or text that ends with zero and lives as long as the answer is used.
pub(crate) unsafe fn text<'a>(name: *const c_char) -> &'a str {
    if name.is_null() {
        return "";
    }
    // SAFETY: the caller's.
    unsafe { CStr::from_ptr(name) }.to_str().unwrap_or("")
}

/// Calls `handler` when the process exits; it comes before the driver's own handlers if the driver is in use already.
pub(crate) fn at_exit(handler: extern "C" fn()) {
    // SAFETY: the handler lives as long as this library, which is never unloaded.
    let _ = unsafe { atexit(handler) };
}

/// Calls `handler` in every child that is forked off.
pub(crate) fn in_forked_children(handler: extern "C" fn()) {
    // SAFETY: as above; the handler only sets a flag.
    let _ = unsafe { pthread_atfork(None, None, Some(handler)) };
}

/// The end of the pipe that the signal's handler writes to.
static WAKE: AtomicI32 = AtomicI32::new(-1);

extern "C" fn wake(_signal: c_int) {
    // SAFETY: writing one byte to an open file is allowed in a handler; a full pipe wakes the reader anyway.
    let _ = unsafe { write(WAKE.load(Ordering::Relaxed), c"!".as_ptr().cast(), 1) };
}

/// What waits for the signal `SIGUSR1`.
pub(crate) struct Signal {
    read_end: c_int,
}

impl Signal {
    /// Takes the signal over, unless the program has.
    pub(crate) fn take_over() -> Option<Self> {
        let mut ends = [-1; 2];
        // SAFETY: out: two numbers.
        if unsafe { pipe(ends.as_mut_ptr()) } != 0 {
            return None;
        }
        WAKE.store(ends[1], Ordering::Relaxed);
        let handler: extern "C" fn(c_int) = wake;
        // SAFETY: the handler does what handlers may, and stays.
        let before = unsafe { signal(SIGUSR1, handler as usize) };
        if before != 0 {
            // SAFETY: it was the program's handler.
            let _ = unsafe { signal(SIGUSR1, before) };
            return None;
        }
        Some(Signal { read_end: ends[0] })
    }

    /// Blocks until the signal comes. Whether it came.
    pub(crate) fn wait(&self) -> bool {
        let mut byte = 0u8;
        loop {
            // SAFETY: out: one byte.
            let got = unsafe { read(self.read_end, (&raw mut byte).cast(), 1) };
            let interrupted = got < 0 && std::io::Error::last_os_error().kind() == std::io::ErrorKind::Interrupted;
            if !interrupted {
                return got == 1;
            }
        }
    }
}
