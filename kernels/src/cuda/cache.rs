//! Machine code on disk, by what it was made of.
//!
//! A file is written beside its place and renamed, so readers see all of it or nothing; its length and a checksum stand in
//! front. What cannot be read is made again, and where nothing can be written everything works without.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// First bytes of every file; changes with the format.
const MAGIC: &[u8; 8] = b"hwcubin1";

/// The name of whatever is made of these texts, in this order.
pub(super) fn key<'a>(ingredients: impl Iterator<Item = &'a str>) -> String {
    // Two hashes with different starts: 128 bits, so that no two are ever the same by chance.
    let mut hashes = [0xcbf2_9ce4_8422_2325_u64, 0x6c62_272e_07bb_0142];
    for text in ingredients {
        for hash in &mut hashes {
            *hash = fnv(*hash, &(text.len() as u64).to_le_bytes());
            *hash = fnv(*hash, text.as_bytes());
        }
    }
    format!("{:016x}{:016x}", hashes[0], hashes[1])
}

/// FNV-1a.
fn fnv(start: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(start, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

/// The folder: `HIGHWATER_CACHE_DIR`, or `highwater/kernels` in the user's cache. `None` where there is neither.
fn folder() -> Option<PathBuf> {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let users = || set("XDG_CACHE_HOME").or_else(|| Some(set("HOME")?.join(".cache")));
    set("HIGHWATER_CACHE_DIR").or_else(|| Some(users()?.join("highwater/kernels")))
}

pub(super) fn read(key: &str) -> Option<Vec<u8>> {
    read_from(&folder()?, key)
}

pub(super) fn write(key: &str, content: &[u8]) {
    let Some(folder) = folder() else { return };
    if let Err(error) = write_to(&folder, key, content) {
        tracing::warn!(%error, folder = %folder.display(), "compiled kernels cannot be kept; they are compiled again");
    }
}

fn read_from(folder: &Path, key: &str) -> Option<Vec<u8>> {
    let file = fs::read(folder.join(key)).ok()?;
    let rest = file.strip_prefix(MAGIC)?;
    let (length, rest) = rest.split_first_chunk::<8>()?;
    let (sum, content) = rest.split_first_chunk::<8>()?;
    let whole = u64::from_le_bytes(*length) == content.len() as u64 && u64::from_le_bytes(*sum) == fnv(0, content);
    whole.then(|| content.to_vec())
}

fn write_to(folder: &Path, key: &str, content: &[u8]) -> std::io::Result<()> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    fs::create_dir_all(folder)?;
    let beside = folder.join(format!(".{key}.{}.{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed)));
    // One that is there already is somebody else's.
    let mut file = fs::File::create_new(&beside)?;
    let written = file
        .write_all(MAGIC)
        .and_then(|()| file.write_all(&(content.len() as u64).to_le_bytes()))
        .and_then(|()| file.write_all(&fnv(0, content).to_le_bytes()))
        .and_then(|()| file.write_all(content));
    let renamed = written.and_then(|()| fs::rename(&beside, folder.join(key)));
    if renamed.is_err() {
        // Nobody else knows its name.
        let _ = fs::remove_file(&beside);
    }
    renamed
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("highwater-cache-{}-{name}", std::process::id()));
            fs::create_dir_all(&path).unwrap();
            Scratch(path)
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn the_key_depends_on_every_text_and_where_it_ends() {
        let keys = [
            key(["a", "b", "c"].into_iter()),
            key(["a", "b", "d"].into_iter()),
            key(["x", "b", "c"].into_iter()),
            key(["ab", "c"].into_iter()),
            key(["a", "bc"].into_iter()),
            key(["a", "b", "c", ""].into_iter()),
        ];
        let different: std::collections::BTreeSet<_> = keys.iter().collect();
        assert_eq!(different.len(), keys.len());
        assert_eq!(keys[0], key(["a", "b", "c"].into_iter()));
    }

    #[test]
    fn what_is_written_is_read() {
        let scratch = Scratch::new("round-trip");
        let folder = scratch.0.join("made/on/demand");
        assert_eq!(read_from(&folder, "k"), None);
        for content in [&b"machine code"[..], b"", b"other"] {
            write_to(&folder, "k", content).unwrap();
            assert_eq!(read_from(&folder, "k").as_deref(), Some(content));
        }
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1, "nothing is left beside it");
    }

    #[test]
    fn a_damaged_file_is_none() {
        let scratch = Scratch::new("damaged");
        write_to(&scratch.0, "k", b"machine code").unwrap();
        let whole = fs::read(scratch.0.join("k")).unwrap();
        for length in 0..whole.len() {
            fs::write(scratch.0.join("k"), &whole[..length]).unwrap();
            assert_eq!(read_from(&scratch.0, "k"), None, "{length} bytes");
        }
        for place in 0..whole.len() {
            let mut changed = whole.clone();
            changed[place] ^= 1;
            fs::write(scratch.0.join("k"), &changed).unwrap();
            assert_eq!(read_from(&scratch.0, "k"), None, "byte {place}");
        }
    }

    #[test]
    fn a_folder_that_cannot_be_made_is_an_error() {
        let scratch = Scratch::new("refused");
        fs::write(scratch.0.join("file"), "").unwrap();
        assert!(write_to(&scratch.0.join("file/inside"), "k", b"x").is_err());
    }
}
