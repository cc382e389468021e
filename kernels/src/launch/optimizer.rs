//! The optimizer.

use highwater::{Stream, View};

use super::{ELEMENT_BYTES, Kernel, KernelError};
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
    let elements = views.parameter.len();
    Kernel::new(stream, "adamw", work::adamw(elements, ELEMENT_BYTES))
        .require(step > 0, "steps count from one")
        .read("gradient", views.gradient, elements)
        .read_write("parameter", views.parameter, elements)
        .read_write("first_moment", views.first_moment, elements)
        .read_write("second_moment", views.second_moment, elements)
        .submit(move |[gradient, parameter, first_moment, second_moment]| {
            let moments = (first_moment.as_mut_slice(), second_moment.as_mut_slice());
            host::adamw::<f32>(adamw, step, gradient.as_slice(), parameter.as_mut_slice(), moments.0, moments.1);
        })
}
