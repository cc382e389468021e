//! Products in memory that moves while they are queued: no element is wrong.
//!
//! The numbers are small integers, exact in both elements: outer products of `inner` equal terms, and a product with a
//! permutation. Every element of what was there before differs from what comes after.

use half::bf16;
use highwater::device::cuda::{CudaConfig, CudaDevice};
use highwater::{Allocator, Buffer, Policy, Settings, Stream};
use highwater_kernels as kernels;
use highwater_kernels::host::{MatmulShape, Transposed, Update};

use crate::gate::Gate;
use crate::operations::{Bench, Number};

/// Terms of the outer products.
const INNER: usize = 8;
/// Columns of the large matrices, and of the small ones.
const WIDE: usize = 4096;
const NARROW: usize = 2048;
/// Bytes of a large matrix, and of a small one: a large one fits no place where a small one, or memory that a product
/// works in (at most 32 MiB), was alone.
const LARGE: usize = 64 << 20;
const SMALL: usize = 16 << 20;
/// Small matrices. Every other one makes room for the large ones.
const BLOCKS: usize = 16;

/// What the products read, and their shapes.
struct Operands<E> {
    /// INNER equal columns of 1 to 3, and of 7 and 8.
    left: Buffer<E>,
    left_before: Buffer<E>,
    /// INNER equal rows of 1 and 2, as wide as a large matrix, and as a small one.
    right: Buffer<E>,
    right_before: Buffer<E>,
    /// Moves each column of a large matrix on to the next place.
    permutation: Buffer<E>,
}

fn row(row: usize) -> usize {
    row % 3 + 1
}

fn row_before(row: usize) -> usize {
    row % 2 + 7
}

fn column(column: usize) -> usize {
    column % 2 + 1
}

fn rows<E>(bytes: usize, columns: usize) -> usize {
    bytes / size_of::<E>() / columns
}

impl<E: Number> Operands<E> {
    fn new(bench: &Bench) -> Self {
        let matrix = |rows: usize, columns: usize, value: &dyn Fn(usize, usize) -> usize| {
            let values = (0..rows).flat_map(|row| (0..columns).map(move |column| (row, column)));
            bench.buffer(&values.map(|(row, column)| E::round(value(row, column) as f32)).collect::<Vec<E>>())
        };
        Operands {
            left: matrix(rows::<E>(LARGE, WIDE), INNER, &|at, _| row(at)),
            left_before: matrix(rows::<E>(SMALL, NARROW), INNER, &|at, _| row_before(at)),
            right: matrix(INNER, WIDE, &|_, at| column(at)),
            right_before: matrix(INNER, NARROW, &|_, at| column(at)),
            permutation: matrix(WIDE, WIDE, &|from, to| usize::from((from + 1) % WIDE == to)),
        }
    }

    /// What a small matrix holds.
    fn before(&self, stream: &Stream, out: &Buffer<E>) {
        let shape = MatmulShape { rows: rows::<E>(SMALL, NARROW), inner: INNER, columns: NARROW };
        product(stream, shape, [&self.left_before, &self.right_before, out]);
    }

    /// What the first large matrix holds.
    fn outer(&self, stream: &Stream, out: &Buffer<E>) {
        let shape = MatmulShape { rows: rows::<E>(LARGE, WIDE), inner: INNER, columns: WIDE };
        product(stream, shape, [&self.left, &self.right, out]);
    }

    /// What the second large matrix holds: the first, with its columns moved on.
    fn permuted(&self, stream: &Stream, first: &Buffer<E>, out: &Buffer<E>) {
        let shape = MatmulShape { rows: rows::<E>(LARGE, WIDE), inner: WIDE, columns: WIDE };
        product(stream, shape, [first, &self.permutation, out]);
    }
}

fn product<E: Number>(stream: &Stream, shape: MatmulShape, [a, b, c]: [&Buffer<E>; 3]) {
    kernels::matmul(stream, shape, Transposed::Neither, Update::Store, a.view(), b.view(), c.view()).unwrap();
}

