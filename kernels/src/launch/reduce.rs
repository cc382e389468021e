//! Sums over the ranks of one process, whose memory belongs to several allocators.

use highwater::device::cuda::CudaDevice;
use highwater::device::{Address, DeviceError, DeviceResult, DriverStream};

use crate::cuda::{BuildError, Library, Module, Program, Scalar};
use crate::host::Update;

/// The most sources of one launch.
pub const MOST_SOURCES: usize = 8;

/// Submits to a GPU's stream: `out` = the sum of `sources`, each of `elements` f32, one after the other from the first
/// on (stored, or added to what is there, one source after the other). Many sources take several launches.
///
/// It is for the body of a launch that declares the memory: no use is recorded here, and all of it must be accessible
/// to the device. `out` may be the same memory as one of the first [`MOST_SOURCES`] sources.
///
/// # Errors
/// When the kernel cannot be had, or the device fails.
pub fn sum_ranks_on_gpu(
    device: &CudaDevice,
    stream: DriverStream,
    out: Address,
    sources: &[Address],
    elements: usize,
    update: Update,
) -> DeviceResult<()> {
    let failed =
        |error: BuildError| DeviceError::Missing { library: "the kernel sum_ranks".into(), what: error.to_string() };
    let library = Library::of(device).map_err(failed)?;
    // Without any source the sum is zero: that takes a launch too.
    let first = &sources[..sources.len().min(MOST_SOURCES)];
    let rest = sources[first.len()..].chunks(MOST_SOURCES);
    for (index, part) in std::iter::once(first).chain(rest).enumerate() {
        let accumulate = index > 0 || update == Update::Accumulate;
        let program = Program::elementwise(Module::Reduce, "sum_ranks_f32", elements, 1024)
            .scalar(Scalar::Count(part.len()))
            .flag(accumulate);
        let mut pointers = vec![out.0];
        pointers.extend(part.iter().map(|source| source.0));
        pointers.resize(1 + MOST_SOURCES, 0);
        program.load(&library).map_err(failed)?.submit(stream, &pointers)?;
    }
    Ok(())
}
