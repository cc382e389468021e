//! What trains: the simulated cluster, or a GPU with its ranks in one process or in several.

use highwater_fsdp::group::Place;

use crate::cli::{Device, GroupKind, TrainArgs};
use crate::doctor;
use crate::failure::InputError;

/// Ranks when the command line names none.
const SIMULATED_RANKS: u32 = 4;

/// What trains.
#[derive(Debug)]
pub(crate) enum Machine {
    /// Simulated GPUs.
    Simulated,
    /// One GPU, a thread for each rank.
    Threads,
    /// This process is one rank of several, each on a GPU.
    Nccl(Place),
}

impl Machine {
    /// The machine that the command line asks for, and the number of ranks on it. Nothing is opened, but what is missing
    /// for it is told.
    pub(crate) fn choose(arguments: &TrainArgs) -> Result<(Self, u32), InputError> {
        match (arguments.device, arguments.group) {
            (Device::Sim, GroupKind::Local) => Ok((Machine::Simulated, arguments.ranks.unwrap_or(SIMULATED_RANKS))),
            (Device::Sim, GroupKind::Nccl) => Err(InputError::NcclNeedsCuda),
            (Device::Cuda, GroupKind::Local) => {
                doctor::require(doctor::Need::Training)?;
                Ok((Machine::Threads, arguments.ranks.unwrap_or(1)))
            }
            (Device::Cuda, GroupKind::Nccl) => {
                doctor::require(doctor::Need::TrainingInProcesses)?;
                let place = Place::from_environment().map_err(|error| InputError::Place(error.to_string()))?;
                match arguments.ranks {
                    Some(ranks) if ranks != place.world_size => {
                        Err(InputError::OtherWorld { ranks, world_size: place.world_size })
                    }
                    _ => {
                        let ranks = place.world_size;
                        Ok((Machine::Nccl(place), ranks))
                    }
                }
            }
        }
    }

    /// The folder of this process in that of the run, where there are several.
    pub(crate) fn folder(&self) -> Option<String> {
        match self {
            Machine::Simulated | Machine::Threads => None,
            Machine::Nccl(place) => Some(format!("rank-{}", place.rank)),
        }
    }

    /// Whether this process tells what the training came to: one of all does.
    pub(crate) fn tells(&self) -> bool {
        match self {
            Machine::Simulated | Machine::Threads => true,
            Machine::Nccl(place) => place.rank == 0,
        }
    }
}
