//! Who else uses a block, and until when.

use crate::{Position, StreamIndex};

/// Until when a stream other than the owner uses a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Until {
    /// Everything that the stream has been given by the time of the free.
    Free,
    /// Everything up to a position; work after it does not touch the block.
    Position(Position),
}

/// The uses of one block by streams other than its owner, at most one for each stream, in the order of streams.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Uses {
    list: Vec<(StreamIndex, Until)>,
}

impl Uses {
    /// Adds a use; it never shortens one that is there.
    pub fn note(&mut self, stream: StreamIndex, until: Until) {
        match self.list.binary_search_by_key(&stream, |entry| entry.0) {
            Ok(at) => {
                let known = &mut self.list[at].1;
                *known = match (*known, until) {
                    (Until::Position(a), Until::Position(b)) => Until::Position(a.max(b)),
                    _ => Until::Free,
                };
            }
            Err(at) => self.list.insert(at, (stream, until)),
        }
    }

    /// All uses.
    pub fn iter(&self) -> impl Iterator<Item = (StreamIndex, Until)> + '_ {
        self.list.iter().copied()
    }

    /// Whether no other stream uses the block.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }
}

/// A position that has to be passed before memory is anyone else's.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Wait {
    /// The stream.
    pub stream: StreamIndex,
    /// The position in it.
    pub position: Position,
}

/// The fewest waits that imply all of `waits`: for each stream the last one, in the order of streams.
#[must_use]
pub fn join_waits(waits: impl IntoIterator<Item = Wait>) -> Vec<Wait> {
    let mut all: Vec<Wait> = waits.into_iter().collect();
    all.sort_by_key(|wait| (wait.stream, std::cmp::Reverse(wait.position)));
    all.dedup_by_key(|wait| wait.stream);
    all
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_use_is_never_shortened() {
        let mut uses = Uses::default();
        uses.note(StreamIndex(2), Until::Position(Position(7)));
        uses.note(StreamIndex(1), Until::Position(Position(3)));
        uses.note(StreamIndex(2), Until::Position(Position(5)));
        uses.note(StreamIndex(1), Until::Free);
        uses.note(StreamIndex(1), Until::Position(Position(9)));
        let list: Vec<_> = uses.iter().collect();
        assert_eq!(list, [(StreamIndex(1), Until::Free), (StreamIndex(2), Until::Position(Position(7)))]);
    }

    #[test]
    fn joined_waits_keep_the_last_of_each_stream() {
        let wait = |stream, position| Wait { stream: StreamIndex(stream), position: Position(position) };
        assert_eq!(join_waits([wait(1, 4), wait(0, 9), wait(1, 6), wait(0, 2)]), [wait(0, 9), wait(1, 6)]);
    }
}
