//! Launchers: each submits one operation on views of device memory.
//!
//! A launcher checks the lengths of its operands against the shape, says what it costs (from [`work`](crate::host::work))
//! and what it reads and writes, and hands the arithmetic of [`host`](crate::host) to the simulated device. Nothing
//! blocks. Values that are no valid data (a token outside its table) stop the operation when it executes: the device
//! then reports a fault.

mod attention;
mod elementwise;
mod embedding;
mod linear;
mod loss;
mod norm;
mod optimizer;

use highwater::device::{Cost, OperandBytes};
use highwater::{Launch, Pod, Stream, StreamError, View};

use crate::host::Update;
use crate::host::work::Work;

pub use attention::{attention_backward, attention_forward};
pub use elementwise::{accumulate, add, copy, fill, gelu_backward, gelu_forward, scale};
pub use embedding::{embedding_backward, embedding_forward};
pub use linear::{bias_backward, bias_forward, matmul};
pub use loss::{CrossEntropy, cross_entropy, cross_entropy_backward, cross_entropy_forward};
pub use norm::{LayerNormBackward, LayerNormForward, layer_norm_backward, layer_norm_forward};
pub use optimizer::{AdamWViews, adamw};

/// Bytes of an element; all launchers work on `f32`.
const ELEMENT_BYTES: usize = size_of::<f32>();

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
    /// An argument that the operation is not defined for.
    #[error("{kernel}: {what}")]
    Invalid {
        /// The kernel.
        kernel: &'static str,
        /// What it needs.
        what: &'static str,
    },
    /// Submitting failed.
    #[error(transparent)]
    Stream(#[from] StreamError),
}

/// A kernel that is being put together.
struct Kernel<'a> {
    name: &'static str,
    launch: Launch<'a>,
    /// The first thing that is wrong.
    wrong: Option<KernelError>,
}

impl<'a> Kernel<'a> {
    fn new(stream: &'a Stream, name: &'static str, work: Work) -> Self {
        Kernel { name, launch: stream.launch(name, Cost::kernel(work.flops, work.bytes)), wrong: None }
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

    fn checked<T: Pod>(mut self, operand: &'static str, view: View<'a, T>, expected: usize) -> Self {
        if view.len() != expected {
            let wrong = KernelError::Length { kernel: self.name, operand, expected, given: view.len() };
            self.wrong.get_or_insert(wrong);
        }
        self
    }

    fn read<T: Pod>(self, operand: &'static str, view: View<'a, T>, expected: usize) -> Self {
        let checked = self.checked(operand, view, expected);
        Kernel { launch: checked.launch.read(view), ..checked }
    }

    fn write(self, operand: &'static str, view: View<'a, f32>, expected: usize) -> Self {
        let checked = self.checked(operand, view, expected);
        Kernel { launch: checked.launch.write(view), ..checked }
    }

    fn read_write(self, operand: &'static str, view: View<'a, f32>, expected: usize) -> Self {
        let checked = self.checked(operand, view, expected);
        Kernel { launch: checked.launch.read_write(view), ..checked }
    }

    /// Written, or added to.
    fn update(self, update: Update, operand: &'static str, view: View<'a, f32>, expected: usize) -> Self {
        match update {
            Update::Store => self.write(operand, view, expected),
            Update::Accumulate => self.read_write(operand, view, expected),
        }
    }

    /// `body` gets the operands in the order of their declaration.
    #[track_caller]
    fn submit<const N: usize>(
        self,
        body: impl FnOnce(&mut [OperandBytes; N]) + Send + 'static,
    ) -> Result<(), KernelError> {
        match self.wrong {
            Some(wrong) => Err(wrong),
            None => {
                let body = |operands: &mut [OperandBytes]| {
                    body(operands.try_into().expect("the kernel declared so many operands"));
                };
                Ok(self.launch.body(body).submit()?)
            }
        }
    }
}
