//! Where the checkout is: its own text is the default corpus, and its `runs` folder the default place of results.

use std::fs;
use std::path::{Path, PathBuf};

/// The root of the checkout that `start` is in: the nearest folder upward with a `Cargo.toml` that has a `[workspace]`,
/// and a folder `allocator`.
pub(crate) fn root(start: &Path) -> Option<PathBuf> {
    start.ancestors().find(|folder| is_root(folder)).map(Path::to_owned)
}

fn is_root(folder: &Path) -> bool {
    folder.join("allocator").is_dir()
        && fs::read_to_string(folder.join("Cargo.toml"))
            .is_ok_and(|manifest| manifest.lines().any(|line| line.trim() == "[workspace]"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;

    #[test]
    fn the_nearest_folder_with_both_marks_is_the_root() {
        let scratch = Scratch::new();
        let deep = scratch.path().join("outer/inner/allocator/src");
        fs::create_dir_all(&deep).unwrap();
        assert_eq!(root(&deep), None, "no manifest");
        scratch.write("outer/inner/Cargo.toml", "[package]\nname = \"inner\"\n");
        assert_eq!(root(&deep), None, "no workspace");
        scratch.write("outer/Cargo.toml", "[workspace]\nmembers = []\n");
        assert_eq!(root(&deep), None, "no allocator beside the manifest");
        fs::create_dir(scratch.path().join("outer/allocator")).unwrap();
        assert_eq!(root(&deep), Some(scratch.path().join("outer")));
        scratch.write("outer/inner/Cargo.toml", "# inner\n[workspace]\n");
        assert_eq!(root(&deep), Some(scratch.path().join("outer/inner")));
    }
}
