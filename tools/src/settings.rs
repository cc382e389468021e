//! The allocator's settings that a command runs with.

use highwater::Settings;

use crate::failure::InputError;

/// The environment's settings, with these `key:value` pairs above them, the last above all.
///
/// # Errors
/// When a pair is bad, there or here.
pub(crate) fn above_environment(pairs: impl IntoIterator<Item = String>) -> Result<Settings, InputError> {
    let environment = Settings::from_environment().map_err(bad)?;
    let mut all: Vec<_> = environment.pairs().into_iter().map(|(key, value)| format!("{key}:{value}")).collect();
    all.extend(pairs);
    Settings::parse(&all.join(",")).map_err(bad)
}

fn bad(error: impl ToString) -> InputError {
    InputError::Settings(error.to_string())
}
