//! Adding one row to all rows, and its gradient.

use super::shape::check_len;
use super::{Real, Rows, Update};

/// Adds `bias` (`width` elements) to every row of `x` (`rows × width`), in place.
///
/// # Panics
///
/// If a slice does not fit the shape or the width is zero.
pub fn bias_forward<T: Real>(shape: Rows, bias: &[T], x: &mut [T]) {
    check_len("bias", bias.len(), shape.width);
    for row in shape.of_mut("x", x) {
        for (x, &bias) in row.iter_mut().zip(bias) {
            *x += bias;
        }
    }
}

/// Gradient of the bias: `dbias` (store or accumulate) = the sum of the rows of `dout`, first row first.
///
/// # Panics
///
/// If a slice does not fit the shape or the width is zero.
pub fn bias_backward<T: Real>(shape: Rows, dout: &[T], update: Update, dbias: &mut [T]) {
    check_len("dbias", dbias.len(), shape.width);
    let mut total = vec![T::ZERO; shape.width];
    for row in shape.of("dout", dout) {
        for (total, &value) in total.iter_mut().zip(row) {
            *total += value;
        }
    }
    update.write(dbias, &total);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::testing::{Random, assert_gradients, weigh};

    #[test]
    fn gradients_match_finite_differences() {
        let mut random = Random::new(5);
        for (rows, width) in [(1, 1), (3, 5), (7, 9)] {
            let shape = Rows { rows, width };
            let weights = random.values(shape.elements());
            let inputs = [("x", random.values(shape.elements())), ("bias", random.values(width))];
            let forward = |inputs: &[(&str, Vec<f64>)]| {
                let mut x = inputs[0].1.clone();
                bias_forward(shape, &inputs[1].1, &mut x);
                weigh(&x, &weights)
            };
            let mut dbias = vec![f64::NAN; width];
            bias_backward(shape, &weights, Update::Store, &mut dbias);
            assert_gradients(&inputs, &[&weights, &dbias], forward);

            let mut twice = dbias.clone();
            bias_backward(shape, &weights, Update::Accumulate, &mut twice);
            assert_eq!(twice, dbias.iter().map(|x| x + x).collect::<Vec<_>>());
        }
    }

    #[test]
    fn no_rows_store_zeros() {
        let mut dbias = [f32::NAN; 2];
        bias_backward(Rows { rows: 0, width: 2 }, &[], Update::Store, &mut dbias);
        assert_eq!(dbias, [0.0; 2]);
    }

    #[test]
    #[should_panic(expected = "x: the slice has 5 elements, the shape needs 6")]
    fn a_wrong_shape_is_refused() {
        bias_forward(Rows { rows: 2, width: 3 }, &[0.0; 3], &mut [0.0; 5]);
    }
}
