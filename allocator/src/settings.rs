//! Settings: a builder, and one environment variable.
//!
//! `HIGHWATER_ALLOC_CONF` holds `key:value` pairs separated by commas, with PyTorch's key names where the meaning is the
//! same. What is not valid is refused as a whole.

use std::path::{Path, PathBuf};
use std::time::Duration;

use highwater_core::Policy;

#[cfg(feature = "sanitizer")]
use highwater_sanitizer::OnRace;

use crate::error::SettingsError;

/// The environment variable.
pub(crate) const VARIABLE: &str = "HIGHWATER_ALLOC_CONF";

/// How an allocator behaves.
///
/// | key | value | default |
/// |---|---|---|
/// | `memory_limit_bytes` | most physical memory to hold, bytes, at least 1 | the device's memory |
/// | `per_process_memory_fraction` | the same as a part of the device's memory, above 0, at most 1 | 1 |
/// | `host_wait_timeout_ms` | longest time that one request blocks the host when memory is short | 10000 |
/// | `history_kib` | memory for the history of each stream, KiB; 0 records nothing | 4096 |
/// | `expandable_segments` | `True`: memory is always mapped piece by piece | `True` |
/// | `lending` | `True` or `False`: whether free memory of a stream may move to where others need it | `True` |
/// | `policy` | `wait` or `grow`: whether a stream waits for memory that others have used, or new memory is mapped first, as long as there is some | `grow` |
/// | `page_time` | part of the time that calls of the driver for memory should take at most, from 0 to 1, see [`SettingsBuilder::page_time`] | 0.008 |
/// | `launch_blocking` | `True` or `False`: whether each submission waits for its work, see [`SettingsBuilder::launch_blocking`] | `False` |
/// | `black_box` | a folder: what runs out of memory leaves a snapshot there, see [`SettingsBuilder::black_box`] | none |
/// | `sanitizer` | `off`, or what happens when a race is found: `collect`, `log` or `panic` (feature `sanitizer`) | `off` |
#[derive(Clone, PartialEq, Debug)]
pub struct Settings {
    memory_limit_bytes: Option<u64>,
    memory_fraction: f64,
    host_wait_timeout: Duration,
    history_kib: usize,
    lending: bool,
    policy: Policy,
    page_time: f64,
    launch_blocking: bool,
    black_box: Option<PathBuf>,
    #[cfg(feature = "sanitizer")]
    on_race: Option<OnRace>,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            memory_limit_bytes: None,
            memory_fraction: 1.0,
            host_wait_timeout: Duration::from_secs(10),
            history_kib: 4096,
            lending: true,
            policy: Policy::Grow,
            page_time: 0.008,
            launch_blocking: false,
            black_box: None,
            #[cfg(feature = "sanitizer")]
            on_race: None,
        }
    }
}

impl Settings {
    /// Starts from the defaults.
    #[must_use]
    pub fn builder() -> SettingsBuilder {
        SettingsBuilder { settings: Ok(Settings::default()) }
    }

    /// The defaults, changed by the environment variable if it is set.
    ///
    /// # Errors
    /// When it holds something that is not valid.
    pub fn from_environment() -> Result<Self, SettingsError> {
        match std::env::var(VARIABLE) {
            Ok(text) => Self::parse(&text),
            Err(std::env::VarError::NotPresent) => Ok(Self::default()),
            Err(std::env::VarError::NotUnicode(text)) => {
                Err(SettingsError::Syntax { text: text.to_string_lossy().into_owned() })
            }
        }
    }

