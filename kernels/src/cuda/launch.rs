//! Launching kernels: what is launched as data, and the one call that launches.
#![allow(unsafe_code)]

use std::borrow::Cow;
use std::ffi::c_void;

use cudarc::driver::{CudaFunction, DriverError, sys};
use highwater::device::cuda::check_answer;
use highwater::device::{DeviceCall, DeviceResult, DriverStream};

use super::BuildError;
use super::compile::Module;
use super::library::{Function, Library};

/// The most blocks along one axis that any grid here asks for. Kernels walk on when there are fewer than elements.
const MOST_BLOCKS: usize = 65_535;

/// One kernel and its grid.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Launch {
    pub(crate) module: Module,
    pub(crate) entry: Cow<'static, str>,
    /// Blocks.
    pub(crate) grid: (u32, u32),
    /// Threads of a block.
    pub(crate) block: u32,
    /// Dynamic shared memory of a block, bytes.
    pub(crate) shared_bytes: u32,
}

/// A parameter that is no pointer.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Scalar {
    /// `unsigned long long`.
    Size(usize),
    /// `int`.
    Flag(bool),
    /// `int`.
    Count(usize),
    /// `float`.
    Real(f64),
}

/// The GPU side of an operation: kernels that are launched one after the other, all with the same parameters: the
/// operands' addresses in the order of their declaration, those of scratch, and the scalars.
#[derive(Clone, PartialEq, Debug, Default)]
pub(crate) struct Program {
    pub(crate) launches: Vec<Launch>,
    /// Elements of each piece of scratch, f32.
    pub(crate) scratch: Vec<usize>,
    pub(crate) scalars: Vec<Scalar>,
}

impl Program {
    /// One kernel whose threads take a few elements each: `per_block` in a block of `block` threads.
    pub(crate) fn elementwise(
        module: Module,
        entry: impl Into<Cow<'static, str>>,
        elements: usize,
        per_block: usize,
    ) -> Self {
        Program::default().launch(module, entry, (elements.div_ceil(per_block), 1), 256, 0).size(elements)
    }

    pub(crate) fn launch(
        mut self,
        module: Module,
        entry: impl Into<Cow<'static, str>>,
        grid: (usize, usize),
        block: u32,
        shared_bytes: usize,
    ) -> Self {
        let blocks = |blocks: usize| u32::try_from(blocks.clamp(1, MOST_BLOCKS)).expect("it is below the limit");
        let shared_bytes = u32::try_from(shared_bytes).unwrap_or(u32::MAX);
        let grid = (blocks(grid.0), blocks(grid.1));
        self.launches.push(Launch { module, entry: entry.into(), grid, block, shared_bytes });
        self
    }

    /// As [`launch`](Program::launch), with exactly this many blocks in a row.
    pub(crate) fn launch_exactly(
        mut self,
        module: Module,
        entry: impl Into<Cow<'static, str>>,
        blocks: usize,
        block: u32,
        shared_bytes: usize,
    ) -> Self {
        let shared_bytes = u32::try_from(shared_bytes).unwrap_or(u32::MAX);
        let blocks = u32::try_from(blocks).unwrap_or(u32::MAX);
        self.launches.push(Launch { module, entry: entry.into(), grid: (blocks, 1), block, shared_bytes });
        self
    }

    pub(crate) fn scratch(mut self, elements: usize) -> Self {
        self.scratch.push(elements);
        self
    }

    pub(crate) fn size(self, size: usize) -> Self {
        self.scalar(Scalar::Size(size))
    }

    pub(crate) fn flag(self, flag: bool) -> Self {
        self.scalar(Scalar::Flag(flag))
    }

    pub(crate) fn real(self, real: f64) -> Self {
        self.scalar(Scalar::Real(real))
    }

    pub(crate) fn scalar(mut self, scalar: Scalar) -> Self {
        self.scalars.push(scalar);
        self
    }

    /// Loads the kernels.
    pub(crate) fn load(self, library: &Library) -> Result<Loaded, BuildError> {
        let load = |launch: Launch| {
            let function = library.function(launch.module, &launch.entry, launch.shared_bytes)?;
            Ok((function, launch))
        };
        let functions = self.launches.into_iter().map(load).collect::<Result<_, _>>()?;
        Ok(Loaded { functions, scalars: self.scalars })
    }
}

