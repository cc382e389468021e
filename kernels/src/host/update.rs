//! What happens to the old content of an output.

use super::Real;

/// Whether an operation overwrites its output or adds to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Update {
    /// The output is overwritten; its old content is never read.
    Store,
    /// The result is added to the output, as gradients of several micro-batches are. Unless a function says otherwise
    /// the result is summed on its own and then added once.
    Accumulate,
}

impl Update {
    /// Writes `values` to `target` elementwise; both have the same length.
    pub(super) fn write<T: Real>(self, target: &mut [T], values: &[T]) {
        debug_assert_eq!(target.len(), values.len());
        match self {
            Update::Store => target.copy_from_slice(values),
            Update::Accumulate => {
                for (target, &value) in target.iter_mut().zip(values) {
                    *target += value;
                }
            }
        }
    }
}
