//! Compressed files, by their first bytes.

use std::borrow::Cow;

use super::ReadError;
#[cfg(feature = "unpack")]
use super::decompress;

/// How a file is compressed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[non_exhaustive]
pub enum Compression {
    /// `.gz`
    Gzip,
    /// `.xz`
    Xz,
    /// `.zst`
    Zstd,
}

impl Compression {
    /// How the bytes are compressed, `None` if in no way that is known.
    #[must_use]
    pub fn of(file: &[u8]) -> Option<Self> {
        match file {
            [0x1f, 0x8b, ..] => Some(Self::Gzip),
            [0xfd, b'7', b'z', b'X', b'Z', 0, ..] => Some(Self::Xz),
            [0x28, 0xb5, 0x2f, 0xfd, ..] | [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => Some(Self::Zstd),
            _ => None,
        }
    }

    /// Its name, for people.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Gzip => "gzip",
            Self::Xz => "xz",
            Self::Zstd => "zstd",
        }
    }
}

/// The contents of a file: the bytes themselves if it is not compressed, which copies nothing.
///
/// # Errors
/// If the file is damaged, or unpacks to more than `max_bytes` or more than a thousand times its size plus 64 MiB; without
/// the feature `unpack` if it is compressed.
pub fn unpack(file: &[u8], max_bytes: u64) -> Result<Cow<'_, [u8]>, ReadError> {
    unpack_or_part(file, max_bytes).map_err(|(error, _)| error)
}

/// Like [`unpack`], and what came out before the error.
pub(super) fn unpack_or_part(file: &[u8], max_bytes: u64) -> Result<Cow<'_, [u8]>, (ReadError, Vec<u8>)> {
    let Some(compression) = Compression::of(file) else { return Ok(file.into()) };
    #[cfg(feature = "unpack")]
    return decompress::unpack(file, compression, max_bytes);
    #[cfg(not(feature = "unpack"))]
    {
        let _ = max_bytes;
        Err((ReadError::NotUnpacked { format: compression.name() }, Vec::new()))
    }
}
