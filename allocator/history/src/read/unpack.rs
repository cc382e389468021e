//! Compressed files, by their first bytes.
//!
//! What comes out is bounded: by the caller, and by a thousand times the file plus 64 MiB. Snapshots shrink to a tenth,
//! and to a hundredth at best, so only a file that was made to fill memory is refused.

use std::{
    borrow::Cow,
    io::{self, Read},
    sync::Arc,
};

use flate2::read::MultiGzDecoder;
use lzma_rust2::XzReader;
use ruzstd::decoding::StreamingDecoder;

use super::ReadError;

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

/// Most bytes that come out for each byte of a file, once it is past [`ALWAYS_BYTES`].
const MAX_RATIO: u64 = 1000;
const ALWAYS_BYTES: u64 = 64 << 20;
/// Most memory of the decompressor for xz, KiB. Its strongest preset takes 65 MiB.
const XZ_MEMORY_KIB: u32 = 1 << 20;
/// Largest window of the decompressor for zstd, bytes. Its strongest preset takes 128 MiB.
const ZSTD_WINDOW_BYTES: u64 = 512 << 20;

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
/// If the file is damaged, or unpacks to more than `max_bytes` or more than a thousand times its size plus 64 MiB.
pub fn unpack(file: &[u8], max_bytes: u64) -> Result<Cow<'_, [u8]>, ReadError> {
    unpack_or_part(file, max_bytes).map_err(|(error, _)| error)
}

/// Like [`unpack`], and what came out before the error.
pub(super) fn unpack_or_part(file: &[u8], max_bytes: u64) -> Result<Cow<'_, [u8]>, (ReadError, Vec<u8>)> {
    let Some(compression) = Compression::of(file) else { return Ok(file.into()) };
    let packed_bytes = file.len() as u64;
    let limit_bytes = max_bytes.min(packed_bytes.saturating_mul(MAX_RATIO).saturating_add(ALWAYS_BYTES));
    let mut out = Vec::new();
    let result = match compression {
        Compression::Gzip => copy(MultiGzDecoder::new(file), limit_bytes, &mut out),
        Compression::Xz => copy(XzReader::new_mem_limit(file, true, XZ_MEMORY_KIB), limit_bytes, &mut out),
        Compression::Zstd => zstd(file, limit_bytes, &mut out),
    };
    if out.len() as u64 > limit_bytes {
        let error = ReadError::TooLarge { format: compression.name(), packed_bytes, limit_bytes };
        return Err((error, Vec::new()));
    }
    match result {
        Ok(()) => Ok(out.into()),
        Err(error) => {
            let (format, error, unpacked_bytes) = (compression.name(), Arc::new(error), out.len() as u64);
            Err((ReadError::Packed { format, error, unpacked_bytes }, out))
        }
    }
}

/// Appends what comes out, and at most one byte more than the limit.
fn copy(from: impl Read, limit_bytes: u64, out: &mut Vec<u8>) -> io::Result<()> {
    let left = limit_bytes.saturating_add(1).saturating_sub(out.len() as u64);
    from.take(left).read_to_end(out).map(drop)
}

/// A zstd file is a sequence of frames, some of which are to be skipped.
fn zstd(mut file: &[u8], limit_bytes: u64, out: &mut Vec<u8>) -> io::Result<()> {
    while !file.is_empty() && out.len() as u64 <= limit_bytes {
        if let [0x50..=0x5f, 0x2a, 0x4d, 0x18, rest @ ..] = file {
            let (length, rest) = rest.split_first_chunk().ok_or(io::ErrorKind::UnexpectedEof)?;
            let length = u32::from_le_bytes(*length) as usize;
            file = rest.get(length..).ok_or(io::ErrorKind::UnexpectedEof)?;
            continue;
        }
        let frame =
            StreamingDecoder::new_with_max_window_size(&mut file, ZSTD_WINDOW_BYTES).map_err(io::Error::other)?;
        let mut frame = frame;
        copy(&mut frame, limit_bytes, out)?;
        let decoder = frame.into_frame_decoder();
        if let (Some(stated), Some(found)) = (decoder.get_checksum_from_data(), decoder.get_calculated_checksum())
            && stated != found
            && out.len() as u64 <= limit_bytes
        {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the checksum of a frame is wrong"));
        }
    }
    Ok(())
}
