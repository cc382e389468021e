//! Launchers: each submits one operation on views of device memory.
//!
//! A launcher checks the lengths of its operands against the shape, says what it costs (from [`work`](crate::host::work))
//! and what it reads and writes, and how it is computed: by the arithmetic of [`host`](crate::host) on the simulated
//! device, and by the kernels of [`cuda`](crate::cuda) on a GPU. Nothing blocks. Values that are no valid data (a token
//! outside its table) stop the operation when it executes: the device then reports a fault.

mod attention;
mod element;
mod elementwise;
mod embedding;
mod linear;
mod loss;
mod norm;
mod optimizer;
mod reduce;

use highwater::device::{Access, Cost, OperandBytes};
use highwater::{AllocError, Buffer, Launch, Pod, Stream, StreamError, View};

use crate::cuda::{BuildError, Library, Program};
use crate::host::Update;
use crate::host::work::Work;

pub use attention::{AttentionBackward, attention_backward, attention_forward};
pub use element::Element;
pub use elementwise::{accumulate, add, cast, copy, fill, gelu_backward, gelu_forward, scale};
pub use embedding::{embedding_backward, embedding_forward};
pub use linear::{bias_backward, bias_forward, matmul};
pub use loss::{CrossEntropy, cross_entropy, cross_entropy_backward, cross_entropy_forward};
pub use norm::{LayerNormBackward, LayerNormForward, layer_norm_backward, layer_norm_forward};
pub use optimizer::{AdamWViews, adamw};
pub use reduce::{MOST_SOURCES, sum_ranks_on_gpu};

/// Bytes of a token.
const TOKEN_BYTES: usize = size_of::<u32>();

/// Why a kernel was not submitted.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KernelError {
    /// An operand's length is not what the shape says.
    #[error("{kernel}: {operand} has {given} elements, the shape says {expected}")]
    Length {
        /// The kernel.
        kernel: &'static str,
        /// The operand.
        operand: &'static str,
        /// Elements that the shape says.
        expected: usize,
        /// Elements given.
        given: usize,
    },
    /// A shape with more elements than there are addresses.
    #[error("{kernel}: the shape says more elements of {operand} than a program can count")]
    Overflow {
        /// The kernel.
        kernel: &'static str,
        /// The operand.
        operand: &'static str,
    },
    /// An argument that the operation is not defined for.
    #[error("{kernel}: {what}")]
    Invalid {
        /// The kernel.
        kernel: &'static str,
        /// What it needs.
        what: &'static str,
    },
    /// The kernel cannot be had on this GPU.
    #[error("{kernel}: {source}")]
    Build {
        /// The kernel.
        kernel: &'static str,
        /// Why.
        source: BuildError,
    },
    /// There is no memory for what the operation needs beside its operands.
    #[error("{kernel}: memory to work in: {source}")]
    Scratch {
        /// The kernel.
        kernel: &'static str,
        /// Why.
        source: AllocError,
    },
    /// Submitting failed.
    #[error(transparent)]
    Stream(#[from] StreamError),
}

/// The product of some sizes, if it can be counted. Nothing can, however large the other sizes are.
fn elements<const N: usize>(sizes: [usize; N]) -> Option<usize> {
    if sizes.contains(&0) { Some(0) } else { sizes.into_iter().try_fold(1usize, usize::checked_mul) }
}

/// A kernel that is being put together.
struct Kernel<'a> {
    name: &'static str,
    stream: &'a Stream,
    launch: Launch<'a>,
    /// The first thing that is wrong.
    wrong: Option<KernelError>,
}

impl<'a> Kernel<'a> {
    fn new(stream: &'a Stream, name: &'static str) -> Self {
        Kernel { name, stream, launch: stream.launch(name, Cost::default()), wrong: None }
    }

    /// Refuses the kernel unless `holds`; `what` says what it needs.
    fn require(mut self, holds: bool, what: &'static str) -> Self {
        if !holds {
            self.wrong.get_or_insert(KernelError::Invalid { kernel: self.name, what });
        }
        self
    }

    /// Refuses rows without elements: they could not be told apart.
    fn require_width(self, width: usize) -> Self {
        self.require(width > 0, "rows must have at least one element")
    }

    fn operand<T: Pod>(
        mut self,
        operand: &'static str,
        view: View<'a, T>,
        expected: Option<usize>,
        access: Access,
    ) -> Self {
        let kernel = self.name;
        let wrong = match expected {
            None => Some(KernelError::Overflow { kernel, operand }),
            Some(expected) if expected != view.len() => {
                Some(KernelError::Length { kernel, operand, expected, given: view.len() })
            }
            Some(_) => None,
        };
        self.wrong = self.wrong.or(wrong);
        let launch = match access {
            Access::Read => self.launch.read(view),
            Access::Write => self.launch.write(view),
            Access::ReadWrite => self.launch.read_write(view),
        };
        Kernel { launch, ..self }
    }