    /// The defaults, changed by `key:value` pairs separated by commas.
    ///
    /// # Errors
    /// When a pair is not valid.
    pub fn parse(text: &str) -> Result<Self, SettingsError> {
        let mut builder = Self::builder();
        for pair in text.split(',').map(str::trim).filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once(':').ok_or_else(|| SettingsError::Syntax { text: pair.to_owned() })?;
            builder = builder.set(key.trim(), value.trim());
        }
        builder.build()
    }

    /// The most physical memory to hold on a device of `total` bytes.
    pub(crate) fn limit_bytes(&self, total: u64) -> u64 {
        let fraction = if self.memory_fraction < 1.0 { (total as f64 * self.memory_fraction) as u64 } else { total };
        self.memory_limit_bytes.unwrap_or(u64::MAX).min(fraction)
    }

    pub(crate) fn host_wait_timeout(&self) -> Duration {
        self.host_wait_timeout
    }

    pub(crate) fn history_bytes(&self) -> usize {
        self.history_kib.saturating_mul(1024)
    }

    pub(crate) fn lending(&self) -> bool {
        self.lending
    }

    pub(crate) fn policy(&self) -> Policy {
        self.policy
    }

    pub(crate) fn page_time(&self) -> f64 {
        self.page_time
    }

    pub(crate) fn launch_blocking(&self) -> bool {
        self.launch_blocking
    }

    pub(crate) fn black_box(&self) -> Option<&Path> {
        self.black_box.as_deref()
    }

    /// What happens when a race is found; `None` when the sanitizer is off.
    #[cfg(feature = "sanitizer")]
    pub(crate) fn on_race(&self) -> Option<OnRace> {
        self.on_race
    }

    /// All settings as (key, value).
    #[must_use]
    pub fn pairs(&self) -> Vec<(String, String)> {
        let mut pairs = vec![
            ("per_process_memory_fraction".into(), self.memory_fraction.to_string()),
            ("host_wait_timeout_ms".into(), self.host_wait_timeout.as_millis().to_string()),
            ("history_kib".into(), self.history_kib.to_string()),
            ("expandable_segments".into(), "True".into()),
            ("lending".into(), if self.lending { "True" } else { "False" }.into()),
            ("policy".into(), if self.policy == Policy::Wait { "wait" } else { "grow" }.into()),
            ("page_time".into(), self.page_time.to_string()),
            ("launch_blocking".into(), if self.launch_blocking { "True" } else { "False" }.into()),
        ];
        if let Some(limit) = self.memory_limit_bytes {
            pairs.insert(0, ("memory_limit_bytes".into(), limit.to_string()));
        }
        if let Some(folder) = &self.black_box {
            pairs.push(("black_box".into(), folder.display().to_string()));
        }
        #[cfg(feature = "sanitizer")]
        if let Some((name, _)) = SANITIZER.iter().find(|(_, on_race)| *on_race == self.on_race) {
            pairs.push(("sanitizer".into(), (*name).into()));
        }
        pairs
    }
}

const KEYS: [&str; 11] = [
    "memory_limit_bytes",
    "per_process_memory_fraction",
    "host_wait_timeout_ms",
    "history_kib",
    "expandable_segments",
    "lending",
    "policy",
    "page_time",
    "launch_blocking",
    "black_box",
    "sanitizer",
];

/// The values of `sanitizer`.
#[cfg(feature = "sanitizer")]
const SANITIZER: [(&str, Option<OnRace>); 4] =
    [("off", None), ("collect", Some(OnRace::Collect)), ("log", Some(OnRace::Log)), ("panic", Some(OnRace::Panic))];

/// Settings in the making. The first value that is not valid is what [`build`](SettingsBuilder::build) answers.
#[derive(Clone, Debug)]
pub struct SettingsBuilder {
    settings: Result<Settings, SettingsError>,
}

impl SettingsBuilder {
    /// The most physical memory to hold, bytes, at least 1.
    #[must_use]
    pub fn memory_limit_bytes(self, bytes: u64) -> Self {
        self.set("memory_limit_bytes", &bytes.to_string())
    }

    /// The most physical memory to hold as a part of the device's, above 0, at most 1.
    #[must_use]
    pub fn memory_fraction(self, fraction: f64) -> Self {
        self.set("per_process_memory_fraction", &fraction.to_string())
    }

    /// The longest time that one request blocks the host when memory is short.
    #[must_use]
    pub fn host_wait_timeout(mut self, timeout: Duration) -> Self {
        if let Ok(settings) = &mut self.settings {
            settings.host_wait_timeout = timeout;
        }
        self
    }

    /// Memory for the history of each stream, KiB; 0 records nothing.
    #[must_use]
    pub fn history_kib(self, kib: usize) -> Self {
        self.set("history_kib", &kib.to_string())
    }

    /// Whether free memory may move: within a stream's heap, and to other streams. Without it memory that a stream has
    /// freed serves others only after it was given back to the device.
    #[must_use]
    pub fn lending(mut self, lending: bool) -> Self {
        if let Ok(settings) = &mut self.settings {
            settings.lending = lending;
        }
        self
    }

    /// What is preferred where free memory is there, but a stream would have to wait for it, on the device. With
    /// [`Policy::Grow`] streams overlap as if there were memory without end, until there is no more of it; with
    /// [`Policy::Wait`] less is held.
    #[must_use]
    pub fn policy(mut self, policy: Policy) -> Self {
        if let Ok(settings) = &mut self.settings {
            settings.policy = policy;
        }
        self
    }

