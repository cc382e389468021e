//! `highwater kernels`: compiles every kernel and tells what it takes.

use highwater_kernels::cuda::{CompiledEntry, compile_all};
use serde_json::json;

use crate::cli::KernelsArgs;
use crate::failure::{Failure, InputError};
use crate::output;

/// Compiles all kernels and prints a line for each.
///
/// # Errors
/// A name that is no architecture, a compiler that is missing, a kernel that does not compile, or kernels that spill.
pub(crate) fn run(arguments: &KernelsArgs) -> Result<(), Failure> {
    let digits = arguments.arch.strip_prefix("sm_").unwrap_or_default();
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(InputError::Architecture(arguments.arch.clone()).into());
    }
    let entries = compile_all(&arguments.arch).map_err(Failure::Kernels)?;
    let text: String = entries.iter().map(|entry| if arguments.json { object(entry) } else { line(entry) }).collect();
    output::print(&text).map_err(Failure::Print)?;
    match entries.iter().filter(|entry| entry.spill_bytes > 0).count() {
        0 => Ok(()),
        spilling => Err(Failure::Spills { spilling, arch: arguments.arch.clone() }),
    }
}

fn line(entry: &CompiledEntry) -> String {
    let CompiledEntry { file, entry, registers, shared_bytes, spill_bytes } = entry;
    let spills = if *spill_bytes > 0 { format!(" {spill_bytes:>5} B spilt") } else { String::new() };
    format!("{file:<18} {entry:<40} {registers:>3} registers {shared_bytes:>6} B shared{spills}\n")
}

fn object(entry: &CompiledEntry) -> String {
    let CompiledEntry { file, entry, registers, shared_bytes, spill_bytes } = entry;
    let object = json!({
        "file": file, "entry": entry, "registers": registers, "shared_bytes": shared_bytes, "spill_bytes": spill_bytes,
    });
    format!("{object}\n")
}
