//! The driver's library with this allocator inside, for CUDA programs that know nothing of it.
//!
//! `libcuda.so` is put in front of the driver, by `LD_PRELOAD` or first in `LD_LIBRARY_PATH`. It serves the requests for
//! device memory from an allocator for each GPU and leaves everything else to the real `libcuda.so.1`, which it depends
//! on: a symbol that is not replaced is found there.
//!
//! | variable | meaning |
//! |---|---|
//! | `HIGHWATER_SHIM_OFF` | `1`: everything is left to the driver |
//! | `HIGHWATER_SHIM_OUT` | a folder for `stats.jsonl` and `snapshot.pickle`, written at the exit and at `SIGUSR1` |
//! | `HIGHWATER_ALLOC_CONF` | the allocator's settings |
//!
//! What differs from the driver's own memory: other processes and other GPUs cannot map it (no `cuIpcGetMemHandle`, no
//! peer access), and the driver's pools do not count it.
//!
//! The files: `ffi` calls the driver and the system, `exports` holds the functions in front (these two hold all unsafe
//! code), `shim` decides who serves a call, `gpu` and `device` put the program's streams on the allocator, `inside` keeps
//! the library's own calls apart, `counts` and `output` tell of the run.

mod counts;
mod device;
mod exports;
mod ffi;
mod gpu;
mod inside;
mod output;
mod shim;