    fn read<T: Pod>(self, operand: &'static str, view: View<'a, T>, expected: impl Into<Option<usize>>) -> Self {
        self.operand(operand, view, expected.into(), Access::Read)
    }

    fn write<T: Pod>(self, operand: &'static str, view: View<'a, T>, expected: impl Into<Option<usize>>) -> Self {
        self.operand(operand, view, expected.into(), Access::Write)
    }

    fn read_write<T: Pod>(self, operand: &'static str, view: View<'a, T>, expected: impl Into<Option<usize>>) -> Self {
        self.operand(operand, view, expected.into(), Access::ReadWrite)
    }

    /// Written, or added to.
    fn update<T: Pod>(
        self,
        update: Update,
        operand: &'static str,
        view: View<'a, T>,
        expected: impl Into<Option<usize>>,
    ) -> Self {
        match update {
            Update::Store => self.write(operand, view, expected),
            Update::Accumulate => self.read_write(operand, view, expected),
        }
    }

    /// The operands' addresses, in the order of their declaration.
    fn addresses(&self) -> Vec<u64> {
        self.launch.operands().iter().map(|operand| operand.range.address.0).collect()
    }

    /// Submits it. `host` computes on the simulated device and gets the operands in the order of their declaration;
    /// `program` is what a GPU launches. Neither is called when something is wrong.
    #[track_caller]
    fn submit<const N: usize>(
        self,
        work: impl FnOnce() -> Work,
        program: impl FnOnce() -> Program,
        host: impl FnOnce(&mut [OperandBytes; N]) + Send + 'static,
    ) -> Result<(), KernelError> {
        let checked = self.checked(work)?;
        match checked.stream.cuda_device() {
            None => checked.submit_to_host(host),
            Some(device) => {
                let library = checked.built(Library::of(device))?;
                checked.submit_program(&library, program())
            }
        }
    }

    /// The kernel with its cost, if nothing is wrong with it.
    fn checked(self, work: impl FnOnce() -> Work) -> Result<Self, KernelError> {
        if let Some(wrong) = self.wrong {
            return Err(wrong);
        }
        let Work { flops, bytes } = work();
        Ok(Kernel { launch: self.launch.cost(Cost::kernel(flops, bytes)), ..self })
    }

    fn built<T>(&self, built: Result<T, BuildError>) -> Result<T, KernelError> {
        built.map_err(|source| KernelError::Build { kernel: self.name, source })
    }

    #[track_caller]
    fn submit_to_host<const N: usize>(
        self,
        host: impl FnOnce(&mut [OperandBytes; N]) + Send + 'static,
    ) -> Result<(), KernelError> {
        let body = |operands: &mut [OperandBytes]| {
            host(operands.try_into().expect("the kernel declared so many operands"));
        };
        Ok(self.launch.body(body).submit()?)
    }

    /// Scratch goes back behind the launch. A graph that nobody here knows would use it whenever it is launched.
    fn refuse_foreign_capture(&self) -> Result<(), KernelError> {
        if !self.stream.is_captured_elsewhere() {
            return Ok(());
        }
        let what = "the memory that it works in would not be kept for a graph that is captured past this crate";
        Err(KernelError::Invalid { kernel: self.name, what })
    }

    /// Scratch comes from the allocator, on the kernel's own stream, and goes back behind the launch: whoever gets it next
    /// on this stream comes after the kernel.
    #[track_caller]
    fn submit_program(self, library: &Library, program: Program) -> Result<(), KernelError> {
        let kernel = self.name;
        if !program.scratch.is_empty() {
            self.refuse_foreign_capture()?;
        }
        let scratch = program.scratch.iter().map(|&elements| self.stream.alloc::<f32>(elements));
        let scratch: Vec<Buffer<f32>> =
            scratch.collect::<Result<_, _>>().map_err(|source| KernelError::Scratch { kernel, source })?;
        let loaded = self.built(program.load(library))?;
        let Kernel { mut launch, .. } = self;
        for buffer in &scratch {
            launch = launch.write(buffer);
        }
        let addresses: Vec<u64> = launch.operands().iter().map(|operand| operand.range.address.0).collect();
        Ok(launch.driver_body(move |stream| loaded.submit(stream, &addresses)).submit()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_are_counted_or_too_many() {
        assert_eq!(elements([]), Some(1));
        assert_eq!(elements([3, 5, 7]), Some(105));
        assert_eq!(elements([usize::MAX, 1]), Some(usize::MAX));
        assert_eq!(elements([usize::MAX, 2]), None);
        assert_eq!(elements([usize::MAX, 2, 0]), Some(0), "a zero behind");
        assert_eq!(elements([0, usize::MAX, 2]), Some(0), "and in front");
    }
}
