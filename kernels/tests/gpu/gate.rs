//! Holds a stream of a GPU back until the test lets it go on.
//!
//! The stream waits for a number in host memory. Such a stream would have to be marked open, were it not the test itself
//! that writes the number, whatever comes of it: a gate is opened when it is dropped.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::sync::atomic::{AtomicU32, Ordering};

use cudarc::driver::sys;
use highwater::Stream;

/// What a stream waits for.
pub(crate) struct Gate {
    open: &'static AtomicU32,
}

impl Gate {
    /// Whatever `stream` is given from now on executes after the gate is opened.
    pub(crate) fn close(stream: &Stream) -> Self {
        let cuda = stream.cuda_stream().expect("it is a stream of a GPU");
        cuda.context().bind_to_thread().unwrap();
        let (mut word, mut address): (*mut c_void, u64) = (std::ptr::null_mut(), 0);
        // SAFETY: the context is bound; a place for one address of the host.
        ok(unsafe { sys::cuMemHostAlloc(&mut word, 4, sys::CU_MEMHOSTALLOC_DEVICEMAP) });
        // SAFETY: a place for one address of the device, of memory that was allocated just now.
        ok(unsafe { sys::cuMemHostGetDevicePointer_v2(&mut address, word, 0) });
        // SAFETY: four bytes, aligned to a page, that are never freed; only atomic accesses touch them.
        let open: &'static AtomicU32 = unsafe { &*word.cast() };
        open.store(0, Ordering::SeqCst);
        // SAFETY: the stream is alive, and the word is never freed. Flags 0: the number is at least 1.
        ok(unsafe { sys::cuStreamWaitValue32_v2(cuda.cu_stream(), address, 1, 0) });
        Gate { open }
    }

    pub(crate) fn open(self) {
        drop(self);
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.open.store(1, Ordering::SeqCst);
    }
}

fn ok(answer: sys::CUresult) {
    assert_eq!(answer, sys::CUresult::CUDA_SUCCESS);
}
