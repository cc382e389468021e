//! `highwater view`: a snapshot as one page that any browser shows, with memory over time, a map of it at any moment, and
//! the verdict.

mod columns;
mod facts;
mod open;
mod page;

use std::io::Write;
use std::path::{Path, PathBuf};

use highwater::history::replace_file;

use crate::cli::ViewArgs;
use crate::failure::{Failure, InputError};
use crate::{input, output};

pub(crate) use open::{Opened, open};

/// Writes the page.
///
/// # Errors
/// When the input is no snapshot, or the page cannot be written.
pub(crate) fn run(arguments: &ViewArgs) -> Result<(), Failure> {
    let out = arguments.out.clone().unwrap_or_else(|| beside(&arguments.snapshot));
    let to_stdout = input::is_standard(&out);
    if !to_stdout && input::is_same(&out, &arguments.snapshot) {
        return Err(InputError::OverSnapshot(out).into());
    }
    let opened = open(&arguments.snapshot, arguments.capacity)?;
    let page = page::page(&opened);
    if to_stdout {
        return output::print(&page).map_err(Failure::Print);
    }
    replace_file(&out, |mut file| file.write_all(page.as_bytes())).map_err(|error| Failure::write(&out, error))?;
    let told = format!("{}: open it in a browser; it needs no network\n", output::written(&out));
    output::print(&told).map_err(Failure::Print)
}

/// The page's file: the name of the snapshot without the ends that say how it is stored, in the current folder.
fn beside(snapshot: &Path) -> PathBuf {
    let name = snapshot.file_name().map_or("stdin".into(), |name| name.to_string_lossy());
    let mut name: &str = if name == "-" { "stdin" } else { &name };
    for end in [".xz", ".gz", ".zst", ".pickle", ".pkl", ".json"] {
        name = name.strip_suffix(end).filter(|rest| !rest.is_empty()).unwrap_or(name);
    }
    format!("{name}.html").into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_is_named_after_the_snapshot() {
        let name = |path: &str| beside(Path::new(path)).display().to_string();
        assert_eq!(name("a/rank0.pickle.xz"), "rank0.html");
        assert_eq!(name("snapshot.pickle"), "snapshot.html");
        assert_eq!(
            (name("dump"), name(".xz"), name("-")),
            ("dump.html".into(), ".xz.html".into(), "stdin.html".into())
        );
    }
}
