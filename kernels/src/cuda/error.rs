//! Why a kernel cannot be had on a GPU.

use std::path::PathBuf;

/// Why a kernel, or a library that it needs, cannot be had. None of it is lost: the next call tries again.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// A library of CUDA that is not there.
    #[error("{library} is missing: {what}")]
    Missing {
        /// The library.
        library: &'static str,
        /// What to do.
        what: &'static str,
    },
    /// The headers that kernels include.
    #[error(
        "cuda_bf16.h was not found in {}; install CUDA's runtime headers and set CUDA_HOME to the folder above include/",
        looked_in.iter().map(|folder| folder.display().to_string()).collect::<Vec<_>>().join(", ")
    )]
    Headers {
        /// Where it was looked for.
        looked_in: Vec<PathBuf>,
    },
    /// The compiler refuses a file.
    #[error("{file} does not compile for {arch}: {log}")]
    Refused {
        /// The file.
        file: &'static str,
        /// The architecture.
        arch: String,
        /// The compiler's words.
        log: String,
    },
    /// What a library answered.
    #[error("{doing}: {answer}")]
    Library {
        /// What was being done.
        doing: String,
        /// The library's answer.
        answer: String,
    },
}
