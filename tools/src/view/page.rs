//! The page: one file with its style, its script and its data, which may fetch nothing.
//!
//! Invariant: nothing of a snapshot stands in the page but inside of two blocks of data: JSON, in which `<`, `>` and `&`
//! are escaped, and base64. The policy in the head lets the one script run that is part of this program.

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::columns::base64;
use super::facts::Device;
use super::open::Opened;

const TEMPLATE: &str = include_str!("page/page.html");
const STYLE: &str = include_str!("page/style.css");
const SCRIPTS: &[&str] = &[
    include_str!("page/decode.js"),
    include_str!("page/model.js"),
    include_str!("page/chart.js"),
    include_str!("page/map.js"),
    include_str!("page/verdict.js"),
    include_str!("page/panels.js"),
    include_str!("page/main.js"),
];

/// The page about a snapshot.
pub(super) fn page(opened: &Opened) -> String {
    let devices: Vec<Device> = opened.verdicts.iter().map(|verdict| Device::of(&opened.loaded, verdict)).collect();
    let facts: Vec<&Value> = devices.iter().map(|device| &device.facts).collect();
    let facts = json!({ "place": opened.place, "version": env!("CARGO_PKG_VERSION"), "devices": facts });
    let columns: Vec<String> = devices.into_iter().map(|device| device.columns).collect();
    let script = format!("\"use strict\";\n(() => {{\n{}\n}})();", SCRIPTS.join("\n"));
    fill(TEMPLATE, |name| match name {
        "policy" => policy(&script),
        "style" => STYLE.to_owned(),
        "script" => script.clone(),
        "facts" => data(&facts),
        "columns" => columns.join(" "),
        other => unreachable!("the template names {other}"),
    })
}

/// What the page may do: run this script, and use this style. Everything else is forbidden, the network first.
fn policy(script: &str) -> String {
    let hash = |text: &str| base64(&Sha256::digest(text));
    format!(
        "default-src 'none'; script-src 'sha256-{}'; style-src 'sha256-{}'; base-uri 'none'; form-action 'none'",
        hash(script),
        hash(STYLE)
    )
}

/// JSON for a block of data in HTML: nothing in it ends the block, or means anything to HTML.
fn data(value: &Value) -> String {
    let mut text = String::new();
    for c in value.to_string().chars() {
        match c {
            '<' => text.push_str("\\u003c"),
            '>' => text.push_str("\\u003e"),
            '&' => text.push_str("\\u0026"),
            c => text.push(c),
        }
    }
    text
}

/// Puts values in the places of a template. What is put in is not looked at again.
fn fill(template: &str, value: impl Fn(&str) -> String) -> String {
    let mut page = String::new();
    let mut rest = template;
    while let Some((before, after)) = rest.split_once("{{") {
        let (name, after) = after.split_once("}}").expect("places of the template end");
        page.push_str(before);
        page.push_str(&value(name));
        rest = after;
    }
    page + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_put_in_is_not_looked_at_again() {
        let value = |name: &str| format!("<{name}{{{{b}}}}>");
        assert_eq!(fill("1 {{a}} 2 {{b}}", value), "1 <a{{b}}> 2 <b{{b}}>");
    }

    #[test]
    fn data_means_nothing_to_html() {
        let text = data(&json!({ "a": "</script><!--<script>&lt;\u{2028}" }));
        assert!(!text.contains(['<', '>', '&']), "{text}");
        let back: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(back["a"], "</script><!--<script>&lt;\u{2028}");
    }

    #[test]
    fn the_programs_own_parts_end_no_block() {
        for script in SCRIPTS {
            assert!(!script.to_lowercase().contains("</script") && !script.contains("<!--"));
        }
        assert!(!STYLE.to_lowercase().contains("</style"));
    }

    #[test]
    fn the_policy_allows_the_programs_own_parts_alone() {
        let policy = policy("alert(1)");
        let digest = "bhHHL3z2vDgxUt0W3dWQOrprscmda2Y5pLsLg4GF+pI=";
        let expected = format!("default-src 'none'; script-src 'sha256-{digest}'; style-src 'sha256-");
        assert!(policy.starts_with(&expected), "{policy}");
        assert!(!policy.contains("unsafe") && !policy.contains('*') && !policy.contains("http"), "{policy}");
    }
}
