//! Events as columns.
//!
//! What nearly every event has is a vector for each key. What few events have is a list of (row, value), by row.
//!
//! Invariant: all columns are equally long, and rows of extras ascend and are below that length.

use std::{collections::BTreeMap, ops::Range};

use super::{symbols::TextId, words};
use crate::StackId;

/// What an event is about.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[non_exhaustive]
pub enum EventAction {
    /// A block was handed out.
    Alloc,
    /// A block was given back.
    FreeRequested,
    /// A block given back before is free.
    FreeCompleted,
    /// A block was given back, and is free (files that were joined so).
    Free,
    /// A segment was taken from the device.
    SegmentAlloc,
    /// A segment was returned to the device.
    SegmentFree,
    /// Memory was mapped.
    SegmentMap,
    /// Memory was unmapped.
    SegmentUnmap,
    /// A request failed.
    OutOfMemory,
    /// A snapshot was taken.
    Snapshot,
    /// The program named memory; the name is in the user metadata.
    Annotate,
    /// A snapshot of workspace memory (Ascend).
    WorkspaceSnapshot,
    /// Something else, by the text in the file.
    Other(TextId),
}

/// The known actions by the numbers of their words, which are the codes in the column.
const ACTIONS: [EventAction; 12] = {
    use EventAction::*;
    [
        Alloc,
        FreeRequested,
        FreeCompleted,
        Free,
        SegmentAlloc,
        SegmentFree,
        SegmentMap,
        SegmentUnmap,
        OutOfMemory,
        Snapshot,
        Annotate,
        WorkspaceSnapshot,
    ]
};

impl EventAction {
    /// Whether the address of such an event is that of a block or a segment that it changes.
    pub(super) fn has_address(self) -> bool {
        use EventAction::*;
        matches!(
            self,
            Alloc | FreeRequested | FreeCompleted | Free | SegmentAlloc | SegmentFree | SegmentMap | SegmentUnmap
        )
    }

    pub(super) fn of_text(text: u32) -> Self {
        ACTIONS.get(text as usize).copied().unwrap_or(Self::Other(TextId(text)))
    }

    /// Its text in the file.
    #[must_use]
    pub fn text(self) -> TextId {
        TextId(match self {
            Self::Alloc => words::ALLOC,
            Self::FreeRequested => words::FREE_REQUESTED,
            Self::FreeCompleted => words::FREE_COMPLETED,
            Self::Free => words::FREE,
            Self::SegmentAlloc => words::SEGMENT_ALLOC,
            Self::SegmentFree => words::SEGMENT_FREE,
            Self::SegmentMap => words::SEGMENT_MAP,
            Self::SegmentUnmap => words::SEGMENT_UNMAP,
            Self::OutOfMemory => words::OOM,
            Self::Snapshot => words::SNAPSHOT,
            Self::Annotate => words::ANNOTATE,
            Self::WorkspaceSnapshot => words::WORKSPACE_SNAPSHOT,
            Self::Other(text) => return text,
        })
    }
}

/// One row of a [`Trace`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Event {
    /// What happened.
    pub action: EventAction,
    /// Of the block or segment, 0 if the file says none.
    pub address: u64,
    /// Bytes: of a segment, or as requested.
    pub bytes: u64,
    /// The stream, as the file calls it.
    pub stream: u64,
    /// When, microseconds; 0 if the file does not say.
    pub time_us: u64,
    /// Where in the program.
    pub stack: StackId,
}

/// What few events have. Everything else is absent or has the value that says nothing.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Extras {
    pub(super) rounded_bytes: Option<u64>,
    pub(super) device_free_bytes: Option<u64>,
    pub(super) pool: Option<(u64, u64)>,
    pub(super) span: Option<u32>,
    pub(super) compile_context: Option<TextId>,
    pub(super) user_metadata: Option<TextId>,
    pub(super) internal_metadata: Option<TextId>,
    pub(super) category: Option<TextId>,
    pub(super) forward_stack: Option<StackId>,
    pub(super) no_time: bool,
}

/// Values of few rows.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Sparse<T>(Vec<(u32, T)>);

impl<T> Default for Sparse<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T: Copy> Sparse<T> {
    #[inline]
    fn push(&mut self, row: u32, value: Option<T>) {
        if let Some(value) = value {
            self.0.push((row, value));
        }
    }

    fn get(&self, row: usize) -> Option<T> {
        let row = u32::try_from(row).ok()?;
        self.0.binary_search_by_key(&row, |&(row, _)| row).ok().map(|index| self.0[index].1)
    }

    fn of(&self, rows: &Range<u32>) -> &[(u32, T)] {
        let start = self.0.partition_point(|&(row, _)| row < rows.start);
        let end = self.0.partition_point(|&(row, _)| row < rows.end);
        &self.0[start..end]
    }

    /// Adds those of some rows of another column, which become rows from `to` on.
    fn extend(&mut self, from: &Self, rows: &Range<u32>, to: u32) {
        self.0.extend(from.of(rows).iter().map(|&(row, value)| (row - rows.start + to, value)));
    }
}

