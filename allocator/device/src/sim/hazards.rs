//! Races: operations that run at the same time and conflict on physical bytes.

use super::engine::State;
use super::memory::Piece;
use super::queue::{Queued, stream_id};
use super::timeline::{Hazard, HazardSide};
use crate::{Access, PageHandle};

impl State {
    /// Reports operations that run now and conflict with one that starts.
    pub(super) fn find_hazards(&mut self, stream: usize, operation: &Queued, pieces: &[Piece]) {
        let queue = &self.streams[stream];
        for &other in &self.devices[queue.device].running {
            let other_queue = &self.streams[other];
            let running = other_queue.running.as_ref().expect("it is named as running");
            let conflict = conflict(&running.operation, &running.pieces, operation, pieces);
            let Some((page, offset_bytes, bytes, first, second)) = conflict else { continue };
            let side = |operation: &Queued, stream: usize, access| HazardSide {
                id: operation.id,
                name: operation.name.clone(),
                tag: operation.tag,
                stream: stream_id(stream),
                stream_name: self.streams[stream].name.clone(),
                access,
            };
            self.hazards.push(Hazard {
                device: queue.device as u32,
                page,
                offset_bytes,
                bytes,
                first: side(&running.operation, other, first),
                second: side(operation, stream, second),
            });
        }
    }
}

/// The first physical bytes that both touch and one writes: page, offset, bytes, and what each does.
fn conflict(
    first: &Queued,
    first_pieces: &[Piece],
    second: &Queued,
    second_pieces: &[Piece],
) -> Option<(PageHandle, u64, u64, Access, Access)> {
    for a in first_pieces {
        for b in second_pieces.iter().filter(|b| a.page == b.page) {
            let start = a.offset.max(b.offset);
            let end = (a.offset + a.bytes).min(b.offset + b.bytes);
            let (does_a, does_b) = (first.operands[a.operand].access, second.operands[b.operand].access);
            if start < end && (does_a.writes() || does_b.writes()) {
                return Some((a.page, start, end - start, does_a, does_b));
            }
        }
    }
    None
}
