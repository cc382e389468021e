//! Elementwise operations: residual additions, scaling, filling, copying.

use super::Real;
use super::shape::check_len;

/// `out` = `left` + `right`, as a residual connection adds.
///
/// # Panics
///
/// If the lengths differ.
pub fn add<T: Real>(left: &[T], right: &[T], out: &mut [T]) {
    check_len("left", left.len(), out.len());
    check_len("right", right.len(), out.len());
    for (out, (&left, &right)) in out.iter_mut().zip(left.iter().zip(right)) {
        *out = left + right;
    }
}

/// `target` += `source`.
///
/// # Panics
///
/// If the lengths differ.
pub fn accumulate<T: Real>(source: &[T], target: &mut [T]) {
    check_len("source", source.len(), target.len());
    for (target, &source) in target.iter_mut().zip(source) {
        *target += source;
    }
}

/// `target` *= `factor`.
pub fn scale<T: Real>(factor: f64, target: &mut [T]) {
    let factor = T::from_f64(factor);
    for target in target {
        *target *= factor;
    }
}

/// `target` = `value` everywhere.
pub fn fill<T: Real>(value: T, target: &mut [T]) {
    target.fill(value);
}

/// `target` = `source`.
///
/// # Panics
///
/// If the lengths differ.
pub fn copy<T: Real>(source: &[T], target: &mut [T]) {
    check_len("source", source.len(), target.len());
    target.copy_from_slice(source);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values() {
        let mut out = [f32::NAN; 2];
        add(&[1.0, 2.0], &[10.0, 20.0], &mut out);
        assert_eq!(out, [11.0, 22.0]);
        accumulate(&[1.0, -1.0], &mut out);
        assert_eq!(out, [12.0, 21.0]);
        scale(0.5, &mut out);
        assert_eq!(out, [6.0, 10.5]);
        fill(3.0, &mut out);
        assert_eq!(out, [3.0, 3.0]);
        copy(&[4.0, 5.0], &mut out);
        assert_eq!(out, [4.0, 5.0]);
    }

    #[test]
    #[should_panic(expected = "right: the slice has 1 elements")]
    fn add_refuses_other_lengths() {
        add(&[1.0, 2.0], &[1.0], &mut [0.0; 2]);
    }

    #[test]
    #[should_panic(expected = "source: the slice has 3 elements")]
    fn accumulate_refuses_other_lengths() {
        accumulate(&[1.0; 3], &mut [0.0; 2]);
    }

    #[test]
    #[should_panic(expected = "source: the slice has 1 elements")]
    fn copy_refuses_other_lengths() {
        copy(&[1.0; 1], &mut [0.0; 2]);
    }
}