/// The events of one device, oldest first.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Trace {
    time_us: Vec<u64>,
    address: Vec<u64>,
    bytes: Vec<u64>,
    stream: Vec<u64>,
    stack: Vec<StackId>,
    action: Vec<u8>,
    /// Texts of the actions with codes from `ACTIONS.len()` on.
    others: Vec<TextId>,
    rounded_bytes: Sparse<u64>,
    device_free_bytes: Sparse<u64>,
    /// Indices into `pools`.
    pool: Sparse<u32>,
    pools: Vec<(u64, u64)>,
    pool_ids: BTreeMap<(u64, u64), u32>,
    span: Sparse<u32>,
    compile_context: Sparse<TextId>,
    user_metadata: Sparse<TextId>,
    internal_metadata: Sparse<TextId>,
    category: Sparse<TextId>,
    forward_stack: Sparse<StackId>,
    no_time: Sparse<()>,
}

impl Trace {
    /// Number of events.
    #[must_use]
    pub fn len(&self) -> usize {
        self.action.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.action.is_empty()
    }

    /// Column: when, microseconds; 0 if the file does not say.
    #[must_use]
    pub fn times_us(&self) -> &[u64] {
        &self.time_us
    }

    /// Column: addresses; 0 if the file says none.
    #[must_use]
    pub fn addresses(&self) -> &[u64] {
        &self.address
    }

    /// Column: bytes, of segments or as requested.
    #[must_use]
    pub fn bytes(&self) -> &[u64] {
        &self.bytes
    }

    /// Column: streams, as the file calls them.
    #[must_use]
    pub fn streams(&self) -> &[u64] {
        &self.stream
    }

    /// Column: where in the program.
    #[must_use]
    pub fn stacks(&self) -> &[StackId] {
        &self.stack
    }

    /// What the event of a row is about. Like all functions of a row it panics if there is none.
    #[must_use]
    pub fn action(&self, row: usize) -> EventAction {
        let code = usize::from(self.action[row]);
        match ACTIONS.get(code) {
            Some(&known) => known,
            None => EventAction::Other(self.others[code - ACTIONS.len()]),
        }
    }

    /// The event of a row.
    #[must_use]
    pub fn event(&self, row: usize) -> Event {
        Event {
            action: self.action(row),
            address: self.address[row],
            bytes: self.bytes[row],
            stream: self.stream[row],
            time_us: self.time_us[row],
            stack: self.stack[row],
        }
    }

    /// The events, oldest first.
    pub fn events(&self) -> impl ExactSizeIterator<Item = Event> + DoubleEndedIterator {
        (0..self.len()).map(|row| self.event(row))
    }

    /// Whether every event has a time. Files of before PyTorch 2.2 have none.
    #[must_use]
    pub fn is_timed(&self) -> bool {
        self.no_time.0.is_empty()
    }

    /// Whether the event of a row has a time.
    #[cfg(feature = "inspect")]
    pub(crate) fn has_time(&self, row: usize) -> bool {
        self.no_time.get(row).is_none()
    }

    /// The texts of all events, as often as events have them.
    #[cfg(feature = "inspect")]
    pub(crate) fn texts(&self) -> impl Iterator<Item = TextId> {
        let actions = (0..self.len()).map(|row| self.action(row).text());
        let attached = [&self.compile_context, &self.user_metadata, &self.internal_metadata, &self.category];
        actions.chain(attached.into_iter().flat_map(|column| column.0.iter().map(|&(_, text)| text)))
    }

    /// A trace of some of the rows.
    #[cfg(feature = "inspect")]
    pub(crate) fn part(&self, rows: Range<usize>) -> Trace {
        let number = |row: usize| u32::try_from(row).expect("rows are below 2^32");
        let mut part = Trace { others: self.others.clone(), ..Trace::default() };
        part.extend(self, &(number(rows.start)..number(rows.end)));
        part
    }

    /// Bytes that the block takes, if known (`rounded_size`; only this project's recorder writes it).
    #[must_use]
    pub fn rounded_bytes(&self, row: usize) -> Option<u64> {
        self.rounded_bytes.get(row)
    }

    /// Bytes that the device had free, of a request that failed (`device_free`).
    #[must_use]
    pub fn device_free_bytes(&self, row: usize) -> Option<u64> {
        self.device_free_bytes.get(row)
    }

    /// Private pool; (0, 0) is the common one (`pool_id`).
    #[must_use]
    pub fn pool(&self, row: usize) -> (u64, u64) {
        self.pool.get(row).map_or((0, 0), |index| self.pools[index as usize])
    }

    /// Index of the span path, 0 for none (`span`; only this project's recorder writes it).
    #[must_use]
    pub fn span(&self, row: usize) -> u32 {
        self.span.get(row).unwrap_or(0)
    }

    /// The compiled region, `None` outside of one (`compile_context`).
    #[must_use]
    pub fn compile_context(&self, row: usize) -> Option<TextId> {
        self.compile_context.get(row)
    }

