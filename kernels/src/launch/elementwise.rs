//! One element at a time.

use highwater::{Stream, View};

use super::{Element, Kernel, KernelError};
use crate::cuda::{self, Module, Program};
use crate::host::{self, work};

/// The program of an entry whose threads take 16 bytes of the output each.
fn program<E: Element>(entry: &str, elements: usize) -> Program {
    Program::elementwise(Module::Elementwise, format!("{entry}_{}", E::NAME), elements, 256 * E::PACK)
}

/// out = left + right; all of one length.
///
/// # Errors
/// When a length differs from that of `out`, or the device fails.
#[track_caller]
pub fn add<E: Element>(
    stream: &Stream,
    left: View<'_, E>,
    right: View<'_, E>,
    out: View<'_, E>,
) -> Result<(), KernelError> {
    let count = out.len();
    Kernel::new(stream, "add").read("left", left, count).read("right", right, count).write("out", out, count).submit(
        || work::add(count, size_of::<E>()),
        || program::<E>("add", count),
        |[left, right, out]| E::change(out, |out| host::add(&E::values(left), &E::values(right), out)),
    )
}

/// target += source; both of one length.
///
/// # Errors
/// When the lengths differ, or the device fails.
#[track_caller]
pub fn accumulate<E: Element>(stream: &Stream, source: View<'_, E>, target: View<'_, E>) -> Result<(), KernelError> {
    let count = target.len();
    Kernel::new(stream, "accumulate").read("source", source, count).read_write("target", target, count).submit(
        || work::add(count, size_of::<E>()),
        || program::<E>("accumulate", count),
        |[source, target]| E::change(target, |target| host::accumulate(&E::values(source), target)),
    )
}

/// target *= factor.
///
/// # Errors
/// When the device fails.
#[track_caller]
pub fn scale<E: Element>(stream: &Stream, factor: f64, target: View<'_, E>) -> Result<(), KernelError> {
    let count = target.len();
    Kernel::new(stream, "scale").read_write("target", target, count).submit(
        || work::scale(count, size_of::<E>()),
        || program::<E>("scale", count).real(factor),
        move |[target]| E::change(target, |target| host::scale(factor, target)),
    )
}

/// Every element of `target` = `value`.
///
/// # Errors
/// When the device fails.
#[track_caller]
pub fn fill<E: Element>(stream: &Stream, value: f32, target: View<'_, E>) -> Result<(), KernelError> {
    let count = target.len();
    Kernel::new(stream, "fill").write("target", target, count).submit(
        || work::fill(count, size_of::<E>()),
        || program::<E>("fill", count).real(f64::from(value)),
        move |[target]| E::change(target, |target| host::fill(value, target)),
    )
}

/// target = source; both of one length.
///
/// # Errors
/// When the lengths differ, or the device fails.
#[track_caller]
pub fn copy<E: Element>(stream: &Stream, source: View<'_, E>, target: View<'_, E>) -> Result<(), KernelError> {
    let count = target.len();
    let kernel = Kernel::new(stream, "copy").read("source", source, count).write("target", target, count);
    kernel.submit_copy(count, size_of::<E>())
}

impl Kernel<'_> {
    /// Submits a copy of the first operand to the second; both are of one type.
    #[track_caller]
    fn submit_copy(self, count: usize, element_bytes: usize) -> Result<(), KernelError> {
        let kernel = self.checked(|| work::copy(count, element_bytes))?;
        if kernel.stream.cuda_device().is_none() {
            return kernel.submit_to_host(|[source, target]| target.as_bytes_mut().copy_from_slice(source.as_bytes()));
        }
        let (addresses, bytes) = (kernel.addresses(), (count * element_bytes) as u64);
        let body = move |stream| cuda::copy(stream, addresses[0], addresses[1], bytes);
        Ok(kernel.launch.driver_body(body).submit()?)
    }
}

/// target = source, in another type: to the nearest value, ties to even; both of one length.
///
/// # Errors
/// When the lengths differ, or the device fails.
#[track_caller]
pub fn cast<From: Element, To: Element>(
    stream: &Stream,
    source: View<'_, From>,
    target: View<'_, To>,
) -> Result<(), KernelError> {
    let count = target.len();
    let kernel = Kernel::new(stream, "cast").read("source", source, count).write("target", target, count);
    let element_bytes = size_of::<From>().max(size_of::<To>());
    if From::NAME == To::NAME {
        // Both are of one type, though the compiler does not know it: a copy.
        return kernel.submit_copy(count, element_bytes);
    }
    kernel.submit(
        || work::copy(count, element_bytes),
        || Program::elementwise(Module::Cast, format!("cast_{}_{}", From::NAME, To::NAME), count, 2048),
        |[source, target]| To::change(target, |target| target.copy_from_slice(&From::values(source))),
    )
}

/// See [`host::gelu_forward`].
///
/// # Errors
/// When the lengths differ, or the device fails.
#[track_caller]
pub fn gelu_forward<E: Element>(stream: &Stream, x: View<'_, E>, out: View<'_, E>) -> Result<(), KernelError> {
    let count = out.len();
    Kernel::new(stream, "gelu").read("x", x, count).write("out", out, count).submit(
        || work::gelu_forward(count, size_of::<E>()),
        || program::<E>("gelu_forward", count),
        |[x, out]| E::change(out, |out| host::gelu_forward(&E::values(x), out)),
    )
}

/// See [`host::gelu_backward`].
///
/// # Errors
/// When the lengths differ, or the device fails.
#[track_caller]
pub fn gelu_backward<E: Element>(
    stream: &Stream,
    x: View<'_, E>,
    dout: View<'_, E>,
    dx: View<'_, E>,
) -> Result<(), KernelError> {
    let count = dx.len();
    Kernel::new(stream, "gelu backward").read("x", x, count).read("dout", dout, count).write("dx", dx, count).submit(
        || work::gelu_backward(count, size_of::<E>()),
        || program::<E>("gelu_backward", count),
        |[x, dout, dx]| E::change(dx, |dx| host::gelu_backward(&E::values(x), &E::values(dout), dx)),
    )
}

#[cfg(test)]
mod tests {
    use half::bf16;

    use super::*;
    use crate::cuda::Scalar;

    #[test]
    fn a_thread_takes_sixteen_bytes() {
        let singles = program::<f32>("add", 1025);
        assert_eq!((&*singles.launches[0].entry, singles.launches[0].grid), ("add_f32", (2, 1)));
        let halves = program::<bf16>("add", 2048);
        assert_eq!((&*halves.launches[0].entry, halves.launches[0].grid), ("add_bf16", (1, 1)));
        assert_eq!((halves.launches[0].block, &halves.scalars[..]), (256, &[Scalar::Size(2048)][..]));
    }
}
