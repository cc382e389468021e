//! Causal attention. The log-sum-exps are `f32`, whatever the element.

use highwater::{Stream, View};

use super::{Element, Kernel, KernelError, elements};
use crate::cuda::{ElementType, Module, Program};
use crate::host::{self, AttentionShape, work};

/// What both passes need.
const HEAD_WIDTH: &str = "a head must have at least one element";

/// The widest head of an f32 kernel.
const WIDEST_F32: usize = 256;

/// Head widths with bf16 kernels.
const BF16_WIDTHS: [usize; 3] = [32, 64, 128];

/// Positions and heads are counted by 32 bits in the kernels.
const MOST_ON_GPU: usize = 1 << 30;

/// See [`host::attention_forward`].
///
/// # Errors
/// When a length does not fit the shape, the head width is zero, or the device fails. A GPU takes head widths up to 256
/// in `f32`, and 32, 64 and 128 in `bf16`, with views that begin at multiples of 8 elements.
#[track_caller]
pub fn attention_forward<E: Element>(
    stream: &Stream,
    shape: AttentionShape,
    qkv: View<'_, E>,
    out: View<'_, E>,
    lse: View<'_, f32>,
) -> Result<(), KernelError> {
    let Elements { packed, plain, rows } = Elements::of(shape);
    let counted = countable(shape);
    Kernel::new(stream, "attention")
        .require(shape.head_width > 0, HEAD_WIDTH)
        .read("qkv", qkv, packed)
        .write("out", out, plain)
        .write("lse", lse, rows)
        .fit_for_gpu::<E>(shape)
        .submit(
            || work::attention_forward(counted, size_of::<E>()),
            || sized(forward_launches::<E>(counted), counted),
            move |[qkv, out, lse]| {
                E::change(out, |out| host::attention_forward(counted, &E::values(qkv), out, lse.as_mut_slice()));
            },
        )
}

/// Operands of [`attention_backward`].
#[derive(Clone, Copy, Debug)]
pub struct AttentionBackward<'a, E = f32> {
    /// Input of the forward pass, packed.
    pub qkv: View<'a, E>,
    /// Output of the forward pass.
    pub out: View<'a, E>,
    /// Log-sum-exps of the forward pass.
    pub lse: View<'a, f32>,
    /// Gradient of the output.
    pub dout: View<'a, E>,
    /// Gradient of the packed input.
    pub dqkv: View<'a, E>,
}

/// See [`host::attention_backward`]. A GPU takes the average gradient of a row's probabilities from the output of the
/// forward pass; the host sums it up again.
///
/// # Errors
/// As [`attention_forward`].
#[track_caller]
pub fn attention_backward<E: Element>(
    stream: &Stream,
    shape: AttentionShape,
    views: AttentionBackward<'_, E>,
) -> Result<(), KernelError> {
    let Elements { packed, plain, rows } = Elements::of(shape);
    let counted = countable(shape);
    Kernel::new(stream, "attention backward")
        .require(shape.head_width > 0, HEAD_WIDTH)
        .read("qkv", views.qkv, packed)
        .read("out", views.out, plain)
        .read("lse", views.lse, rows)
        .read("dout", views.dout, plain)
        .write("dqkv", views.dqkv, packed)
        .fit_for_gpu::<E>(shape)
        .submit(
            || work::attention_backward(counted, size_of::<E>()),
            || sized(backward_launches::<E>(counted).scratch(counted.lse_elements()), counted),
            move |[qkv, _out, lse, dout, dqkv]| {
                let (qkv, lse, dout) = (&*E::values(qkv), lse.as_slice(), &*E::values(dout));
                E::change(dqkv, |dqkv| host::attention_backward(counted, qkv, lse, dout, dqkv));
            },
        )
}

/// Elements of the operands, if they can be counted.
struct Elements {
    packed: Option<usize>,
    plain: Option<usize>,
    rows: Option<usize>,
}

