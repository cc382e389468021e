//! From the sources in `kernels/cu` to machine code, and what the compiler tells of each kernel.

use std::collections::BTreeMap;
use std::path::PathBuf;

use parking_lot::Mutex;

use super::{BuildError, cache, nvrtc};

/// A file of kernels.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) enum Module {
    AdamW,
    Attention,
    Bias,
    Cast,
    CrossEntropy,
    Elementwise,
    Embedding,
    LayerNorm,
    Reduce,
}

/// Headers by name.
const HEADERS: &[(&str, &str)] = &[
    ("common.cuh", include_str!("../../cu/common.cuh")),
    ("attention_bf16.cuh", include_str!("../../cu/attention_bf16.cuh")),
    ("attention_f32.cuh", include_str!("../../cu/attention_f32.cuh")),
    ("attention_ptx.cuh", include_str!("../../cu/attention_ptx.cuh")),
    ("attention_shape.cuh", include_str!("../../cu/attention_shape.cuh")),
    ("attention_tile.cuh", include_str!("../../cu/attention_tile.cuh")),
];

impl Module {
    pub(crate) const ALL: &'static [Module] = &[
        Module::AdamW,
        Module::Attention,
        Module::Bias,
        Module::Cast,
        Module::CrossEntropy,
        Module::Elementwise,
        Module::Embedding,
        Module::LayerNorm,
        Module::Reduce,
    ];

    /// Name of the file, and its text.
    fn source(self) -> (&'static str, &'static str) {
        match self {
            Module::AdamW => ("adamw.cu", include_str!("../../cu/adamw.cu")),
            Module::Attention => ("attention.cu", include_str!("../../cu/attention.cu")),
            Module::Bias => ("bias.cu", include_str!("../../cu/bias.cu")),
            Module::Cast => ("cast.cu", include_str!("../../cu/cast.cu")),
            Module::CrossEntropy => ("cross_entropy.cu", include_str!("../../cu/cross_entropy.cu")),
            Module::Elementwise => ("elementwise.cu", include_str!("../../cu/elementwise.cu")),
            Module::Embedding => ("embedding.cu", include_str!("../../cu/embedding.cu")),
            Module::LayerNorm => ("layer_norm.cu", include_str!("../../cu/layer_norm.cu")),
            Module::Reduce => ("reduce.cu", include_str!("../../cu/reduce.cu")),
        }
    }

    pub(crate) fn file(self) -> &'static str {
        self.source().0
    }
}

/// What the compiler tells of one kernel.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CompiledEntry {
    /// The file.
    pub file: &'static str,
    /// The kernel.
    pub entry: String,
    /// Registers of a thread.
    pub registers: u64,
    /// Shared memory of a block that the kernel declares itself, bytes.
    pub shared_bytes: u64,
    /// Bytes of registers that are kept in memory, stored and loaded.
    pub spill_bytes: u64,
}

/// Machine code of a module for `arch`, e.g. `sm_90`: from the cache on disk, or compiled and put there.
pub(crate) fn machine_code(module: Module, arch: &str) -> Result<Vec<u8>, BuildError> {
    let version = nvrtc::version()?;
    let (file, source) = module.source();
    let options = options(arch);
    let ingredients = [file, source, &options.join(" "), &format!("{}.{}", version.0, version.1)];
    let headers = HEADERS.iter().flat_map(|(name, content)| [*name, *content]);
    let key = cache::key(ingredients.into_iter().chain(headers));
    // Once for all devices of the process, also where nothing can be kept on disk.
    static MADE: Mutex<BTreeMap<String, Vec<u8>>> = Mutex::new(BTreeMap::new());
    let mut made = MADE.lock();
    if let Some(known) = made.get(&key) {
        return Ok(known.clone());
    }
    if let Some(known) = cache::read(&key) {
        made.insert(key, known.clone());
        return Ok(known);
    }
    let (code, entries) = compile(module, arch)?;
    // Slow, and right: what no kernel here does on the architectures that it was tuned for.
    for entry in entries.iter().filter(|entry| entry.spill_bytes > 0) {
        tracing::warn!(entry.entry, entry.spill_bytes, arch, "a kernel keeps registers in memory");
    }
    cache::write(&key, &code);
    made.insert(key, code.clone());
    Ok(code)
}

/// Compiles every kernel for `arch`. Needs the compiler, and no GPU.
///
/// # Errors
/// What is missing, or the first file that does not compile.
pub fn compile_all(arch: &str) -> Result<Vec<CompiledEntry>, BuildError> {
    let mut all = Vec::new();
    for &module in Module::ALL {
        all.extend(compile(module, arch)?.1);
    }
    Ok(all)
}

fn compile(module: Module, arch: &str) -> Result<(Vec<u8>, Vec<CompiledEntry>), BuildError> {
    let (file, source) = module.source();
    nvrtc::check_present()?;
    let mut options = options(arch);
    options.push(format!("--include-path={}", header_folder()?.display()));
    let compiled = nvrtc::compile(file, source, HEADERS, &options)?;
    let Some(code) = compiled.cubin.filter(|code| !code.is_empty()) else {
        return Err(BuildError::Refused { file, arch: arch.into(), log: compiled.log });
    };
    Ok((code, told(file, &compiled.log)))
}