/// Loading kernels may wait for those that run: every product is made once before any gate is closed.
fn warm_up<E: Number>(bench: &Bench) {
    let operands = Operands::<E>::new(bench);
    let large = || bench.stream.alloc::<E>(LARGE / size_of::<E>()).unwrap();
    let (first, second) = (large(), large());
    operands.outer(&bench.stream, &first);
    operands.permuted(&bench.stream, &first, &second);
    operands.before(&bench.stream, &bench.stream.alloc(SMALL / size_of::<E>()).unwrap());
    expect(bench, &second, WIDE, |at, to| INNER * row(at) * column((to + WIDE - 1) % WIDE));
}

/// Looks at every element of a matrix.
fn expect<E: Number>(bench: &Bench, matrix: &Buffer<E>, columns: usize, value: impl Fn(usize, usize) -> usize) {
    let found = bench.elements(matrix);
    let wrong = found
        .iter()
        .enumerate()
        .filter(|&(at, found)| found.bits() != E::round(value(at / columns, at % columns) as f32).bits());
    assert_eq!(wrong.count(), 0, "elements are wrong");
}

/// A large matrix for `user`, all of it in memory that was freed while the work on it was queued.
fn moved<E: Number>(bench: &Bench, user: &Stream, freed: Vec<Buffer<E>>) -> Buffer<E> {
    drop(freed);
    let before = bench.allocator.memory_stats();
    let matrix = user.alloc(LARGE / size_of::<E>()).unwrap();
    let after = bench.allocator.memory_stats();
    assert!(after.pages_moved >= before.pages_moved + 3, "{} moved", after.pages_moved - before.pages_moved);
    assert_eq!((after.reserved.now, after.host_stalls), (before.reserved.now, 0));
    matrix
}

/// Small matrices are computed on a stream that is held back; every other one is freed. Their memory becomes the output
/// of a product, and that output the operand of another one in such memory, on the same stream or on another one.
fn products_move<E: Number>(same: bool) {
    let device = CudaDevice::new(CudaConfig::default()).unwrap();
    warm_up::<E>(&Bench::new(Allocator::new(device.clone()).unwrap()));
    let settings = Settings::builder().policy(Policy::Wait).page_time(1.0).build().unwrap();
    let bench = Bench::new(Allocator::with_settings(device, settings).unwrap());
    let operands = Operands::<E>::new(&bench);
    let [s, t] = ["s", "t"].map(|name| bench.allocator.create_stream(name).unwrap());
    let user = if same { &s } else { &t };
    let mut blocks: Vec<Buffer<E>> = (0..BLOCKS).map(|_| s.alloc(SMALL / size_of::<E>()).unwrap()).collect();

    let gate = Gate::close(&s);
    blocks.iter().for_each(|block| operands.before(&s, block));
    let queued = s.record().unwrap();
    let mut freed: Vec<Buffer<E>> = (0..BLOCKS / 2).rev().map(|index| blocks.remove(2 * index)).collect();
    let rest = freed.split_off(BLOCKS / 4);
    let first = moved(&bench, user, freed);
    operands.outer(user, &first);
    let second = moved(&bench, user, rest);
    operands.permuted(user, &first, &second);
    assert!(!queued.is_complete().unwrap(), "nothing of the former use has run");
    assert_eq!(bench.allocator.memory_stats().waits_inserted > 0, !same);
    gate.open();
    [&s, &t].into_iter().for_each(|stream| bench.stream.wait_stream(stream).unwrap());

    expect(&bench, &first, WIDE, |at, to| INNER * row(at) * column(to));
    expect(&bench, &second, WIDE, |at, to| INNER * row(at) * column((to + WIDE - 1) % WIDE));
    blocks.iter().for_each(|block| expect(&bench, block, NARROW, |at, to| INNER * row_before(at) * column(to)));
    bench.allocator.check().unwrap();
}

#[test]
#[ignore = "needs a GPU"]
fn operands_and_products_in_f32_move() {
    [true, false].into_iter().for_each(products_move::<f32>);
}

#[test]
#[ignore = "needs a GPU"]
fn operands_and_products_in_bf16_move() {
    [true, false].into_iter().for_each(products_move::<bf16>);
}