impl Elements {
    fn of(shape: AttentionShape) -> Self {
        let AttentionShape { batch, sequence, heads, head_width } = shape;
        Elements {
            packed: elements([3, batch, sequence, heads, head_width]),
            plain: elements([batch, sequence, heads, head_width]),
            rows: elements([batch, sequence, heads]),
        }
    }
}

/// The sizes of a shape without rows are anything, and products of some of them may be more than can be counted: a
/// shape without sizes stands for it.
fn countable(shape: AttentionShape) -> AttentionShape {
    let AttentionShape { batch, sequence, heads, .. } = shape;
    if [batch, sequence, heads].contains(&0) {
        return AttentionShape { batch: 0, sequence: 0, heads: 0, head_width: 1 };
    }
    shape
}

impl Kernel<'_> {
    /// Refuses what the kernels on a GPU do not take.
    fn fit_for_gpu<E: Element>(self, shape: AttentionShape) -> Self {
        if self.stream.cuda_device().is_none() {
            return self;
        }
        let counted = shape.sequence < MOST_ON_GPU && shape.batch.saturating_mul(shape.heads) < MOST_ON_GPU;
        let kernel = self.require(counted, "a GPU takes fewer than 2^30 positions, and heads of all sequences");
        match E::TYPE {
            ElementType::F32 => {
                kernel.require(shape.head_width <= WIDEST_F32, "a GPU takes heads of at most 256 elements")
            }
            ElementType::Bf16 => {
                let aligned = kernel.addresses().iter().all(|address| address.is_multiple_of(16));
                kernel
                    .require(
                        BF16_WIDTHS.contains(&shape.head_width),
                        "a GPU takes bf16 heads of 32, 64 or 128 elements",
                    )
                    .require(aligned, "a GPU takes bf16 views that begin at multiples of 8 elements")
            }
        }
    }
}

fn sized(program: Program, shape: AttentionShape) -> Program {
    let AttentionShape { batch, sequence, heads, head_width } = shape;
    let scale = 1.0 / (head_width as f64).sqrt();
    program.size(batch).size(sequence).size(heads).size(head_width).real(scale)
}

/// How the f32 kernels cut a head: its width rounded up, the rows of a block, and the columns that it looks at together.
fn f32_tiles(head_width: usize) -> (usize, usize, usize) {
    let width = head_width.next_power_of_two().max(16);
    (width, if width <= 128 { 64 } else { 32 }, if width <= 64 { 64 } else { 32 })
}

/// Blocks of `rows` rows over all heads of all sequences.
fn blocks(shape: AttentionShape, rows: usize) -> usize {
    shape.batch * shape.heads * shape.sequence.div_ceil(rows)
}

fn is_empty(shape: AttentionShape) -> bool {
    shape.lse_elements() == 0
}

fn forward_launches<E: Element>(shape: AttentionShape) -> Program {
    let program = Program::default();
    if is_empty(shape) {
        return program;
    }
    match E::TYPE {
        ElementType::F32 => {
            let (width, rows, columns) = f32_tiles(shape.head_width);
            let bytes = 4 * ((rows + 2 * columns) * (width + 4) + rows * (columns + 4));
            program.launch_exactly(Module::Attention, "attention_forward_f32", blocks(shape, rows), 256, bytes)
        }
        ElementType::Bf16 => {
            let width = shape.head_width;
            let Tile { rows, columns, threads } = Tile::forward(width);
            let entry = format!("attention_forward_bf16_{width}");
            let bytes = 2 * width * rows + 8 * width * columns;
            program.launch_exactly(Module::Attention, entry, blocks(shape, rows), threads, bytes)
        }
    }
}

/// How a bf16 kernel cuts a head: the rows of a block, the columns that it looks at together, and its threads.
struct Tile {
    rows: usize,
    columns: usize,
    threads: u32,
}

impl Tile {
    fn forward(width: usize) -> Self {
        Tile { rows: if width == 128 { 64 } else { 128 }, columns: 64, threads: 128 }
    }

    fn keys(width: usize) -> Self {
        match width {
            32 => Tile { rows: 128, columns: 32, threads: 128 },
            64 => Tile { rows: 64, columns: 64, threads: 128 },
            _ => Tile { rows: 128, columns: 64, threads: 256 },
        }
    }

