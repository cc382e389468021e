//! `highwater snapshot growth`: which lines keep more with each iteration.

use highwater::history::why::{Finding, Look, Options, Verdict, explain};
use serde_json::json;

use crate::failure::{Failure, InputError};
use crate::why::json::{finding, growth};
use crate::why::text::growth_alone;

use super::arguments::GrowthArgs;
use super::input::{Opened, open};
use super::{Told, style, text};

/// Tells each file.
pub(super) fn run(arguments: &GrowthArgs) -> Result<(), Failure> {
    let mut options = Options::default();
    options.look = Look::Growth;
    options.capacity_bytes = arguments.capacity;
    for path in &arguments.files {
        let opened = open(path)?;
        // Without a device there is nothing to say.
        opened.device(arguments.device)?;
        let mut verdicts = explain(&opened.loaded, &options);
        if let Some(device) = arguments.device {
            verdicts.retain(|verdict| verdict.device == device);
            if verdicts.is_empty() {
                return Err(InputError::NoDevice { device, place: opened.place }.into());
            }
        }
        tell(&opened, &verdicts).print(arguments.json)?;
    }
    Ok(())
}

fn tell(opened: &Opened, verdicts: &[Verdict]) -> Told {
    let (style, mut words) = (style(), String::new());
    for verdict in verdicts {
        growth_alone(&mut words, &opened.place, verdict, style);
    }
    let notes = text::notes(opened, 0);
    text::tell_notes(&mut words, &notes, style);
    let is_growth = |finding: &&Finding| finding.cause.id().starts_with('F');
    let device = |verdict: &Verdict| {
        json!({
            "device": verdict.device,
            "growth": verdict.growth.as_ref().map(growth),
            "findings": verdict.findings.iter().filter(is_growth).map(finding).collect::<Vec<_>>(),
        })
    };
    let mut json = device(&verdicts[0]);
    json["file"] = opened.place.clone().into();
    json["devices"] = verdicts[1..].iter().map(device).collect();
    json["notes"] = notes.into();
    Told { text: words, json }
}
