//! The optimizer.

use highwater::{Stream, View};

use super::{Kernel, KernelError};
use crate::cuda::{Module, Program};
use crate::host::{self, AdamW, work};

/// Operands of [`adamw`]; all of one length.
#[derive(Clone, Copy, Debug)]
pub struct AdamWViews<'a> {
    /// Gradient.
    pub gradient: View<'a, f32>,
    /// Parameter, updated.
    pub parameter: View<'a, f32>,
    /// First moment, updated.
    pub first_moment: View<'a, f32>,
    /// Second moment, updated.
    pub second_moment: View<'a, f32>,
}

/// One step of AdamW, `step` counted from 1; see [`host::adamw`].
///
/// # Errors
/// When the lengths differ, the step is zero, or the device fails.
#[track_caller]
pub fn adamw(stream: &Stream, adamw: AdamW, step: u64, views: AdamWViews<'_>) -> Result<(), KernelError> {
    let count = views.parameter.len();
    Kernel::new(stream, "adamw")
        .require(step > 0, "steps count from one")
        .read("gradient", views.gradient, count)
        .read_write("parameter", views.parameter, count)
        .read_write("first_moment", views.first_moment, count)
        .read_write("second_moment", views.second_moment, count)
        .submit(
            || work::adamw(count, size_of::<f32>()),
            || {
                let program = Program::elementwise(Module::AdamW, "adamw_f32", count, 1024);
                adamw.factors(step).into_iter().fold(program, Program::real)
            },
            move |[gradient, parameter, first_moment, second_moment]| {
                let moments = (first_moment.as_mut_slice(), second_moment.as_mut_slice());
                host::adamw::<f32>(adamw, step, gradient.as_slice(), parameter.as_mut_slice(), moments.0, moments.1);
            },
        )
}
