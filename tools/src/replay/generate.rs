//! Traces that nobody recorded: small programs with the shapes that make allocators fail, the same at every run.

use highwater::history::StackId;

use super::script::{Block, BlockNo, Script, Step, StreamNo, What};
use crate::bench::workloads::Lcg;
use crate::cli::Generated;

const MIB: u64 = 1 << 20;

/// The script of a kind.
pub(crate) fn script(kind: Generated) -> Script {
    let mut program = Program::new(match kind {
        Generated::Varlen | Generated::Inference => &["compute"],
        Generated::Prefetch => &["compute", "copy"],
        Generated::Moe => &["compute", "dispatch", "combine"],
    });
    match kind {
        Generated::Varlen => varlen(&mut program),
        Generated::Prefetch => prefetch(&mut program),
        Generated::Moe => moe(&mut program),
        Generated::Inference => inference(&mut program),
    }
    program.finish()
}

/// Training on sequences of any length: activations grow through the layers, and go in the opposite order.
fn varlen(program: &mut Program) {
    let mut random = Lcg::new(11);
    let weights: Vec<_> = (0..12).flat_map(|_| [(4 * MIB, 0), (16 * MIB, 0)]).collect();
    for (bytes, stream) in weights {
        program.alloc(stream, bytes);
    }
    for _ in 0..90 {
        let tokens = 256 + 64 * (random.next() % 120);
        let mut saved = Vec::new();
        for _ in 0..12 {
            let scratch = program.alloc(0, tokens * 9 * 1024);
            saved.push([program.alloc(0, tokens * 2 * 1024), program.alloc(0, tokens * 6 * 1024)]);
            program.pass(90 + tokens / 40);
            program.free(scratch);
        }
        for kept in saved.into_iter().rev() {
            let gradient = program.alloc(0, tokens * 6 * 1024);
            program.pass(180 + tokens / 20);
            kept.into_iter().chain([gradient]).for_each(|block| program.free(block));
        }
    }
}

/// Batches that a copy stream brings, and that the compute stream uses until after they are given back.
fn prefetch(program: &mut Program) {
    let mut random = Lcg::new(12);
    let mut next = program.alloc(1, 48 * MIB);
    for _ in 0..300 {
        let batch = next;
        next = program.alloc(1, (8 + random.next() % 120) * MIB);
        program.pass(400);
        let work: Vec<_> = (0..6).map(|_| (4 + random.next() % 60) * MIB).collect();
        let work: Vec<_> = work.into_iter().map(|bytes| program.alloc(0, bytes)).collect();
        program.pass(2_500);
        program.free_after(batch, 0, 1_000 + 100 * (random.next() % 60));
        work.into_iter().for_each(|block| program.free(block));
        program.pass(300);
    }
    program.free(next);
}

/// Experts that get another number of tokens each step: buffers of three streams that hand memory on to each other.
fn moe(program: &mut Program) {
    let mut random = Lcg::new(13);
    for _ in 0..300 {
        let sizes: Vec<_> = (0..8).map(|_| random.log_uniform(64 << 10, 96 * MIB)).collect();
        let sent: Vec<_> = sizes.iter().map(|&bytes| program.alloc(1, bytes)).collect();
        program.pass(350);
        let mut hidden = Vec::new();
        for (&bytes, sent) in sizes.iter().zip(sent) {
            hidden.push((program.alloc(0, bytes), program.alloc(2, bytes / 2 + 1)));
            program.pass(120);
            program.free_after(sent, 0, 60);
        }
        program.pass(500);
        for (inner, outer) in hidden {
            program.free(inner);
            program.free_after(outer, 0, 40);
        }
    }
}

/// Requests that come and go, each with a cache that is copied into a larger one as it grows.
fn inference(program: &mut Program) {
    let mut random = Lcg::new(14);
    let mut caches: Vec<(BlockNo, u64)> = Vec::new();
    for _ in 0..400 {
        if caches.len() < 24 && !random.next().is_multiple_of(3) {
            let bytes = random.log_uniform(MIB, 48 * MIB);
            caches.push((program.alloc(0, bytes), bytes));
        }
        for cache in &mut caches {
            let scratch = program.alloc(0, 3 * MIB + cache.1 / 9);
            program.pass(35);
            program.free(scratch);
            if random.next().is_multiple_of(4) && cache.1 < 96 * MIB {
                let bytes = cache.1 + cache.1 / 4 + 4096;
                let larger = program.alloc(0, bytes);
                program.pass(15);
                program.free(std::mem::replace(&mut cache.0, larger));
                cache.1 = bytes;
            }
        }
        if caches.len() > 6 && random.next().is_multiple_of(2) {
            let done = caches.remove(random.next() as usize % caches.len());
            program.free(done.0);
        }
    }
}

/// A script that is being written.
struct Program {
    script: Script,
    now_ns: u64,
}

impl Program {
    fn new(streams: &[&str]) -> Self {
        let streams = streams.iter().map(|&name| name.to_owned()).collect();
        Program { script: Script { streams, ..Script::default() }, now_ns: 0 }
    }

    fn pass(&mut self, us: u64) {
        self.now_ns += us * 1000;
    }

    fn alloc(&mut self, owner: StreamNo, bytes: u64) -> BlockNo {
        let (block, born_ns) = (self.script.blocks.len(), self.now_ns);
        self.script.blocks.push(Block { bytes, owner, born_ns, freed_ns: None, used: None, stack: StackId::EMPTY });
        self.step(What::Alloc(block));
        block
    }

    fn free(&mut self, block: BlockNo) {
        self.script.blocks[block].freed_ns = Some(self.now_ns);
        self.step(What::Free(block));
    }

    /// Gives a block back that `user` uses for another `us`.
    fn free_after(&mut self, block: BlockNo, user: StreamNo, us: u64) {
        self.free(block);
        self.script.blocks[block].used = Some((user, self.now_ns + us * 1000));
    }

    fn step(&mut self, what: What) {
        let row = self.script.steps.len();
        self.script.steps.push(Step { at_ns: self.now_ns, row, what });
    }

    fn finish(mut self) -> Script {
        self.script.span_ns = self.now_ns;
        self.script.events = self.script.steps.len();
        self.script
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generated_programs_are_the_same_at_every_run_and_small() {
        for kind in [Generated::Varlen, Generated::Prefetch, Generated::Moe, Generated::Inference] {
            let (one, two) = (script(kind), script(kind));
            assert_eq!(one.steps, two.steps);
            assert_eq!(one.blocks, two.blocks);
            assert!((100..30_000).contains(&one.steps.len()), "{kind:?}: {}", one.steps.len());
            assert!(one.steps.windows(2).all(|pair| pair[0].at_ns <= pair[1].at_ns));
            let other = |block: &Block| block.used.is_none_or(|(user, _)| user != block.owner);
            assert!(one.blocks.iter().all(other), "{kind:?}");
        }
    }
}
