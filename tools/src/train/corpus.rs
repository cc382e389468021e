//! The text that is trained on: files given by the user, or the checkout's own text and sources.
//!
//! Files are joined as they are, with nothing between them. Of a checkout, files come in the order of their paths, so
//! the same checkout gives the same bytes on every machine.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::checkout;
use crate::failure::InputError;

/// Extensions of a checkout's text and sources.
const EXTENSIONS: [&str; 6] = ["rs", "md", "toml", "cu", "py", "txt"];

/// Folders of a checkout, at any depth, that hold what was made from it.
const MADE: [&str; 2] = ["target", "runs"];

/// Text to train on.
#[derive(Debug)]
pub(crate) struct Corpus {
    /// The bytes.
    pub(crate) bytes: Arc<[u8]>,
    /// Where they come from, for people.
    pub(crate) place: String,
}

impl Corpus {
    /// Reads `files` in their order; without any, the text and sources of the checkout around `start`.
    pub(crate) fn read(files: &[PathBuf], start: &Path) -> Result<Self, InputError> {
        if !files.is_empty() {
            return Ok(Corpus { bytes: join(files)?, place: format!("FILES: {}", count(files.len())) });
        }
        let root = checkout::root(start).ok_or_else(|| InputError::NoCheckout(start.to_owned()))?;
        let files = sources(&root)?;
        let place = format!("{} of the checkout {}", count(files.len()), root.display());
        Ok(Corpus { bytes: join(&files)?, place })
    }

    /// Refuses a corpus that has no room for a sequence of `seq` tokens and the target of its last.
    pub(crate) fn check_length(&self, seq: u64) -> Result<(), InputError> {
        let (bytes, needed) = (self.bytes.len() as u64, seq + 1);
        if bytes < needed {
            return Err(InputError::TooShort { bytes, place: self.place.clone(), needed });
        }
        Ok(())
    }

    /// Entropy of its bytes taken one by one, nats: the loss of a model that knows how frequent each byte is, and
    /// nothing else.
    pub(crate) fn unigram_entropy(&self) -> f64 {
        let mut counts = [0_u64; 256];
        for &byte in &*self.bytes {
            counts[usize::from(byte)] += 1;
        }
        let all = self.bytes.len() as f64;
        let term = |count: u64| (count as f64 / all) * (all / count as f64).ln();
        counts.into_iter().filter(|&count| count > 0).map(term).sum()
    }
}

fn count(files: usize) -> String {
    if files == 1 { "1 file".to_owned() } else { format!("{files} files") }
}

fn unreadable(path: &Path, error: &io::Error) -> InputError {
    InputError::Unreadable { path: path.to_owned(), reason: error.to_string() }
}

fn join(files: &[PathBuf]) -> Result<Arc<[u8]>, InputError> {
    let mut bytes = Vec::new();
    for file in files {
        // Asked first: reading a folder fails with words that do not say what to do.
        if file.is_dir() {
            return Err(InputError::Folder(file.clone()));
        }
        bytes.extend(fs::read(file).map_err(|error| unreadable(file, &error))?);
    }
    Ok(bytes.into())
}

/// The text and sources of a checkout, by path. Links are not followed: they may lead out of it, or round in a circle.
fn sources(root: &Path) -> Result<Vec<PathBuf>, InputError> {
    let (mut folders, mut files) = (vec![root.to_owned()], Vec::new());
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).map_err(|error| unreadable(&folder, &error))? {
            let entry = entry.map_err(|error| unreadable(&folder, &error))?;
            let path = entry.path();
            let kind = entry.file_type().map_err(|error| unreadable(&path, &error))?;
            let name = entry.file_name();
            if kind.is_dir() && !is_skipped(&name) {
                folders.push(path);
            } else if kind.is_file() && is_source(&path, &name) {
                files.push(path);
            }
        }
    }
    files.sort();
    Ok(files)
}

fn is_skipped(folder: &OsStr) -> bool {
    folder.as_encoded_bytes().starts_with(b".") || MADE.iter().any(|&made| folder == made)
}

fn is_source(path: &Path, name: &OsStr) -> bool {
    // `Cargo.lock` has none of the extensions.
    path.extension().is_some_and(|extension| EXTENSIONS.iter().any(|&known| extension == known))
        || name.as_encoded_bytes().starts_with(b"LICENSE")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;

    fn of(text: &str) -> Corpus {
        Corpus { bytes: text.as_bytes().into(), place: "a test".into() }
    }

    #[test]
    fn files_are_joined_in_the_order_given() {
        let scratch = Scratch::new();
        let (a, b) = (scratch.write("a.bin", "first "), scratch.write("b.bin", "second "));
        let corpus = Corpus::read(&[b.clone(), a, b], scratch.path()).unwrap();
        assert_eq!(&*corpus.bytes, b"second first second ");
    }

    #[test]
    fn a_checkout_gives_its_text_by_path() {
        let scratch = Scratch::new();
        for (path, text) in [
            ("Cargo.toml", "[workspace]\n"),
            ("Cargo.lock", "lock"),
            ("LICENSE-MIT", "mit "),
            ("allocator/src/lib.rs", "lib "),
            ("allocator/src/lib/deep.cu", "deep "),
            ("allocator/target/made.rs", "made"),
            ("docs/b.md", "b "),
            ("docs/a.txt", "a "),
            ("docs/picture.png", "picture"),
            (".github/x.md", "hidden"),
            ("runs/1/notes.txt", "run"),
            ("target/debug/x.rs", "target"),
            ("tool.py", "tool "),
        ] {
            scratch.write(path, text);
        }
        let corpus = Corpus::read(&[], &scratch.path().join("docs")).unwrap();
        let text = String::from_utf8(corpus.bytes.to_vec()).unwrap();
        assert_eq!(text, "[workspace]\nmit deep lib a b tool ");
        assert!(corpus.place.starts_with("7 files of the checkout "));
    }

    #[cfg(unix)]
    #[test]
    fn links_of_a_checkout_are_not_followed() {
        let scratch = Scratch::new();
        scratch.write("Cargo.toml", "[workspace]\n");
        scratch.write("allocator/lib.rs", "lib");
        std::os::unix::fs::symlink(scratch.path(), scratch.path().join("allocator/round")).unwrap();
        let corpus = Corpus::read(&[], scratch.path()).unwrap();
        assert_eq!(&*corpus.bytes, b"[workspace]\nlib");
    }

    #[test]
    fn a_corpus_needs_a_sequence_and_one_byte() {
        assert_eq!(of("12345").check_length(4), Ok(()));
        let refused = InputError::TooShort { bytes: 5, place: "a test".into(), needed: 6 };
        assert_eq!(of("12345").check_length(5), Err(refused));
    }

    #[test]
    fn entropy_is_that_of_the_bytes() {
        assert_eq!(of("aaaa").unigram_entropy(), 0.0);
        assert!((of("abab").unigram_entropy() - 2_f64.ln()).abs() < 1e-15);
        // Half, a quarter, a quarter: one and a half bits.
        assert!((of("aabcaabc").unigram_entropy() - 1.5 * 2_f64.ln()).abs() < 1e-15);
    }
}
