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

/// The uses of one block by streams other than its owner, at most one entry for each stream, in the order of streams.
///
/// A use is noted when it is over in the order of submission ([`note`](Uses::note)), or *opened* before its work is
/// submitted and *closed* behind it. The rule for each stream: as long as one of its uses is open, it uses the block
/// until the free; when all are closed, until the last position that was ever named. So a use that is never closed lasts
/// until the free, and closing one of several that overlap shortens none of the others. A use until the free that was
/// noted stays.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Uses {
    list: Vec<Entry>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct Entry {
    stream: StreamIndex,
    /// What is known of the uses that are closed.
    until: Until,
    /// Uses that are open.
    open: u32,
}

impl Uses {
    /// Adds a use; it never shortens one that is there.
    pub fn note(&mut self, stream: StreamIndex, until: Until) {
        let known = &mut self.entry(stream).until;
        *known = match (*known, until) {
            (Until::Position(a), Until::Position(b)) => Until::Position(a.max(b)),
            _ => Until::Free,
        };
    }

    /// A use begins whose end is not known yet.
    pub fn open(&mut self, stream: StreamIndex) {
        self.entry(stream).open += 1;
    }

    /// A use that was opened has ended.
    ///
    /// # Panics
    /// When no use of the stream is open.
    pub fn close(&mut self, stream: StreamIndex, until: Until) {
        let entry = self.entry(stream);
        entry.open = entry.open.checked_sub(1).expect("a use is opened before it is closed");
        self.note(stream, until);
    }

    /// Whether a use by the stream is known, open or not.
    #[must_use]
    pub fn knows(&self, stream: StreamIndex) -> bool {
        self.list.binary_search_by_key(&stream, |entry| entry.stream).is_ok()
    }

    fn entry(&mut self, stream: StreamIndex) -> &mut Entry {
        let at = self.list.binary_search_by_key(&stream, |entry| entry.stream).unwrap_or_else(|at| {
            self.list.insert(at, Entry { stream, until: Until::Position(Position(0)), open: 0 });
            at
        });
        &mut self.list[at]
    }

    /// All uses.
    pub fn iter(&self) -> impl Iterator<Item = (StreamIndex, Until)> + '_ {
        self.list.iter().map(|entry| (entry.stream, if entry.open > 0 { Until::Free } else { entry.until }))
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
    fn an_open_use_lasts_until_the_free_and_a_closed_one_until_its_position() {
        const T: StreamIndex = StreamIndex(1);
        let at = |position| Until::Position(Position(position));
        let ends = |uses: &Uses| uses.iter().map(|(_, until)| until).collect::<Vec<_>>();
        let mut uses = Uses::default();
        uses.open(T);
        assert_eq!(ends(&uses), [Until::Free], "what is not closed is not over");
        uses.open(T);
        uses.close(T, at(7));
        assert_eq!(ends(&uses), [Until::Free], "the other one is still open");
        uses.close(T, at(5));
        assert_eq!(ends(&uses), [at(7)], "the last position wins, whatever was closed last");
        uses.open(T);
        uses.note(T, at(9));
        assert_eq!(ends(&uses), [Until::Free], "a note closes nothing");
        uses.close(T, at(8));
        assert_eq!(ends(&uses), [at(9)]);
    }

    #[test]
    fn a_noted_use_until_the_free_outlasts_open_ones() {
        const T: StreamIndex = StreamIndex(1);
        let mut uses = Uses::default();
        uses.open(T);
        uses.note(T, Until::Free);
        uses.close(T, Until::Position(Position(3)));
        assert_eq!(uses.iter().collect::<Vec<_>>(), [(T, Until::Free)]);
        uses.open(T);
        uses.close(T, Until::Position(Position(4)));
        assert_eq!(uses.iter().collect::<Vec<_>>(), [(T, Until::Free)]);
    }

    #[test]
    #[should_panic(expected = "opened before it is closed")]
    fn a_use_is_closed_once() {
        let mut uses = Uses::default();
        uses.open(StreamIndex(1));
        uses.close(StreamIndex(1), Until::Position(Position(1)));
        uses.close(StreamIndex(1), Until::Position(Position(2)));
    }

    #[test]
    fn joined_waits_keep_the_last_of_each_stream() {
        let wait = |stream, position| Wait { stream: StreamIndex(stream), position: Position(position) };
        assert_eq!(join_waits([wait(1, 4), wait(0, 9), wait(1, 6), wait(0, 2)]), [wait(0, 9), wait(1, 6)]);
    }
}
