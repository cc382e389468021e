//! Looking into snapshots: what memory was at any moment, what waits, what keeps memory in pieces, what differs between
//! two runs; and smaller or mended snapshots.
//!
//! Everything works on what the reader [loaded](crate::read::Loaded), so on snapshots of any origin. [`At`] is the
//! memory of one device at one [moment](When), found by undoing the trace from its end: it has the [tree](At::tree) of
//! stacks, what is [pending](At::pending), what is [fragmented](At::fragmentation), and can be [compared](fn@diff).
//! [`summary`](fn@summary) is about whole files. [`slice`](fn@slice) and [`repair`](fn@repair) make snapshots, which [`Loaded::write_to`] writes.
//!
//! [`Loaded::write_to`]: crate::read::Loaded::write_to
//!
//! ```
//! use highwater_history::inspect::{At, When};
//! use highwater_history::{Action, Context, MappedRange, Record, Ring, Segment, Snapshot, StackId, merge, read};
//!
//! let mut ring = Ring::new(1 << 20);
//! let mut record = |time_ns, action| ring.push(Record { time_ns, action, context: Context::here() });
//! record(1_000, Action::SegmentMap { address: 0x20_0000, bytes: 0x20_0000, stream: 1 });
//! record(2_000, Action::Alloc { address: 0x20_0000, bytes: 1000, rounded_bytes: 1024, stream: 1 });
//! record(3_000, Action::Freed { address: 0x20_0000, bytes: 1000, stream: 1 });
//! let mut snapshot = Snapshot::new();
//! snapshot.add_records(0, merge(&[&ring]));
//! let mapped = MappedRange { address: 0x20_0000, bytes: 0x20_0000, stream: 1, stack: StackId::EMPTY };
//! snapshot.devices[0].segments = Segment::runs(vec![mapped], vec![]).unwrap();
//! let mut file = Vec::new();
//! snapshot.write_to(&mut file).unwrap();
//!
//! let loaded = read::read(&file, &read::Options::default()).unwrap();
//! let peak = At::of(&loaded, 0, &When::Peak).unwrap();
//! assert_eq!((peak.row(), peak.sums().live_bytes, peak.sums().rounding_bytes), (2, 1000, 24));
//! assert_eq!(peak.tree().nodes()[0].bytes, 1000);
//! ```

mod at;
mod diff;
mod fragmentation;
mod history;
mod moment;
mod pending;
mod rebuild;
mod repair;
mod slice;
mod summary;
mod tree;

pub use crate::state::{SiteBytes, size};
pub use at::{At, Sums};
pub use diff::{Change, ChangeKind, Diff, diff};
pub use fragmentation::{Domain, Fragmentation, FreeRun, Pin, PinnedBy};
pub use history::{Curves, frame_text, site_text, stream_text};
pub use moment::{When, WhenError, busiest, row};
pub use pending::{Pending, PendingGroup, WaitedFor};
pub use repair::{Repaired, repair};
pub use slice::slice;
pub use summary::{DeviceSummary, StreamSummary, Summary, summary};
pub use tree::{Node, Tree};
