//! Reading snapshots of any origin: PyTorch 2.0 to 2.15 from both of its writers, and this project's own.
//!
//! A snapshot of a million events is 160 MB or more of pickle. It is read in one pass: an instruction scanner, and a
//! stack machine that turns each event into a row of columns, and each frame and stack into a number, as soon as it is
//! complete. No tree of objects is made.
//!
//! Files come from anywhere. No instruction that could run code is carried out, nothing recurses on the input, and
//! memory is bounded by a small multiple of the file's bytes, whatever the file claims. A damaged or unfinished file is
//! an [error](ReadError) with the byte at which it stops making sense; if asked to, [`read`] gives what came before.
//!
//! Compressed files (gzip, xz, zstd) are recognised by their first bytes, and so is JSON, which some tools make of
//! pickles.
//!
//! ```
//! use highwater_history::{Snapshot, read};
//!
//! let mut file = Vec::new();
//! Snapshot::new().write_to(&mut file).unwrap();
//! let loaded = read::read(&file, &read::Options::default()).unwrap();
//! assert!(loaded.devices.is_empty());
//!
//! let cut = read::read(&file[..file.len() - 1], &read::Options::default()).unwrap_err();
//! assert_eq!(cut.offset(), Some(file.len() as u64 - 1));
//! ```

mod assemble;
#[cfg(feature = "unpack")]
mod decompress;
mod error;
mod event;
mod heap;
mod json;
mod loaded;
mod machine;
mod memo;
mod pool;
mod recorder;
mod shape;
mod short;
mod symbols;
mod trace;
mod unpack;
mod words;

use assemble::Assembly;

pub use error::ReadError;
pub use json::is_json;
pub use loaded::{Loaded, LoadedAnnotation, LoadedDevice, Recorder, Setting};
pub use shape::Part;
pub use symbols::{FrameId, FrameParts, Symbols, TextId};
pub use trace::{Event, EventAction, Trace};
pub use unpack::{Compression, unpack};

/// How to read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Options {
    /// Whether to give what was read before the error, if events or segments were.
    pub salvage: bool,
    /// Most bytes that a compressed file may unpack to. Apart from that, [`unpack`] has a limit of its own.
    pub max_unpacked_bytes: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self { salvage: false, max_unpacked_bytes: 64 << 30 }
    }
}

impl Options {
    /// These options, but giving what was read before an error.
    #[must_use]
    pub fn salvaging(self) -> Self {
        Self { salvage: true, ..self }
    }
}

/// Reads a snapshot file, plain or compressed.
///
/// # Errors
/// If the file is no snapshot, is damaged, ends too early, or needs code to be run. With [`Options::salvage`] only if
/// there was no event and no segment before that; otherwise the error is in [`Loaded::damage`].
pub fn read(file: &[u8], options: &Options) -> Result<Loaded, ReadError> {
    let unpacked = unpack::unpack_or_part(file, options.max_unpacked_bytes);
    let (pickle, packing_damage) = match unpacked {
        Ok(pickle) => (pickle, None),
        Err((error, part)) if options.salvage => (part.into(), Some(error)),
        Err((error, _)) => return Err(error),
    };
    let result = match is_json(&pickle) {
        true => read_json(&pickle, options.salvage),
        false => read_pickle(&pickle, options.salvage),
    };
    match result {
        Ok(loaded) => {
            let damage = packing_damage.or(loaded.damage);
            Ok(Loaded { compression: Compression::of(file), damage, ..loaded })
        }
        Err(error) => Err(packing_damage.unwrap_or(error)),
    }
}

fn read_pickle(pickle: &[u8], salvage: bool) -> Result<Loaded, ReadError> {
    if pickle.first() != Some(&0x80) {
        return Err(match pickle {
            [] => ReadError::Truncated { offset: 0 },
            _ => ReadError::NotAPickle(pickle[..pickle.len().min(4)].to_vec()),
        });
    }
    let mut machine = machine::Machine::new(pickle);
    let result = machine.run();
    let (protocol, offset) = (machine.protocol, machine.offset());
    match result {
        Ok(top) => Assembly::new(machine.into_found(), offset, salvage).run(top, protocol, None),
        Err(error) if salvage => match machine.close() {
            Some(top) => Assembly::new(machine.into_found(), offset, true).run(top, protocol, Some(error)),
            None => Err(error),
        },
        Err(error) => Err(error),
    }
}

fn read_json(text: &[u8], salvage: bool) -> Result<Loaded, ReadError> {
    let mut json = json::Json::new(text);
    let result = json.run();
    let offset = json.offset();
    let (top, damage) = match result {
        Ok(top) => (top, None),
        Err(error) if salvage => (json.close().ok_or(error.clone())?, Some(error)),
        Err(error) => return Err(error),
    };
    Assembly::new(json.into_found(), offset, salvage).run(top, 0, damage)
}