/// A [`Program`] that is ready.
pub(crate) struct Loaded {
    functions: Vec<(Function, Launch)>,
    scalars: Vec<Scalar>,
}

impl Loaded {
    /// Launches the kernels. `pointers` are the operands' addresses and those of scratch.
    pub(crate) fn submit(&self, stream: DriverStream, pointers: &[u64]) -> DeviceResult<()> {
        let mut parameters = parameters(pointers, &self.scalars);
        let mut places: Vec<*mut c_void> =
            parameters.iter_mut().map(|parameter| std::ptr::from_mut(parameter).cast()).collect();
        for (function, launch) in &self.functions {
            let (x, y) = launch.grid;
            // SAFETY: the function is alive, and takes just these parameters: its declaration in `kernels/cu` and the
            // launcher that made the program agree, which a test of each launcher shows. Its memory is that of the
            // operands, which the launcher's caller keeps in order.
            let answer = unsafe {
                sys::cuLaunchKernel(
                    function.function.cu_function(),
                    x,
                    y,
                    1,
                    launch.block,
                    1,
                    1,
                    launch.shared_bytes,
                    stream.0 as sys::CUstream,
                    places.as_mut_ptr(),
                    std::ptr::null_mut(),
                )
            };
            check_answer(DeviceCall::Launch, answer)?;
        }
        Ok(())
    }
}

/// Each parameter in eight bytes of its own; a kernel reads as many as its type has, from the lowest on.
fn parameters(pointers: &[u64], scalars: &[Scalar]) -> Vec<u64> {
    let scalar = |scalar: &Scalar| match *scalar {
        Scalar::Size(size) => size as u64,
        Scalar::Flag(flag) => u64::from(flag),
        Scalar::Count(count) => count as u64,
        Scalar::Real(real) => u64::from((real as f32).to_bits()),
    };
    pointers.iter().copied().chain(scalars.iter().map(scalar)).collect()
}

/// Lets a kernel use more dynamic shared memory than any may without asking.
pub(crate) fn allow_shared_bytes(function: &CudaFunction, bytes: u32) -> Result<(), DriverError> {
    let attribute = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
    let bytes = i32::try_from(bytes).unwrap_or(i32::MAX);
    // SAFETY: the function is alive.
    unsafe { sys::cuFuncSetAttribute(function.cu_function(), attribute, bytes) }.result()
}

/// Copies device memory to device memory.
pub(crate) fn copy(stream: DriverStream, source: u64, target: u64, bytes: u64) -> DeviceResult<()> {
    if bytes == 0 {
        return Ok(());
    }
    // SAFETY: addresses are numbers to the host, and the memory is that of the operands.
    let answer = unsafe { sys::cuMemcpyDtoDAsync_v2(target, source, bytes as usize, stream.0 as sys::CUstream) };
    check_answer(DeviceCall::Launch, answer)
}

/// Zeroes device memory.
pub(crate) fn zero(stream: DriverStream, target: u64, bytes: u64) -> DeviceResult<()> {
    if bytes == 0 {
        return Ok(());
    }
    // SAFETY: as above.
    let answer = unsafe { sys::cuMemsetD8Async(target, 0, bytes as usize, stream.0 as sys::CUstream) };
    check_answer(DeviceCall::Launch, answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_begin_in_the_lowest_bytes() {
        let scalars = [Scalar::Size(1 << 40), Scalar::Flag(true), Scalar::Count(7), Scalar::Real(1.5)];
        let expected = [9, 1 << 40, 1, 7, u64::from(1.5f32.to_bits())];
        assert_eq!(parameters(&[9], &scalars), expected);
    }

    #[test]
    fn grids_are_never_empty_nor_too_large() {
        let grid = |elements| Program::elementwise(Module::Cast, "x", elements, 1024).launches[0].grid;
        assert_eq!((grid(0), grid(1), grid(1024), grid(1025)), ((1, 1), (1, 1), (1, 1), (2, 1)));
        assert_eq!(grid(usize::MAX), (65_535, 1));
    }
}