    fn queries(width: usize) -> Self {
        match width {
            32 => Tile { rows: 128, columns: 32, threads: 128 },
            64 => Tile { rows: 128, columns: 64, threads: 128 },
            _ => Tile { rows: 64, columns: 64, threads: 128 },
        }
    }
}

fn backward_launches<E: Element>(shape: AttentionShape) -> Program {
    let program = Program::default();
    if is_empty(shape) {
        return program;
    }
    let all_rows = shape.lse_elements();
    let width = shape.head_width;
    match E::TYPE {
        ElementType::F32 => {
            let (padded, rows, columns) = f32_tiles(width);
            let bytes = 8 * ((rows + columns) * (padded + 4) + rows * (columns + 4));
            let blocks = blocks(shape, rows);
            program
                .launch_exactly(Module::Attention, "attention_backward_delta_f32", all_rows.div_ceil(32), 256, 0)
                .launch_exactly(Module::Attention, "attention_backward_keys_f32", blocks, 256, bytes)
                .launch_exactly(Module::Attention, "attention_backward_queries_f32", blocks, 256, bytes)
        }
        ElementType::Bf16 => {
            let entry = |stage: &str| format!("attention_backward_{stage}_bf16_{width}");
            let (keys, queries) = (Tile::keys(width), Tile::queries(width));
            let keys_bytes = 4 * width * keys.rows + (8 * width + 16) * keys.columns;
            let queries_bytes = 4 * width * queries.rows + 8 * width * queries.columns;
            let (of_keys, of_queries) = (blocks(shape, keys.rows), blocks(shape, queries.rows));
            program
                .launch_exactly(Module::Attention, "attention_backward_delta_bf16", all_rows.div_ceil(64), 256, 0)
                .launch_exactly(Module::Attention, entry("keys"), of_keys, keys.threads, keys_bytes)
                .launch_exactly(Module::Attention, entry("queries"), of_queries, queries.threads, queries_bytes)
        }
    }
}

#[cfg(test)]
mod tests {
    use half::bf16;

    use super::*;
    use crate::cuda::Launch;

    fn shape(batch: usize, sequence: usize, heads: usize, head_width: usize) -> AttentionShape {
        AttentionShape { batch, sequence, heads, head_width }
    }

    /// Entry, blocks, threads, shared bytes of each launch.
    fn told(program: &Program) -> Vec<(&str, u32, u32, u32)> {
        let of = |launch: &Launch| {
            assert_eq!((launch.module, launch.grid.1), (Module::Attention, 1));
            (launch.grid.0, launch.block, launch.shared_bytes)
        };
        let launches = program.launches.iter();
        launches.map(|launch| (&*launch.entry, of(launch))).map(|(entry, (x, y, z))| (entry, x, y, z)).collect()
    }

    const SOURCE: &str = include_str!("../../cu/attention.cu");

    /// The numbers in the brackets of each line that begins with `name` and a bracket, or has them.
    fn numbers(name: &str, closing: char) -> Vec<Vec<usize>> {
        let inside = |line: &str| Some(line.split_once(name)?.1.split_once(closing)?.0.to_owned());
        let all = SOURCE.lines().filter(|line| !line.starts_with('#')).filter_map(inside);
        all.map(|inside| inside.split(',').map(|number| number.trim().parse().unwrap()).collect()).collect()
    }

    #[test]
    fn f32_heads_are_cut_as_the_kernels_are_compiled() {
        let plans = numbers("Plan<", '>');
        assert_eq!(plans.len(), 5);
        let mut narrower = 0;
        for plan in plans {
            let [rows, columns, sixteenths] = plan[..] else { panic!("{plan:?}") };
            let width = 16 * sixteenths;
            for width_in in [narrower + 1, width] {
                assert_eq!(f32_tiles(width_in), (width, rows, columns), "{width_in}");
            }
            narrower = width;
        }
        assert_eq!(narrower, WIDEST_F32);
    }

