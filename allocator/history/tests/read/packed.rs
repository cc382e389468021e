//! Compressed files: by content, damaged, cut, and made to fill memory.

use highwater_history::read::{Compression, Options, ReadError, read, unpack};

use crate::pickler::{Shape, Style, snapshot};

const XZ: &[u8] = include_bytes!("../data/oom_leak.pickle.xz");

fn pickle() -> Vec<u8> {
    snapshot(Style::Python(4), Shape { events: 200, frames: 2, stacks: 3, slots: 20, hints: false })
}

fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |crc: u32, &byte| {
        (0..8).fold(crc ^ u32::from(byte), |crc, _| crc >> 1 ^ if crc & 1 == 1 { 0xedb8_8320 } else { 0 })
    })
}

/// A gzip file of blocks that are not compressed.
fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut out = b"\x1f\x8b\x08\0\0\0\0\0\0\xff".to_vec();
    let blocks = bytes.chunks(1000).collect::<Vec<_>>();
    for (index, block) in blocks.iter().enumerate() {
        let length = block.len() as u16;
        out.push(u8::from(index + 1 == blocks.len()));
        out.extend([length.to_le_bytes(), (!length).to_le_bytes()].concat());
        out.extend(*block);
    }
    out.extend([crc32(bytes).to_le_bytes(), (bytes.len() as u32).to_le_bytes()].concat());
    out
}

/// A zstd frame of blocks: their kind (0: as it is, 1: one byte repeated), their length, and their bytes.
fn zstd<'a>(blocks: impl IntoIterator<Item = (u32, usize, &'a [u8])>) -> Vec<u8> {
    // A window of 128 KiB, no length, no checksum.
    let mut out = b"\x28\xb5\x2f\xfd\x00\x38".to_vec();
    for (kind, length, bytes) in blocks {
        out.extend(&((length as u32) << 3 | kind << 1).to_le_bytes()[..3]);
        out.extend(bytes);
    }
    // The last block is an empty one.
    out.extend(b"\x01\0\0");
    out
}

fn zstd_of(bytes: &[u8]) -> Vec<u8> {
    zstd(bytes.chunks(1000).map(|chunk| (0, chunk.len(), chunk)))
}

#[test]
fn files_are_unpacked_by_what_they_begin_with() {
    let pickle = pickle();
    let expected = read(&pickle, &Options::default()).expect("it is well formed");
    let skippable = [b"\x50\x2a\x4d\x18\x03\0\0\0abc", &zstd_of(&pickle)[..]].concat();
    let two = [zstd_of(&pickle[..500]), zstd_of(&pickle[500..])].concat();
    for (file, compression) in [
        (pickle.clone(), None),
        (gzip(&pickle), Some(Compression::Gzip)),
        ([gzip(&pickle[..500]), gzip(&pickle[500..])].concat(), Some(Compression::Gzip)),
        (zstd_of(&pickle), Some(Compression::Zstd)),
        (skippable, Some(Compression::Zstd)),
        (two, Some(Compression::Zstd)),
    ] {
        let loaded = read(&file, &Options::default()).expect("it unpacks to the same");
        assert_eq!((loaded.compression, loaded.events()), (compression, expected.events()));
        assert_eq!(loaded.devices[0].trace, expected.devices[0].trace);
    }
}

#[test]
fn a_compressed_file_that_ends_anywhere_is_an_error_and_its_good_part_can_be_had() {
    let pickle = pickle();
    for file in [gzip(&pickle), zstd_of(&pickle), XZ.to_vec()] {
        let whole = read(&file, &Options::default()).expect("it is whole");
        let whole: Vec<_> = whole.devices[0].trace.events().collect();
        let mut most = 0;
        for length in (1..file.len()).step_by(1 + file.len() / 100) {
            let error = read(&file[..length], &Options::default()).expect_err("it is cut");
            let Ok(part) = read(&file[..length], &Options::default().salvaging()) else { continue };
            assert!(part.damage.is_some(), "{error}");
            let events: Vec<_> = part.devices.first().into_iter().flat_map(|device| device.trace.events()).collect();
            assert!(events.len() >= most && events == whole[..events.len()], "{:?}", Compression::of(&file));
            most = events.len();
        }
        assert!(most * 10 > whole.len() * 9, "{most} of {}: {:?}", whole.len(), Compression::of(&file));
    }
}

#[test]
fn a_damaged_file_is_an_error() {
    let pickle = pickle();
    for file in [gzip(&pickle), zstd_of(&pickle), XZ.to_vec()] {
        for place in (0..file.len()).step_by(1 + file.len() / 100) {
            let mut damaged = file.clone();
            damaged[place] ^= 0x55;
            // Nothing is promised of what is not protected by a checksum, but that it ends.
            let _ = read(&damaged, &Options::default().salvaging()).is_ok();
        }
    }
    let mut damaged = gzip(&pickle);
    damaged[100] ^= 1;
    assert!(matches!(unpack(&damaged, u64::MAX), Err(ReadError::Packed { format: "gzip", .. })));
    let mut damaged = XZ.to_vec();
    damaged[1000] ^= 1;
    assert!(matches!(unpack(&damaged, u64::MAX), Err(ReadError::Packed { format: "xz", .. })));
}

#[test]
fn no_more_is_unpacked_than_is_allowed() {
    let pickle = pickle();
    for file in [gzip(&pickle), zstd_of(&pickle)] {
        let exact = pickle.len() as u64;
        assert_eq!(unpack(&file, exact).expect("just enough").len(), pickle.len());
        let mut options = Options::default();
        options.max_unpacked_bytes = exact - 1;
        for options in [options, options.salvaging()] {
            match read(&file, &options) {
                Err(ReadError::TooLarge { limit_bytes, packed_bytes, .. }) => {
                    assert_eq!((limit_bytes, packed_bytes), (exact - 1, file.len() as u64));
                }
                other => panic!("{:?}", other.map(|loaded| loaded.events())),
            }
        }
    }
    let limit = (XZ.len() as u64) * 2;
    assert!(matches!(unpack(XZ, limit), Err(ReadError::TooLarge { .. })));
}

#[test]
fn a_file_that_stands_for_thousands_of_times_its_size_is_refused() {
    // 256 MiB of the same byte in 8 KiB.
    let bomb = zstd((0..2048).map(|_| (1, 128 << 10, &b"("[..])));
    match unpack(&bomb, u64::MAX) {
        Err(ReadError::TooLarge { format: "zstd", limit_bytes, .. }) => {
            assert_eq!(limit_bytes, bomb.len() as u64 * 1000 + (64 << 20));
        }
        other => panic!("{:?}", other.map(|bytes| bytes.len())),
    }
}
