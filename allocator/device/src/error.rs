//! What a device call can answer besides success.

use crate::{Address, DeviceCall};

/// The result of a device call.
pub type DeviceResult<T> = Result<T, DeviceError>;

/// Why a device call failed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// No physical memory left for a handle of this size.
    #[error("the device has no {requested} bytes free ({free} are)")]
    OutOfMemory {
        /// Bytes asked for.
        requested: u64,
        /// Bytes free.
        free: u64,
    },
    /// An argument that no device can accept.
    #[error("{call}: {what}")]
    InvalidValue {
        /// The call.
        call: DeviceCall,
        /// What is wrong with which argument.
        what: String,
    },
    /// A call that a capture forbids; the capture is spoilt.
    #[error("{call} is not allowed while a stream of the device captures; the capture is spoilt")]
    CaptureViolation {
        /// The call, or the one that spoilt the capture when its end is refused.
        call: DeviceCall,
    },
    /// An operation touched memory that is not mapped (or not accessible) there.
    #[error("operation {operation:?} touched {address} on {stream:?}, which is not mapped")]
    IllegalAddress {
        /// The operation.
        operation: String,
        /// The stream's name.
        stream: String,
        /// The first bad address.
        address: Address,
    },
    /// Memory was unmapped under work that still uses it.
    #[error("{address} was unmapped while operation {operation:?} on {stream:?} still uses it")]
    UnmappedInUse {
        /// The mapping.
        address: Address,
        /// The operation that is queued or running.
        operation: String,
        /// Its stream's name.
        stream: String,
    },
    /// Ranks issued collectives that do not match.
    #[error("collective {sequence} of {communicator:?}: {what}")]
    CollectiveMismatch {
        /// The communicator's name.
        communicator: String,
        /// Number of the collective on the communicator, from 0.
        sequence: u64,
        /// Which ranks differ, in what.
        what: String,
    },
    /// Nothing can proceed: every host waits and no queued work can start.
    #[error("deadlock: {cycle}")]
    Deadlock {
        /// Those that wait for each other, in a circle, then those that hang behind them; where there is no circle,
        /// first what lacks somebody who will not come.
        cycle: String,
    },
    /// The nth call, made to fail on purpose.
    #[error("injected failure of {call} number {nth}")]
    Injected {
        /// The call.
        call: DeviceCall,
        /// Its number, from 1.
        nth: u64,
    },
    /// The body of an operation panicked.
    #[error("the body of operation {operation:?} on {stream:?} panicked: {message}")]
    BodyPanicked {
        /// The operation.
        operation: String,
        /// The stream's name.
        stream: String,
        /// What it said.
        message: String,
    },
    /// The host code of a rank panicked, so that the other ranks cannot go on.
    #[error("the host of rank {rank} panicked: {message}")]
    HostPanicked {
        /// The rank.
        rank: u32,
        /// What it said.
        message: String,
    },
    /// A library of the system that is not there, or has not what is needed.
    #[error("{library} is missing: {what}")]
    Missing {
        /// The library, e.g. `libcuda.so.1`.
        library: String,
        /// What follows from it, and what to do.
        what: String,
    },
    /// What the driver, or a library on it, answered.
    #[error("{call}: {name} ({text})")]
    Driver {
        /// The call.
        call: DeviceCall,
        /// The error's name, e.g. `CUDA_ERROR_ILLEGAL_ADDRESS`.
        name: String,
        /// The driver's words.
        text: String,
    },
    /// An earlier fault; the device does nothing any more.
    #[error("the device is poisoned by an earlier fault: {fault}")]
    Poisoned {
        /// The fault.
        fault: Box<DeviceError>,
    },
}

/// What a driver says when work on a stream failed, whichever call it answers so.
const OF_WORK: &[&str] = &[
    "CUDA_ERROR_ASSERT",
    "CUDA_ERROR_HARDWARE_STACK_ERROR",
    "CUDA_ERROR_ILLEGAL_ADDRESS",
    "CUDA_ERROR_ILLEGAL_INSTRUCTION",
    "CUDA_ERROR_INVALID_ADDRESS_SPACE",
    "CUDA_ERROR_INVALID_PC",
    "CUDA_ERROR_LAUNCH_FAILED",
    "CUDA_ERROR_LAUNCH_TIMEOUT",
    "CUDA_ERROR_MISALIGNED_ADDRESS",
];

impl DeviceError {
    /// The failure of work on a stream that this tells of, if it does. Such work was submitted by an earlier call: the
    /// one that returns the error is only the first that noticed, or, after [`Poisoned`](DeviceError::Poisoned), one of
    /// those that came later still.
    #[must_use]
    pub fn failed_work(&self) -> Option<&DeviceError> {
        match self {
            DeviceError::Poisoned { fault } => fault.failed_work(),
            DeviceError::IllegalAddress { .. } | DeviceError::BodyPanicked { .. } => Some(self),
            DeviceError::Driver { name, .. } if OF_WORK.contains(&&**name) => Some(self),
            _ => None,
        }
    }

    /// The operation of that work and the name of its stream, as far as the device knows them: a driver does not tell.
    #[must_use]
    pub fn failed_operation(&self) -> Option<(&str, &str)> {
        match self.failed_work()? {
            DeviceError::IllegalAddress { operation, stream, .. }
            | DeviceError::BodyPanicked { operation, stream, .. } => Some((operation, stream)),
            _ => None,
        }
    }
}

/// The error for an argument that cannot be accepted.
pub(crate) fn invalid(call: DeviceCall, what: impl Into<String>) -> DeviceError {
    DeviceError::InvalidValue { call, what: what.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn poisoned(fault: DeviceError) -> DeviceError {
        DeviceError::Poisoned { fault: Box::new(fault) }
    }

    #[test]
    fn failed_work_is_told_from_failed_calls() {
        let (operation, stream) = ("bad".to_owned(), "s".to_owned());
        let work = DeviceError::BodyPanicked { operation, stream, message: "oh".into() };
        assert_eq!(work.failed_operation(), Some(("bad", "s")));
        assert_eq!(poisoned(work.clone()).failed_work(), Some(&work));
        assert_eq!(poisoned(work).failed_operation(), Some(("bad", "s")));

        let driver = |name: &str| {
            let (name, text) = (name.to_owned(), String::new());
            DeviceError::Driver { call: DeviceCall::Query, name, text }
        };
        assert!(driver("CUDA_ERROR_ILLEGAL_ADDRESS").failed_work().is_some());
        assert_eq!(driver("CUDA_ERROR_ILLEGAL_ADDRESS").failed_operation(), None, "the driver does not tell");
        assert_eq!(driver("CUDA_ERROR_INVALID_VALUE").failed_work(), None);

        let call = DeviceError::Injected { call: DeviceCall::Map, nth: 1 };
        assert_eq!((call.failed_work(), poisoned(call.clone()).failed_work()), (None, None));
    }
}
