//! Matrix products.
//!
//! The work is done by the crate `gemm`, which finds the instruction set at run time. It is told to stay on the calling
//! thread. Blocks of the inner dimension, and so the order of sums, follow from the shape, the layout and the machine's
//! caches, which do not change while a program runs.

use super::shape::check_len;
use super::{Real, Update};

/// Shape of a product: C is `rows × columns` and sums over `inner`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct MatmulShape {
    /// Rows of C.
    pub rows: usize,
    /// Elements in each sum.
    pub inner: usize,
    /// Columns of C.
    pub columns: usize,
}

/// Which factor is stored transposed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Transposed {
    /// C = A·B with A stored as `rows × inner`, B as `inner × columns`.
    Neither,
    /// C = Aᵀ·B with A stored as `inner × rows`, B as `inner × columns`.
    Left,
    /// C = A·Bᵀ with A stored as `rows × inner`, B as `columns × inner`.
    Right,
}

/// Matrix product of contiguous row-major matrices: `c` (store or accumulate) = `a`·`b`, either one transposed.
///
/// For a layer y = x·W the backward pass is dx = dy·Wᵀ ([`Transposed::Right`]) and dW = xᵀ·dy ([`Transposed::Left`]).
/// An empty `inner` gives zeros. When accumulating over a long `inner`, parts of the sum may be added to `c` one after
/// the other.
///
/// # Panics
///
/// If a slice does not fit the shape.
pub fn matmul<T: Real>(shape: MatmulShape, transposed: Transposed, update: Update, a: &[T], b: &[T], c: &mut [T]) {
    let MatmulShape { rows, inner, columns } = shape;
    check_len("a", a.len(), rows * inner);
    check_len("b", b.len(), inner * columns);
    check_len("c", c.len(), rows * columns);
    let a = match transposed {
        Transposed::Left => Matrix::new(a, inner, rows, rows).transposed(),
        Transposed::Neither | Transposed::Right => Matrix::new(a, rows, inner, inner),
    };
    let b = match transposed {
        Transposed::Right => Matrix::new(b, columns, inner, inner).transposed(),
        Transposed::Neither | Transposed::Left => Matrix::new(b, inner, columns, columns),
    };
    product(MatrixMut::new(c, rows, columns, columns), update, T::ONE, a, b);
}

/// A view of a matrix inside a slice, which may be a part of wider rows or transposed.
#[derive(Clone, Copy)]
pub(super) struct Matrix<'a, T> {
    data: &'a [T],
    rows: usize,
    columns: usize,
    row_stride: usize,
    column_stride: usize,
}

impl<'a, T> Matrix<'a, T> {
    /// Row `r` starts at element `r · stride` of `data`.
    pub(super) fn new(data: &'a [T], rows: usize, columns: usize, stride: usize) -> Self {
        check_view(data.len(), rows, columns, stride);
        Self { data, rows, columns, row_stride: stride, column_stride: 1 }
    }

    /// The same elements with rows and columns exchanged.
    pub(super) fn transposed(self) -> Self {
        Self {
            data: self.data,
            rows: self.columns,
            columns: self.rows,
            row_stride: self.column_stride,
            column_stride: self.row_stride,
        }
    }
}

/// A view of a matrix to be written. Its rows are contiguous and do not overlap.
pub(super) struct MatrixMut<'a, T> {
    data: &'a mut [T],
    rows: usize,
    columns: usize,
    row_stride: usize,
}

impl<'a, T> MatrixMut<'a, T> {
    /// Row `r` starts at element `r · stride` of `data`.
    pub(super) fn new(data: &'a mut [T], rows: usize, columns: usize, stride: usize) -> Self {
        check_view(data.len(), rows, columns, stride);
        Self { data, rows, columns, row_stride: stride }
    }
}

/// `product` relies on it: every element of a view lies in the slice, and rows do not overlap.
fn check_view(len: usize, rows: usize, columns: usize, stride: usize) {
    if rows > 0 && columns > 0 {
        assert!(stride >= columns, "rows of {columns} elements overlap at a stride of {stride}");
        let last_row = (rows - 1).checked_mul(stride).expect("a view fits the address space");
        assert!(len >= columns && last_row <= len - columns, "the view reaches outside its slice");
        assert!(isize::try_from(stride).is_ok(), "a stride fits the address space");
    }
}