/// Options but for the folder of headers, whose place does not matter.
fn options(arch: &str) -> Vec<String> {
    vec![format!("--gpu-architecture={arch}"), "--std=c++17".into(), "--ptxas-options=-v".into()]
}

/// Where CUDA's headers are.
///
/// # Errors
/// [`BuildError::Headers`], with where they were looked for.
pub fn header_folder() -> Result<PathBuf, BuildError> {
    let mut folders = Vec::new();
    for variable in ["CUDA_HOME", "CUDA_PATH"] {
        folders.extend(std::env::var_os(variable).map(|root| PathBuf::from(root).join("include")));
    }
    folders.push("/usr/local/cuda/include".into());
    // Beside the libraries of a wheel: nvidia/cu13/lib and nvidia/cu13/include.
    if let Some(paths) = std::env::var_os("LD_LIBRARY_PATH") {
        folders.extend(std::env::split_paths(&paths).filter_map(|lib| Some(lib.parent()?.join("include"))));
    }
    let found = folders.iter().position(|folder| folder.join("cuda_bf16.h").is_file());
    match found {
        Some(index) => Ok(folders.swap_remove(index)),
        None => Err(BuildError::Headers { looked_in: folders }),
    }
}

/// What the log of `ptxas -v` tells of each kernel.
fn told(file: &'static str, log: &str) -> Vec<CompiledEntry> {
    let mut entries: Vec<CompiledEntry> = Vec::new();
    for line in log.lines() {
        if let Some(entry) = line.split("Compiling entry function '").nth(1).and_then(|rest| rest.split('\'').next()) {
            let entry = entry.to_owned();
            entries.push(CompiledEntry { file, entry, registers: 0, shared_bytes: 0, spill_bytes: 0 });
        }
        let Some(entry) = entries.last_mut() else { continue };
        let before = |word: &str| number_before(line, word);
        entry.registers = entry.registers.max(before(" registers"));
        entry.shared_bytes = entry.shared_bytes.max(before(" bytes smem"));
        entry.spill_bytes += before(" bytes spill stores") + before(" bytes spill loads");
    }
    entries
}

/// The number right before `word` in `line`, or 0.
fn number_before(line: &str, word: &str) -> u64 {
    let Some(end) = line.find(word) else { return 0 };
    let digits = line[..end].rfind(|character: char| !character.is_ascii_digit()).map_or(0, |last| last + 1);
    line[digits..end].parse().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = "ptxas info    : 0 bytes gmem\n\
        ptxas info    : Compiling entry function 'fill_f32' for 'sm_90'\n\
        ptxas info    : Function properties for fill_f32\n    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n\
        ptxas info    : Used 18 registers, used 0 barriers\n\
        ptxas info    : Compiling entry function 'heavy' for 'sm_90'\n\
        ptxas info    : Function properties for heavy\n    64 bytes stack frame, 40 bytes spill stores, 24 bytes spill loads\n\
        ptxas info    : Used 255 registers, used 1 barriers, 4224 bytes smem, 64 bytes cmem[0]\n";

    #[test]
    fn the_log_is_understood() {
        let entry = |entry: &str, registers, shared_bytes, spill_bytes| CompiledEntry {
            file: "x.cu",
            entry: entry.into(),
            registers,
            shared_bytes,
            spill_bytes,
        };
        assert_eq!(told("x.cu", LOG), [entry("fill_f32", 18, 0, 0), entry("heavy", 255, 4224, 64)]);
    }

    #[test]
    fn every_entry_has_its_module_and_every_header_a_user() {
        let sources: Vec<_> = Module::ALL.iter().map(|module| module.source()).collect();
        for (name, _) in HEADERS {
            let include = format!("#include \"{name}\"");
            let texts = sources.iter().map(|(_, text)| text).chain(HEADERS.iter().map(|(_, text)| text));
            assert!(texts.clone().any(|text| text.contains(&include)), "{name} is included nowhere");
        }
        let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("cu");
        for file in std::fs::read_dir(folder).unwrap() {
            let name = file.unwrap().file_name().into_string().unwrap();
            let known = sources.iter().map(|(name, _)| name).chain(HEADERS.iter().map(|(name, _)| name));
            assert!(known.clone().any(|known| *known == name), "cu/{name} is compiled nowhere");
        }
    }

    #[test]
    #[ignore = "needs NVRTC"]
    fn every_kernel_compiles_and_none_spills_where_they_were_tuned() {
        for arch in ["sm_80", "sm_90", "sm_100"] {
            let entries = compile_all(arch).unwrap();
            assert!(entries.len() > 30 && entries.iter().all(|entry| entry.registers > 0), "{entries:?}");
            let spilling: Vec<_> = entries.iter().filter(|entry| entry.spill_bytes > 0).collect();
            assert!(arch != "sm_90" || spilling.is_empty(), "{arch}: {spilling:?}");
        }
    }
}
