//! The decompressors.
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

use super::{Compression, ReadError};

/// Most bytes that come out for each byte of a file, once it is past [`ALWAYS_BYTES`].
const MAX_RATIO: u64 = 1000;
const ALWAYS_BYTES: u64 = 64 << 20;
/// Most memory of the decompressor for xz, KiB. Its strongest preset takes 65 MiB.
const XZ_MEMORY_KIB: u32 = 1 << 20;
/// A chunk of xz is not longer.
const XZ_CHUNK_BYTES: u64 = 64 << 10;
/// Largest window of the decompressor for zstd, bytes. Its strongest preset takes 128 MiB.
const ZSTD_WINDOW_BYTES: u64 = 512 << 20;

/// What comes out of a file that is compressed so; with an error, what came out before it.
pub(super) fn unpack(
    file: &[u8],
    compression: Compression,
    max_bytes: u64,
) -> Result<Cow<'_, [u8]>, (ReadError, Vec<u8>)> {
    let packed_bytes = file.len() as u64;
    let limit_bytes = max_bytes.min(packed_bytes.saturating_mul(MAX_RATIO).saturating_add(ALWAYS_BYTES));
    let mut out = Vec::new();
    let result = match compression {
        Compression::Gzip => copy(MultiGzDecoder::new(file), limit_bytes, &mut out),
        Compression::Xz => xz(file, limit_bytes, &mut out),
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

/// If an xz file is cut, its decompressor gives nothing of the last chunk, which may be all there is. So what is lacking
/// is replaced: once by zeros and once by ones. Whatever stood there lies between the two, for the range coder, so what
/// comes out alike is what comes out of the whole file.
fn xz(file: &[u8], limit_bytes: u64, out: &mut Vec<u8>) -> io::Result<()> {
    fn reader<R: Read>(file: R) -> XzReader<R> {
        XzReader::new_mem_limit(file, true, XZ_MEMORY_KIB)
    }
    let Err(error) = copy(reader(file), limit_bytes, out) else { return Ok(()) };
    let padded = |byte| file.chain(io::repeat(byte).take(XZ_CHUNK_BYTES));
    out.clear();
    pieces(reader(padded(0)).take(limit_bytes), |piece| {
        out.extend_from_slice(piece);
        true
    });
    let mut alike = 0;
    pieces(reader(padded(0xff)).take(limit_bytes), |piece| {
        let equal = piece.iter().zip(&out[alike..]).take_while(|(a, b)| a == b).count();
        alike += equal;
        equal == piece.len()
    });
    out.truncate(alike);
    Err(error)
}

/// Reads in small pieces, because what comes with an error is lost, until there is an error or no more is wanted.
fn pieces(mut from: impl Read, mut wants_more: impl FnMut(&[u8]) -> bool) {
    let mut piece = [0; 1024];
    while let Ok(length @ 1..) = from.read(&mut piece) {
        if !wants_more(&piece[..length]) {
            return;
        }
    }
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
        let (start, frame) = (out.len(), file);
        if let Err(error) = zstd_frame(&mut file, limit_bytes, out) {
            // The decoder keeps a whole window back. What is whole of a frame that is cut comes out if the frame ends.
            if let Some(whole) = whole_blocks(frame) {
                out.truncate(start);
                let _ = zstd_frame(&mut frame[..whole].chain(EMPTY_LAST_BLOCK), limit_bytes, out);
            }
            return Err(error);
        }
    }
    Ok(())
}

/// The last block of a frame, with nothing in it, and a checksum.
const EMPTY_LAST_BLOCK: &[u8] = b"\x01\0\0\0\0\0\0";

fn zstd_frame(file: &mut impl Read, limit_bytes: u64, out: &mut Vec<u8>) -> io::Result<()> {
    let frame = StreamingDecoder::new_with_max_window_size(file, ZSTD_WINDOW_BYTES);
    let mut frame = frame.map_err(io::Error::other)?;
    copy(&mut frame, limit_bytes, out)?;
    let decoder = frame.into_frame_decoder();
    if let (Some(stated), Some(found)) = (decoder.get_checksum_from_data(), decoder.get_calculated_checksum())
        && stated != found
        && out.len() as u64 <= limit_bytes
    {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "the checksum of a frame is wrong"));
    }
    Ok(())
}

/// Bytes of a zstd frame up to the first block that is cut off. `None` if there is no such block.
fn whole_blocks(frame: &[u8]) -> Option<usize> {
    let descriptor = usize::from(*frame.get(4)?);
    let is_one_segment = descriptor >> 5 & 1;
    let length_bytes = [is_one_segment, 2, 4, 8][descriptor >> 6];
    let dictionary_bytes = [0, 1, 2, 4][descriptor & 3];
    let mut at = 5 + (1 - is_one_segment) + dictionary_bytes + length_bytes;
    loop {
        let Some(&[a, b, c]) = frame.get(at..)?.first_chunk() else { return Some(at) };
        let header = u32::from_le_bytes([a, b, c, 0]);
        // A block of one byte that is repeated has that byte alone.
        let block_bytes = if header >> 1 & 3 == 1 { 1 } else { (header >> 3) as usize };
        if frame.len() - at - 3 < block_bytes {
            return Some(at);
        }
        at += 3 + block_bytes;
        if header & 1 == 1 {
            return None;
        }
    }
}
