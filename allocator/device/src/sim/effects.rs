//! The bytes of operations: taken when they start, written when they end.

use std::sync::Arc;

use super::engine::State;
use super::memory::{Memory, Piece};
use super::pool::Task;
use super::queue::{Effect, Queued, Work};
use crate::OperandBytes;

impl State {
    /// Takes what the operation reads, and hands its body to the pool.
    pub(super) fn begin(&mut self, device: usize, operation: &mut Queued, pieces: &[Piece]) -> Effect {
        let work = std::mem::replace(&mut operation.work, Work::Nothing);
        if !self.config.bodies {
            return Effect::Nothing;
        }
        let memory = &self.devices[device].memory;
        match work {
            Work::Kernel(body) => {
                let mut operands = read_operands(memory, operation, pieces);
                let writes: Vec<bool> = operation.operands.iter().map(|operand| operand.access.writes()).collect();
                let task: Task = Box::new(move || {
                    let sizes: Vec<usize> = operands.iter().map(|operand| operand.as_bytes().len()).collect();
                    body(&mut operands);
                    let same = operands.iter().map(|operand| operand.as_bytes().len()).eq(sizes);
                    assert!(same, "the body changed the length of an operand");
                    operands.into_iter().enumerate().filter(|(index, _)| writes[*index]).collect()
                });
                Effect::Body(self.pool.submit(task))
            }
            Work::ToDevice(host) => Effect::ToDevice(host.memory.read(|content: &[u8]| {
                let bytes = operation.operands[0].range.bytes as usize;
                let mut copy = OperandBytes::filled(bytes, 0);
                copy.as_bytes_mut().copy_from_slice(&content[host.offset..host.offset + bytes]);
                copy
            })),
            Work::ToHost(host) => {
                let content = memory.read(0, operation.operands[0].range.bytes, pieces);
                Effect::ToHost(host, content)
            }
            Work::Nothing | Work::Collective(_) => Effect::Nothing,
        }
    }

    /// Takes what all ranks send, and hands the body of each to the pool.
    pub(super) fn begin_collective(
        &mut self,
        streams: &[usize],
        operations: &mut [Queued],
        pieces: &[Vec<Piece>],
    ) -> Vec<Effect> {
        if !self.config.bodies {
            return streams.iter().map(|_| Effect::Nothing).collect();
        }
        // For each rank, the content of its operands; and which of them goes to whom.
        let mut contents = Vec::new();
        let mut parts = Vec::new();
        for ((&stream, operation), pieces) in streams.iter().zip(operations.iter_mut()).zip(pieces) {
            let memory = &self.devices[self.streams[stream].device].memory;
            contents.push(read_operands(memory, operation, pieces).into_iter().map(Arc::new).collect::<Vec<_>>());
            let Work::Collective(part) = std::mem::replace(&mut operation.work, Work::Nothing) else {
                unreachable!("the parts of a collective are collectives");
            };
            parts.push(part);
        }
        let mut effects = Vec::new();
        for rank in 0..parts.len() {
            let incoming: Vec<Arc<OperandBytes>> =
                contents.iter().zip(&parts).map(|(operands, part)| operands[part.sends[rank]].clone()).collect();
            let receive = operations[rank].operands.len() - 1;
            let writes = operations[rank].operands[receive].access.writes();
            let mut received = OperandBytes::clone(&contents[rank][receive]);
            let body = parts[rank].body.take().expect("a body is taken once");
            let task: Task = Box::new(move || {
                let incoming: Vec<&OperandBytes> = incoming.iter().map(|content| &**content).collect();
                let size = received.as_bytes().len();
                body(&incoming, &mut received);
                assert!(received.as_bytes().len() == size, "the body changed the length of what it receives");
                if writes { vec![(receive, received)] } else { Vec::new() }
            });
            effects.push(Effect::Body(self.pool.submit(task)));
        }
        effects
    }

    /// Makes what an operation wrote visible.
    pub(super) fn commit(&mut self, device: usize, effect: Effect, pieces: &[Piece]) -> Result<(), String> {
        let memory = &mut self.devices[device].memory;
        match effect {
            Effect::Nothing => {}
            Effect::Body(job) => {
                for (operand, content) in job.finish()? {
                    memory.write(operand, &content, pieces);
                }
            }
            Effect::ToDevice(content) => memory.write(0, &content, pieces),
            Effect::ToHost(host, content) => host.memory.write(|target: &mut [u8]| {
                let source = content.as_bytes();
                target[host.offset..host.offset + source.len()].copy_from_slice(source);
            }),
        }
        Ok(())
    }
}

/// The operands of an operation as its body gets them: what it reads as it is, what it only writes as unwritten.
fn read_operands(memory: &Memory, operation: &Queued, pieces: &[Piece]) -> Vec<OperandBytes> {
    let operands = operation.operands.iter().enumerate();
    operands
        .map(|(index, operand)| {
            let read = if operand.access.reads() { pieces } else { &[] };
            memory.read(index, operand.range.bytes, read)
        })
        .collect()
}