    #[test]
    fn bf16_heads_are_cut_as_the_kernels_are_compiled() {
        let names = ["FORWARD_BF16(", "KEYS_BF16(", "QUERIES_BF16("];
        for (name, cut) in names.into_iter().zip([Tile::forward, Tile::keys, Tile::queries]) {
            let compiled = numbers(name, ')');
            assert_eq!(compiled.iter().map(|numbers| numbers[0]).collect::<Vec<_>>(), BF16_WIDTHS, "{name}");
            for numbers in compiled {
                let [width, warps, sixteenths, columns, _resident] = numbers[..] else { panic!("{numbers:?}") };
                let tile = cut(width);
                let found = (tile.rows, tile.columns, tile.threads as usize);
                assert_eq!(found, (16 * sixteenths * warps, columns, 32 * warps), "{name}{width}");
            }
        }
    }

    #[test]
    fn forward_grids_cover_all_rows() {
        // 64 rows a block: 5 heads of one block, or of two.
        let one = forward_launches::<f32>(shape(1, 64, 5, 8));
        assert_eq!(told(&one), [("attention_forward_f32", 5, 256, 4 * (192 * 20 + 64 * 68))]);
        assert_eq!(forward_launches::<f32>(shape(1, 65, 5, 8)).launches[0].grid, (10, 1));
        assert_eq!(forward_launches::<f32>(shape(3, 33, 1, 256)).launches[0].grid, (6, 1));
        let wide = forward_launches::<bf16>(shape(2, 129, 3, 128));
        assert_eq!(told(&wide), [("attention_forward_bf16_128", 18, 128, 2 * 128 * 64 + 8 * 128 * 64)]);
    }

    #[test]
    fn backward_programs_take_the_averages_first() {
        let launches = backward_launches::<f32>(shape(1, 65, 2, 64));
        let bytes = 8 * (128 * 68 + 64 * 68);
        let expected = [
            ("attention_backward_delta_f32", 5, 256, 0),
            ("attention_backward_keys_f32", 4, 256, bytes),
            ("attention_backward_queries_f32", 4, 256, bytes),
        ];
        assert_eq!(told(&launches), expected);
        let expected = [
            ("attention_backward_delta_bf16", 3, 256, 0),
            ("attention_backward_keys_bf16_32", 2, 128, 4 * 32 * 128 + (8 * 32 + 16) * 32),
            ("attention_backward_queries_bf16_32", 2, 128, 4 * 32 * 128 + 8 * 32 * 32),
        ];
        assert_eq!(told(&backward_launches::<bf16>(shape(1, 65, 2, 32))), expected);
        let wide = backward_launches::<bf16>(shape(1, 1, 1, 128));
        assert_eq!(told(&wide)[1], ("attention_backward_keys_bf16_128", 1, 256, 4 * 128 * 128 + (8 * 128 + 16) * 64));
    }

    /// What a block may use at most, bytes: of compute capability 9.0 and 10.0.
    #[test]
    fn no_block_asks_for_more_shared_memory_than_there_is() {
        const MOST: u32 = 227 << 10;
        let programs = |width| {
            let shape = shape(1, 1000, 1, width);
            let mut all = vec![forward_launches::<f32>(shape), backward_launches::<f32>(shape)];
            if BF16_WIDTHS.contains(&width) {
                all.extend([forward_launches::<bf16>(shape), backward_launches::<bf16>(shape)]);
            }
            all
        };
        for launch in (1..=WIDEST_F32).flat_map(programs).flat_map(|program| program.launches) {
            assert!(launch.shared_bytes <= MOST, "{launch:?}");
        }
    }

    #[test]
    fn nothing_is_launched_for_no_rows() {
        for empty in [shape(0, 3, 2, 32), shape(2, 0, 3, 32), shape(2, 3, 0, 32), shape(usize::MAX, usize::MAX, 0, 32)]
        {
            let empty = countable(empty);
            for program in [forward_launches::<f32>(empty), backward_launches::<bf16>(empty)] {
                assert_eq!(program, Program::default());
            }
        }
        assert_eq!(countable(shape(2, 3, 1, 32)), shape(2, 3, 1, 32));
    }
}