/// `c` (store or accumulate) = `factor` · `a` · `b`.
#[allow(unsafe_code)]
pub(super) fn product<T: Real>(c: MatrixMut<'_, T>, update: Update, factor: T, a: Matrix<'_, T>, b: Matrix<'_, T>) {
    assert!(a.rows == c.rows && b.columns == c.columns && a.columns == b.rows, "factors and product fit together");
    // SAFETY: the views were checked when they were made: every (row, column) below their sizes is an element of their
    // slice. The three agree in their sizes, as asserted above. The elements of `c` are distinct and exclusively
    // borrowed, so they do not alias `a` or `b`. All elements are initialised numbers of a type that `gemm` supports
    // (`Real` is sealed), and strides fit `isize`.
    unsafe {
        gemm::gemm(
            c.rows,
            c.columns,
            a.columns,
            c.data.as_mut_ptr(),
            1,
            c.row_stride as isize,
            update == Update::Accumulate,
            a.data.as_ptr(),
            a.column_stride as isize,
            a.row_stride as isize,
            b.data.as_ptr(),
            b.column_stride as isize,
            b.row_stride as isize,
            T::ONE,
            factor,
            false,
            false,
            false,
            gemm::Parallelism::None,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::testing::{Random, assert_close, assert_gradients, to_f32, weigh};

    const LAYOUTS: [Transposed; 3] = [Transposed::Neither, Transposed::Left, Transposed::Right];

    fn naive(shape: MatmulShape, transposed: Transposed, a: &[f64], b: &[f64]) -> Vec<f64> {
        let MatmulShape { rows, inner, columns } = shape;
        let at = |r, i| if transposed == Transposed::Left { a[i * rows + r] } else { a[r * inner + i] };
        let bt = |i, c| if transposed == Transposed::Right { b[c * inner + i] } else { b[i * columns + c] };
        let element = |r, c| (0..inner).map(|i| at(r, i) * bt(i, c)).sum();
        (0..rows * columns).map(|index| element(index / columns, index % columns)).collect()
    }

    fn shapes() -> impl Iterator<Item = MatmulShape> {
        let sizes = [(1, 1, 1), (1, 5, 3), (3, 1, 2), (5, 7, 1), (17, 9, 33), (64, 24, 64), (40, 300, 24), (2, 3, 70)];
        sizes.into_iter().map(|(rows, inner, columns)| MatmulShape { rows, inner, columns })
    }

    #[test]
    fn all_layouts_match_the_naive_product() {
        let mut random = Random::new(2);
        for shape in shapes() {
            let a = random.values(shape.rows * shape.inner);
            let b = random.values(shape.inner * shape.columns);
            let before = random.values(shape.rows * shape.columns);
            for layout in LAYOUTS {
                let expected = naive(shape, layout, &a, &b);
                let mut c = vec![f64::NAN; expected.len()];
                matmul(shape, layout, Update::Store, &a, &b, &mut c);
                assert_close("store", &c, &expected, 1e-12);

                let mut c = before.clone();
                matmul(shape, layout, Update::Accumulate, &a, &b, &mut c);
                let sums: Vec<f64> = before.iter().zip(&expected).map(|(x, y)| x + y).collect();
                assert_close("accumulate", &c, &sums, 1e-12);

                let mut c = vec![f32::NAN; expected.len()];
                matmul(shape, layout, Update::Store, &to_f32(&a), &to_f32(&b), &mut c);
                assert_close("f32", &c, &expected, 2e-5);
            }
        }
    }

    #[test]
    fn empty_products() {
        let mut c = [f32::NAN; 6];
        matmul(MatmulShape { rows: 2, inner: 0, columns: 3 }, Transposed::Neither, Update::Store, &[], &[], &mut c);
        assert_eq!(c, [0.0; 6]);
        c = [1.5; 6];
        matmul(MatmulShape { rows: 2, inner: 0, columns: 3 }, Transposed::Left, Update::Accumulate, &[], &[], &mut c);
        assert_eq!(c, [1.5; 6]);
        matmul(
            MatmulShape { rows: 0, inner: 2, columns: 1 },
            Transposed::Neither,
            Update::Store,
            &[],
            &c[..2],
            &mut [],
        );
    }

    #[test]
    fn backward_layouts_match_finite_differences() {
        let mut random = Random::new(3);
        let (rows, inner, columns) = (3, 5, 4);
        let weights = random.values(rows * columns);
        let inputs = [("x", random.values(rows * inner)), ("w", random.values(inner * columns))];
        let forward = |inputs: &[(&str, Vec<f64>)]| {
            let mut y = vec![f64::NAN; rows * columns];
            let shape = MatmulShape { rows, inner, columns };
            matmul(shape, Transposed::Neither, Update::Store, &inputs[0].1, &inputs[1].1, &mut y);
            weigh(&y, &weights)
        };
        let (mut dx, mut dw) = (vec![f64::NAN; rows * inner], vec![f64::NAN; inner * columns]);
        let dx_shape = MatmulShape { rows, inner: columns, columns: inner };
        matmul(dx_shape, Transposed::Right, Update::Store, &weights, &inputs[1].1, &mut dx);
        let dw_shape = MatmulShape { rows: inner, inner: rows, columns };
        matmul(dw_shape, Transposed::Left, Update::Store, &inputs[0].1, &weights, &mut dw);
        assert_gradients(&inputs, &[&dx, &dw], forward);
    }

    /// Bits of the product with every slice moved by `shift` elements from where its allocation starts.
    fn bits(shape: MatmulShape, layout: Transposed, a: &[f32], b: &[f32], shift: usize) -> Vec<u32> {
        let shifted = |values: &[f32]| [&vec![0.0; shift], values].concat();
        let (a, b) = (shifted(a), shifted(b));
        let mut c = vec![0.25; shape.rows * shape.columns + shift];
        matmul(shape, layout, Update::Accumulate, &a[shift..], &b[shift..], &mut c[shift..]);
        c[shift..].iter().map(|value| value.to_bits()).collect()
    }

    #[test]
    fn the_same_bits_on_any_thread_and_at_any_address() {
        let mut random = Random::new(4);
        for shape in shapes() {
            let a = to_f32(&random.values(shape.rows * shape.inner));
            let b = to_f32(&random.values(shape.inner * shape.columns));
            for layout in LAYOUTS {
                let expected = bits(shape, layout, &a, &b, 0);
                std::thread::scope(|scope| {
                    let tasks: Vec<_> = (0..4)
                        .map(|shift| {
                            scope.spawn({
                                let (a, b) = (&a, &b);
                                move || bits(shape, layout, a, b, shift)
                            })
                        })
                        .collect();
                    for task in tasks {
                        assert_eq!(task.join().expect("the product does not panic"), expected, "{shape:?} {layout:?}");
                    }
                });
            }
        }
    }

    #[test]
    fn a_view_takes_a_part_of_wider_rows() {
        // The middle columns of 2×4 matrices.
        let wide = [9.0, 1.0, 2.0, 9.0, 9.0, 3.0, 4.0, 9.0];
        let part = Matrix::new(&wide[1..], 2, 2, 4);
        let mut c = [7.0; 8];
        product(MatrixMut::new(&mut c[1..], 2, 2, 4), Update::Store, 10.0, part, part.transposed());
        assert_eq!(c, [7.0, 50.0, 110.0, 7.0, 7.0, 110.0, 250.0, 7.0]);
    }

    #[test]
    #[should_panic(expected = "b: the slice has 5 elements, the shape needs 6")]
    fn a_wrong_shape_is_refused() {
        let shape = MatmulShape { rows: 1, inner: 2, columns: 3 };
        matmul(shape, Transposed::Neither, Update::Store, &[0.0; 2], &[0.0; 5], &mut [0.0; 3]);
    }

    #[test]
    #[should_panic(expected = "the view reaches outside its slice")]
    fn a_view_stays_inside_its_slice() {
        Matrix::new(&[0.0; 6], 2, 3, 4);
    }

    #[test]
    #[should_panic(expected = "overlap")]
    fn rows_of_a_view_do_not_overlap() {
        MatrixMut::new(&mut [0.0; 6], 2, 3, 2);
    }

    #[test]
    #[should_panic(expected = "factors and product fit together")]
    fn views_must_fit_together() {
        let view = Matrix::new(&[0.0; 6], 2, 3, 3);
        product(MatrixMut::new(&mut [0.0; 4], 2, 2, 2), Update::Store, 1.0, view, view);
    }
}
