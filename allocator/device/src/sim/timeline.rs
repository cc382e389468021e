//! Which operations raced.

use std::borrow::Cow;
use std::sync::Arc;

use crate::{Access, PageHandle, StreamId};

/// One of the two operations of a [`Hazard`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HazardSide {
    /// [`Executed::id`](crate::Executed::id).
    pub id: u64,
    /// The operation's name.
    pub name: Cow<'static, str>,
    /// The operation's tag.
    pub tag: u64,
    /// The stream.
    pub stream: StreamId,
    /// The stream's name.
    pub stream_name: Arc<str>,
    /// What it does with the bytes.
    pub access: Access,
}

/// Two operations that ran at the same time and touched the same physical bytes, at least one of them writing. The
/// address does not matter: two mappings of one page are the same bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Hazard {
    /// Ordinal of the device.
    pub device: u32,
    /// The page.
    pub page: PageHandle,
    /// First byte of the page that both touch.
    pub offset_bytes: u64,
    /// How many bytes from there on both touch (of the first such stretch).
    pub bytes: u64,
    /// The one that started first.
    pub first: HazardSide,
    /// The one that started while the first ran.
    pub second: HazardSide,
}
