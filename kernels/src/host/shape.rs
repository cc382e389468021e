//! Shapes, and the one way in which they are checked against slices.

use std::slice::{ChunksExact, ChunksExactMut};

/// A row-major matrix: `rows` rows of `width` elements each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Rows {
    /// Number of rows, for example of tokens. May be zero.
    pub rows: usize,
    /// Elements in a row. At least one.
    pub width: usize,
}

impl Rows {
    /// Elements of the whole matrix.
    pub const fn elements(self) -> usize {
        self.rows * self.width
    }

    /// The rows of `data`.
    #[track_caller]
    pub(super) fn of<'a, T>(self, name: &str, data: &'a [T]) -> ChunksExact<'a, T> {
        self.check(name, data.len());
        data.chunks_exact(self.width)
    }

    /// The rows of `data`, to be written.
    #[track_caller]
    pub(super) fn of_mut<'a, T>(self, name: &str, data: &'a mut [T]) -> ChunksExactMut<'a, T> {
        self.check(name, data.len());
        data.chunks_exact_mut(self.width)
    }

    #[track_caller]
    fn check(self, name: &str, len: usize) {
        assert!(self.width > 0, "{name}: rows must have at least one element");
        check_len(name, len, self.elements());
    }
}

/// Panics unless a slice has as many elements as its shape says.
#[track_caller]
pub(super) fn check_len(name: &str, len: usize, expected: usize) {
    assert!(len == expected, "{name}: the slice has {len} elements, the shape needs {expected}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_cut_by_width() {
        let shape = Rows { rows: 2, width: 3 };
        let cut: Vec<&[u8]> = shape.of("x", &[1, 2, 3, 4, 5, 6]).collect();
        assert_eq!(cut, [[1, 2, 3], [4, 5, 6]]);
    }

    #[test]
    #[should_panic(expected = "x: the slice has 5 elements, the shape needs 6")]
    fn a_wrong_length_is_refused_by_name() {
        let _ = Rows { rows: 2, width: 3 }.of("x", &[0u8; 5]);
    }

    #[test]
    #[should_panic(expected = "x: rows must have at least one element")]
    fn a_zero_width_is_refused() {
        let _ = Rows { rows: 2, width: 0 }.of("x", &[0u8; 0]);
    }
}