    /// The part of the time since the allocator was made that calls of the driver for memory should take, from 0 to 1.
    /// Memory is mapped in pieces as small as this allows: a small piece finds a use sooner when it is free, and costs as
    /// much time as a large one. With 0 pieces are as large as requests, up to 128 MiB; with 1 time
    /// has no bound, and memory stays as small as it can at any price.
    #[must_use]
    pub fn page_time(self, part: f64) -> Self {
        self.set("page_time", &part.to_string())
    }

    /// Whether each launch, copy and external submission blocks the host until what it submitted is complete, for
    /// [`host_wait_timeout`](SettingsBuilder::host_wait_timeout) at most. For debugging: an operation that fails is then
    /// reported by the call that submitted it ([`StreamError::Failed`](crate::StreamError::Failed)), one that hangs by
    /// [`StreamError::TimedOut`](crate::StreamError::TimedOut), and no memory waits for other streams. It takes all
    /// overlap away. Each wait counts as a host stall. Work under a guard ([`Buffer::on`](crate::Buffer::on)) or past
    /// this crate is not waited for, nor what a stream captures. It is what `CUDA_LAUNCH_BLOCKING` is to CUDA.
    #[must_use]
    pub fn launch_blocking(mut self, blocking: bool) -> Self {
        if let Ok(settings) = &mut self.settings {
            settings.launch_blocking = blocking;
        }
        self
    }

    /// A folder that gets a snapshot whenever a request runs out of memory, three in a process at most; it is made if it is
    /// not there. `highwater why` reads them. Each holds what is where and the history of each stream, which
    /// [`history_kib`](SettingsBuilder::history_kib) bounds.
    #[must_use]
    pub fn black_box(mut self, folder: impl Into<PathBuf>) -> Self {
        if let Ok(settings) = &mut self.settings {
            settings.black_box = Some(folder.into());
        }
        self
    }

    /// Turns the [sanitizer](crate::sanitizer) on, and says what happens when it finds a race.
    #[cfg(feature = "sanitizer")]
    #[must_use]
    pub fn sanitizer(mut self, on_race: OnRace) -> Self {
        if let Ok(settings) = &mut self.settings {
            settings.on_race = Some(on_race);
        }
        self
    }

    /// Sets one by its key.
    #[must_use]
    pub fn set(self, key: &str, value: &str) -> Self {
        let settings = self.settings.and_then(|settings| changed(settings, key, value));
        SettingsBuilder { settings }
    }

    /// The settings.
    ///
    /// # Errors
    /// The first value that was not valid.
    pub fn build(self) -> Result<Settings, SettingsError> {
        self.settings
    }
}

fn changed(mut settings: Settings, key: &str, value: &str) -> Result<Settings, SettingsError> {
    let refuse = |key: &'static str, expected: &'static str| {
        move || SettingsError::Value { key, value: value.to_owned(), expected }
    };
    match key {
        "memory_limit_bytes" => {
            let bytes = value.parse().ok().filter(|&bytes: &u64| bytes > 0);
            settings.memory_limit_bytes =
                Some(bytes.ok_or_else(refuse("memory_limit_bytes", "a whole number of bytes, at least 1"))?);
        }
        "per_process_memory_fraction" => {
            let fraction = value.parse().ok().filter(|&fraction: &f64| fraction > 0.0 && fraction <= 1.0);
            settings.memory_fraction =
                fraction.ok_or_else(refuse("per_process_memory_fraction", "a number above 0, at most 1"))?;
        }
        "host_wait_timeout_ms" => {
            let ms = value.parse().ok();
            settings.host_wait_timeout =
                Duration::from_millis(ms.ok_or_else(refuse("host_wait_timeout_ms", "a whole number of milliseconds"))?);
        }
        "history_kib" => {
            let kib = value.parse().ok().filter(|&kib: &usize| kib <= 1 << 30);
            settings.history_kib = kib.ok_or_else(refuse("history_kib", "a whole number of KiB, at most 2^30"))?;
        }
        "launch_blocking" => {
            settings.launch_blocking = truth(value).ok_or_else(refuse("launch_blocking", "True or False"))?;
        }
        "black_box" => {
            let folder = Some(PathBuf::from(value)).filter(|_| !value.is_empty());
            settings.black_box = Some(folder.ok_or_else(refuse("black_box", "a folder"))?);
        }
        "lending" => settings.lending = truth(value).ok_or_else(refuse("lending", "True or False"))?,
        "policy" => {
            settings.policy = match value {
                "wait" => Policy::Wait,
                "grow" => Policy::Grow,
                _ => return Err(refuse("policy", "wait or grow")()),
            };
        }
        "page_time" => {
            let part = value.parse().ok().filter(|part: &f64| (0.0..=1.0).contains(part));
            settings.page_time = part.ok_or_else(refuse("page_time", "a number from 0 to 1"))?;
        }
        "expandable_segments" if value != "True" => {
            return Err(refuse("expandable_segments", "True (memory is always mapped piece by piece)")());
        }
        "expandable_segments" => {}
        #[cfg(feature = "sanitizer")]
        "sanitizer" => {
            let known = SANITIZER.iter().find(|(name, _)| *name == value);
            settings.on_race = known.ok_or_else(refuse("sanitizer", "off, collect, log or panic"))?.1;
        }
        #[cfg(not(feature = "sanitizer"))]
        "sanitizer" if value != "off" => {
            return Err(refuse("sanitizer", "off (this was built without the feature `sanitizer`)")());
        }
        #[cfg(not(feature = "sanitizer"))]
        "sanitizer" => {}
        _ => return Err(SettingsError::UnknownKey { key: key.to_owned(), known: KEYS.join(", ") }),
    }
    Ok(settings)
}

