//! CUDA's run-time compiler, with what makes its calls sound.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char};

use cudarc::nvrtc::sys;

use super::BuildError;

const LIBRARY: &str = "CUDA's compiler (libnvrtc.so)";

/// # Errors
/// [`BuildError::Missing`] when the library is not there.
pub(super) fn check_present() -> Result<(), BuildError> {
    // SAFETY: it opens the library and closes it again, which runs no code of ours.
    if unsafe { sys::is_culib_present() } {
        return Ok(());
    }
    let what = "install CUDA 13.0's NVRTC and put its folder on LD_LIBRARY_PATH";
    Err(BuildError::Missing { library: LIBRARY, what })
}

/// Major and minor.
pub(super) fn version() -> Result<(i32, i32), BuildError> {
    check_present()?;
    let (mut major, mut minor) = (0, 0);
    // SAFETY: the library is there; it stores two numbers.
    check("asking NVRTC for its version", unsafe { sys::nvrtcVersion(&mut major, &mut minor) })?;
    Ok((major, minor))
}

/// What compiling a program gave.
pub(super) struct Compiled {
    /// Machine code, if it compiles.
    pub(super) cubin: Option<Vec<u8>>,
    /// The compiler's words.
    pub(super) log: String,
}

/// Compiles a program for real hardware, with headers by name.
///
/// # Panics
/// When a text holds a zero byte: all of them are this crate's own, or paths.
pub(super) fn compile(
    name: &str,
    source: &str,
    headers: &[(&str, &str)],
    options: &[String],
) -> Result<Compiled, BuildError> {
    check_present()?;
    let text = |text: &str| CString::new(text).expect("neither sources nor options hold zero bytes");
    let (name, source) = (text(name), text(source));
    let names: Vec<CString> = headers.iter().map(|(name, _)| text(name)).collect();
    let contents: Vec<CString> = headers.iter().map(|(_, content)| text(content)).collect();
    let options: Vec<CString> = options.iter().map(|option| text(option)).collect();
    let pointers = |texts: &[CString]| texts.iter().map(|text| text.as_ptr()).collect::<Vec<*const c_char>>();
    let (names_at, contents_at, options_at) = (pointers(&names), pointers(&contents), pointers(&options));
    let count = |length: usize| i32::try_from(length).expect("a handful");

    let mut program = Program(std::ptr::null_mut());
    // SAFETY: all texts live until the end of this function, and so does the program.
    let created = unsafe {
        sys::nvrtcCreateProgram(
            &mut program.0,
            source.as_ptr(),
            name.as_ptr(),
            count(names.len()),
            contents_at.as_ptr(),
            names_at.as_ptr(),
        )
    };
    check("giving NVRTC a program", created)?;
    // SAFETY: the program and the options are alive.
    let answer = unsafe { sys::nvrtcCompileProgram(program.0, count(options.len()), options_at.as_ptr()) };
    let log = program.read("reading NVRTC's log", sys::nvrtcGetProgramLogSize, sys::nvrtcGetProgramLog)?;
    let log = String::from_utf8_lossy(&log).trim_matches(['\0', '\n', ' ']).to_owned();
    if answer == sys::nvrtcResult::NVRTC_ERROR_COMPILATION {
        return Ok(Compiled { cubin: None, log });
    }
    check("compiling", answer)?;
    let cubin = program.read("reading the machine code", sys::nvrtcGetCUBINSize, sys::nvrtcGetCUBIN)?;
    Ok(Compiled { cubin: Some(cubin), log })
}

struct Program(sys::nvrtcProgram);

impl Program {
    /// Reads something whose size the library tells first.
    fn read(
        &self,
        doing: &str,
        size: unsafe fn(sys::nvrtcProgram, *mut usize) -> sys::nvrtcResult,
        read: unsafe fn(sys::nvrtcProgram, *mut c_char) -> sys::nvrtcResult,
    ) -> Result<Vec<u8>, BuildError> {
        let mut bytes = 0;
        // SAFETY: the program is alive; the library stores one number.
        check(doing, unsafe { size(self.0, &mut bytes) })?;
        let mut content = vec![0u8; bytes];
        // SAFETY: the program is alive, and the buffer is as large as the library said.
        check(doing, unsafe { read(self.0, content.as_mut_ptr().cast()) })?;
        Ok(content)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        if !self.0.is_null() {
            // SAFETY: it was made by the library, and is gone now.
            let _ = unsafe { sys::nvrtcDestroyProgram(&mut self.0) };
        }
    }
}

fn check(doing: &str, answer: sys::nvrtcResult) -> Result<(), BuildError> {
    if answer == sys::nvrtcResult::NVRTC_SUCCESS {
        return Ok(());
    }
    // SAFETY: the library is there, and answers with a static text.
    let text = unsafe { CStr::from_ptr(sys::nvrtcGetErrorString(answer)) };
    Err(BuildError::Library { doing: doing.into(), answer: text.to_string_lossy().into_owned() })
}
