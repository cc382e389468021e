//! What `highwater why` is given: snapshots, plain or compressed, texts, folders.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use highwater::history::read;
use highwater::history::why::{Message, Options, explain};

use super::{Answer, Ranks, unreadable};
use crate::failure::{Failure, InputError};
use crate::input::{bytes, mended, place, salvage};

/// A snapshot that is no JSON begins so: a pickle, gzip, xz, zstd.
const STARTS: &[&[u8]] = &[b"\x80", b"\x1f\x8b", b"\xfd7zXZ", b"\x28\xb5\x2f\xfd"];

fn is_snapshot(bytes: &[u8]) -> bool {
    STARTS.iter().any(|start| bytes.starts_with(start)) || read::is_json(bytes)
}

/// Whether a file of a folder is one, by its first bytes. Other JSON may lie beside snapshots: only what begins with a
/// key of one counts.
fn starts_a_snapshot(start: &[u8]) -> bool {
    const KEYS: [&[u8]; 4] = [b"\"segments\"", b"\"device_traces\"", b"\"allocator_settings\"", b"\"total_size\""];
    let has = |key: &&[u8]| start.windows(key.len()).any(|part| part == *key);
    is_snapshot(start) && (!read::is_json(start) || KEYS.iter().any(has))
}

/// Whether a file that is empty was to be one, by its name.
fn is_called_a_snapshot(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
    name.split('.').skip(1).any(|part| matches!(part, "pickle" | "pkl"))
}

/// The answer for a file, or for stdin if the path is `-`.
pub(super) fn answer(path: &Path, options: &Options, device: Option<usize>) -> Result<Answer, Failure> {
    explained(place(path), &bytes(path)?, options, device)
}

fn explained(place: String, bytes: &[u8], options: &Options, device: Option<usize>) -> Result<Answer, Failure> {
    let wrong = |reason: String| InputError::NotExplained { place: place.clone(), reason };
    if !is_snapshot(bytes) {
        let text = str::from_utf8(bytes).map_err(|_| wrong("this is no snapshot, and no text".to_owned()))?;
        let message = Message::parse(text).map_err(|error| wrong(error.to_string()))?;
        return Ok(Answer { place, verdicts: vec![message.verdict()] });
    }
    let loaded = salvage(bytes).map_err(|error| wrong(error.to_string()))?;
    let mut verdicts = explain(&mended(loaded), options);
    if let Some(device) = device {
        verdicts.retain(|verdict| verdict.device == device);
        if verdicts.is_empty() {
            return Err(InputError::NoDevice { device, place }.into());
        }
    }
    if verdicts.is_empty() {
        return Err(wrong("the snapshot has neither events nor memory: was recording on?".to_owned()).into());
    }
    Ok(Answer { place, verdicts })
}

/// The message in a file.
pub(super) fn message(path: &Path) -> Result<Message, Failure> {
    let bytes = bytes(path)?;
    let wrong = |reason: String| InputError::NotExplained { place: place(path), reason };
    let text = str::from_utf8(&bytes).map_err(|_| wrong("this is no text".to_owned()))?;
    Ok(Message::parse(text).map_err(|error| wrong(error.to_string()))?)
}

/// The answers for the snapshots of a folder, by rank, as many at a time as there are cores. A rank that died while it
/// wrote may leave a file that is none: the others are told all the same.
///
/// # Errors
/// When there is no snapshot, or none of them can be read.
pub(super) fn ranks(folder: &Path, options: &Options, device: Option<usize>) -> Result<Ranks, Failure> {
    let mut paths = snapshots(folder)?;
    if paths.is_empty() {
        return Err(InputError::NoSnapshots(folder.to_owned()).into());
    }
    paths.sort_by_key(|path| (rank(path), path.clone()));
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let mut ranks = Ranks::default();
    let mut first = None;
    for some in paths.chunks(cores) {
        let done: Vec<_> = std::thread::scope(|scope| {
            let started: Vec<_> = some.iter().map(|path| scope.spawn(|| answer(path, options, device))).collect();
            started.into_iter().map(|thread| thread.join().expect("reading and judging do not panic")).collect()
        });
        for (path, answer) in some.iter().zip(done) {
            match answer {
                Ok(answer) => ranks.answers.push(answer),
                Err(failure) => {
                    ranks.left_out.push((place(path), failure.to_string()));
                    first.get_or_insert(failure);
                }
            }
        }
    }
    match first {
        Some(failure) if ranks.answers.is_empty() => Err(failure),
        _ => Ok(ranks),
    }
}

fn snapshots(folder: &Path) -> Result<Vec<PathBuf>, Failure> {
    let mut paths = Vec::new();
    for entry in fs::read_dir(folder).map_err(|error| unreadable(folder, &error))? {
        let path = entry.map_err(|error| unreadable(folder, &error))?.path();
        if !path.is_file() {
            continue;
        }
        let mut start = Vec::new();
        let read = fs::File::open(&path).and_then(|file| file.take(512).read_to_end(&mut start));
        read.map_err(|error| unreadable(&path, &error))?;
        if starts_a_snapshot(&start) || start.is_empty() && is_called_a_snapshot(&path) {
            paths.push(path);
        }
    }
    Ok(paths)
}

/// The rank that a name tells: the number behind `rank`, else the first one.
fn rank(path: &Path) -> u64 {
    let name = path.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
    let start = name.find("rank").map_or(0, |at| at + 4);
    let digits = name[start..].chars().skip_while(|c| !c.is_ascii_digit()).take_while(char::is_ascii_digit);
    digits.collect::<String>().parse().unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_told_by_names() {
        let of = |name: &str| rank(Path::new(name));
        assert_eq!(of("x/rank10_memory_snapshot.pickle"), 10);
        assert_eq!(of("oom_rank_3.pickle.gz"), 3);
        assert_eq!(of("7.pickle"), 7);
        assert_eq!(of("snapshot.pickle"), u64::MAX);
    }

    #[test]
    fn snapshots_are_told_by_their_first_bytes() {
        assert!(
            is_snapshot(b"\x80\x04")
                && is_snapshot(b"\xfd7zXZ\0")
                && !is_snapshot(b"CUDA out of memory")
                && !is_snapshot(b"")
        );
        assert!(starts_a_snapshot(b"{\"segments\": [") && starts_a_snapshot(b"\x80\x04"));
        assert!(!starts_a_snapshot(b"{\"batch\": 8}") && !starts_a_snapshot(b"[rank0]: \"segments\""));
    }
}
