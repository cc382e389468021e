//! Kernels on a GPU: compiled when first used, kept on disk, and launched with what the operation declared.
//!
//! The sources are in `kernels/cu`. `compile` turns a file into machine code by CUDA's run-time compiler (`nvrtc`), and
//! `cache` keeps it; `library` is what is loaded for a device; `launch` describes and launches kernels; `matmul` is
//! cuBLASLt. Unsafe code stands in `nvrtc`, `launch` and `matmul` alone.

mod cache;
mod compile;
mod error;
mod launch;
mod library;
mod matmul;
mod nvrtc;

use highwater::device::cuda::CudaDevice;

pub use compile::{CompiledEntry, compile_all, header_folder};
pub use error::BuildError;
pub use matmul::cublaslt_version;

pub(crate) use compile::Module;
#[cfg(test)]
pub(crate) use launch::Launch;
pub(crate) use launch::{Program, Scalar, copy, zero};
pub(crate) use library::Library;
pub(crate) use matmul::{ElementType, Kind};

/// The compiler's version, major and minor.
///
/// # Errors
/// [`BuildError::Missing`] when it is not there.
pub fn nvrtc_version() -> Result<(i32, i32), BuildError> {
    nvrtc::version()
}

/// Compiles and loads everything now, so that no operation has to wait for it later, and none does it inside a capture.
///
/// # Errors
/// The first thing that is missing or does not compile.
pub fn prepare(device: &CudaDevice) -> Result<(), BuildError> {
    Library::of(device)?.load_all()
}