fn truth(value: &str) -> Option<bool> {
    match value.to_ascii_lowercase().as_str() {
        "true" => Some(true),
        "false" => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_changes_just_what_it_names() {
        let settings = Settings::parse(" memory_limit_bytes:1048576 , history_kib:0,").unwrap();
        assert_eq!(settings.limit_bytes(1 << 40), 1 << 20);
        assert_eq!(settings.history_bytes(), 0);
        assert_eq!(settings.host_wait_timeout(), Settings::default().host_wait_timeout());
        assert!(!settings.launch_blocking());
        for text in ["launch_blocking:True", "launch_blocking:true"] {
            assert!(Settings::parse(text).unwrap().launch_blocking());
        }
        assert_eq!(Settings::parse("launch_blocking:False").unwrap(), Settings::default());
        assert_eq!(Settings::parse("").unwrap(), Settings::default());
        let settings = Settings::parse("lending:False,policy:wait,page_time:0.5").unwrap();
        assert!(!settings.lending() && Settings::default().lending());
        assert_eq!((settings.policy(), Settings::default().policy()), (Policy::Wait, Policy::Grow));
        assert_eq!(settings.page_time(), 0.5);
        assert!(Settings::parse("page_time:1.5").is_err());
    }

    #[test]
    fn what_is_not_valid_names_key_value_and_range() {
        let error = |text| Settings::parse(text).unwrap_err().to_string();
        assert_eq!(
            error("per_process_memory_fraction:1.5"),
            "setting per_process_memory_fraction: \"1.5\" is not valid; expected a number above 0, at most 1"
        );
        assert!(error("history_kib").contains("expected key:value"));
        assert!(error("colour:red").starts_with("unknown setting \"colour\"; known are memory_limit_bytes, "));
        assert!(error("expandable_segments:False").contains("True"));
        assert!(error("per_process_memory_fraction:NaN").contains("NaN"));
        assert!(error("memory_limit_bytes:-1").contains("at least 1"));
        assert!(error("memory_limit_bytes:0").contains("at least 1"));
        assert!(error("launch_blocking:1").ends_with("expected True or False"));
        assert!(error("sanitizer:True").contains("expected off"));
        assert!(error("policy:never").ends_with("expected wait or grow"));
        assert!(error("lending:2").ends_with("expected True or False"));
    }

    #[cfg(feature = "sanitizer")]
    #[test]
    fn the_sanitizer_is_asked_for_by_what_it_does_with_races() {
        assert_eq!(Settings::default().on_race(), None);
        for (name, on_race) in SANITIZER {
            let settings = Settings::parse(&format!("sanitizer:{name}")).unwrap();
            assert_eq!(settings.on_race(), on_race);
            assert!(settings.pairs().contains(&("sanitizer".into(), name.into())));
        }
        let built = Settings::builder().sanitizer(OnRace::Panic).build().unwrap();
        assert_eq!(built, Settings::parse("sanitizer:panic").unwrap());
    }

    #[test]
    fn the_smaller_of_limit_and_fraction_holds() {
        let limit = |text| Settings::parse(text).unwrap().limit_bytes(1000);
        assert_eq!(limit("memory_limit_bytes:300,per_process_memory_fraction:0.5"), 300);
        assert_eq!(limit("memory_limit_bytes:700,per_process_memory_fraction:0.5"), 500);
        assert_eq!(limit("memory_limit_bytes:7000"), 1000);
    }

    #[test]
    fn every_listed_key_is_known() {
        for key in KEYS {
            // Any text but none is a folder.
            let value = if key == "black_box" { "" } else { "?" };
            let refused = Settings::builder().set(key, value).build().unwrap_err();
            assert!(matches!(refused, SettingsError::Value { key: named, .. } if named == key));
        }
    }
}
