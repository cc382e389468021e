//! Links the library so that it stands in for the driver's: under the driver's name for programs that open it, and with
//! the real driver as the library behind it, where every symbol that is not replaced is found.
//!
//! The real driver need not be here: an empty library under its name takes its place while linking.

use std::path::PathBuf;
use std::process::Command;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let folder = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets it"));
    let stand_in = folder.join("libcuda.so.1");
    let compiler = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
    let status = Command::new(&compiler)
        .args(["-shared", "-nostdlib", "-Wl,-soname,libcuda.so.1", "-x", "c", "/dev/null", "-o"])
        .arg(&stand_in)
        .status()
        .unwrap_or_else(|error| panic!("the linker's driver {} does not run: {error}", compiler.to_string_lossy()));
    assert!(status.success(), "linking the stand-in for the driver failed");
    let arguments = [
        "-Wl,-soname,libcuda.so".to_owned(),
        "-Wl,--no-as-needed".to_owned(),
        stand_in.display().to_string(),
        // It has handlers of signals and of the exit, so it stays.
        "-Wl,-z,nodelete".to_owned(),
    ];
    for argument in arguments {
        println!("cargo:rustc-cdylib-link-arg={argument}");
    }
}