    /// What the program attached (`user_metadata`).
    #[must_use]
    pub fn user_metadata(&self, row: usize) -> Option<TextId> {
        self.user_metadata.get(row)
    }

    /// What the allocator attached (`internal_metadata`).
    #[must_use]
    pub fn internal_metadata(&self, row: usize) -> Option<TextId> {
        self.internal_metadata.get(row)
    }

    /// What the memory is for, in files made by a profiler (`category`).
    #[must_use]
    pub fn category(&self, row: usize) -> Option<TextId> {
        self.category.get(row)
    }

    /// Where the forward pass was, of an event of the backward pass: one frame for each line of text, which is its
    /// name (`forward_frames`).
    #[must_use]
    pub fn forward_stack(&self, row: usize) -> Option<StackId> {
        self.forward_stack.get(row)
    }

    /// The actions that this crate has no name for.
    pub fn other_actions(&self) -> impl Iterator<Item = TextId> {
        self.others.iter().copied()
    }

    /// Adds a row; `None` if there are too many, or too many unknown actions.
    #[inline]
    pub(super) fn push(&mut self, event: Event, extras: Option<&Extras>) -> Option<u32> {
        let row = u32::try_from(self.len()).ok().filter(|&row| row < u32::MAX)?;
        let code = self.code(event.action)?;
        self.time_us.push(event.time_us);
        self.address.push(event.address);
        self.bytes.push(event.bytes);
        self.stream.push(event.stream);
        self.stack.push(event.stack);
        self.action.push(code);
        if let Some(extras) = extras {
            self.push_extras(row, extras);
        }
        Some(row)
    }

    #[inline(never)]
    fn push_extras(&mut self, row: u32, extras: &Extras) {
        self.rounded_bytes.push(row, extras.rounded_bytes);
        self.device_free_bytes.push(row, extras.device_free_bytes);
        if let Some(pool) = extras.pool {
            self.push_pool(row, pool);
        }
        self.span.push(row, extras.span);
        self.compile_context.push(row, extras.compile_context);
        self.user_metadata.push(row, extras.user_metadata);
        self.internal_metadata.push(row, extras.internal_metadata);
        self.category.push(row, extras.category);
        self.forward_stack.push(row, extras.forward_stack);
        self.no_time.push(row, extras.no_time.then_some(()));
    }

    fn push_pool(&mut self, row: u32, pool: (u64, u64)) {
        let index = *self.pool_ids.entry(pool).or_insert_with(|| {
            self.pools.push(pool);
            self.pools.len() as u32 - 1
        });
        self.pool.push(row, Some(index));
    }

    fn code(&mut self, action: EventAction) -> Option<u8> {
        let EventAction::Other(text) = action else { return u8::try_from(action.text().0).ok() };
        let index = self.others.iter().position(|&other| other == text).unwrap_or_else(|| {
            self.others.push(text);
            self.others.len() - 1
        });
        u8::try_from(ACTIONS.len() + index).ok()
    }

    /// The rows of the runs, in their order. A trace of all rows in order is moved.
    pub(super) fn take(&mut self, runs: &[Range<u32>]) -> Trace {
        if let [run] = runs
            && run.start == 0
            && run.end as usize == self.len()
        {
            return std::mem::take(self);
        }
        let mut taken = Trace { others: self.others.clone(), ..Trace::default() };
        for run in runs {
            taken.extend(self, run);
        }
        taken
    }

    fn extend(&mut self, from: &Trace, run: &Range<u32>) {
        let to = self.len() as u32;
        let rows = run.start as usize..run.end as usize;
        self.time_us.extend_from_slice(&from.time_us[rows.clone()]);
        self.address.extend_from_slice(&from.address[rows.clone()]);
        self.bytes.extend_from_slice(&from.bytes[rows.clone()]);
        self.stream.extend_from_slice(&from.stream[rows.clone()]);
        self.stack.extend_from_slice(&from.stack[rows.clone()]);
        self.action.extend_from_slice(&from.action[rows]);
        self.rounded_bytes.extend(&from.rounded_bytes, run, to);
        self.device_free_bytes.extend(&from.device_free_bytes, run, to);
        for &(row, index) in from.pool.of(run) {
            self.push_pool(row - run.start + to, from.pools[index as usize]);
        }
        self.span.extend(&from.span, run, to);
        self.compile_context.extend(&from.compile_context, run, to);
        self.user_metadata.extend(&from.user_metadata, run, to);
        self.internal_metadata.extend(&from.internal_metadata, run, to);
        self.category.extend(&from.category, run, to);
        self.forward_stack.extend(&from.forward_stack, run, to);
        self.no_time.extend(&from.no_time, run, to);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn actions_stand_at_the_numbers_of_their_words() {
        for (place, action) in (0..).zip(ACTIONS) {
            assert_eq!(action.text(), TextId(place));
            assert_eq!(EventAction::of_text(place), action);
        }
        assert_eq!(EventAction::of_text(12), EventAction::Other(TextId(12)));
    }
}
