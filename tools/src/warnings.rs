//! Warnings on stderr, a line each.

use std::fmt::{self, Write as _};
use std::io::Write as _;

use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

/// Prints events that are warnings or worse.
pub(crate) struct Warnings;

impl<S: Subscriber> Layer<S> for Warnings {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        if *event.metadata().level() > Level::WARN {
            return;
        }
        let mut line = Line::default();
        event.record(&mut line);
        // Whoever would read it is gone if it cannot be printed.
        let _ = writeln!(std::io::stderr(), "highwater: warning: {}{}", line.message, line.fields);
    }
}

/// The message, then the fields.
#[derive(Default)]
struct Line {
    message: String,
    fields: String,
}

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        match field.name() {
            "message" => write!(self.message, "{value:?}"),
            name => write!(self.fields, ", {name}: {value:?}"),
        }
        .expect("a text takes any text");
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.record_debug(field, &format_args!("{value}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What would be printed.
    struct Told(std::sync::Arc<std::sync::Mutex<Vec<String>>>);

    impl<S: Subscriber> Layer<S> for Told {
        fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
            let mut line = Line::default();
            event.record(&mut line);
            self.0.lock().unwrap().push(format!("{}{}", line.message, line.fields));
        }
    }

    #[test]
    fn a_warning_is_its_message_and_its_fields_on_one_line() {
        use tracing_subscriber::layer::SubscriberExt;
        let told = std::sync::Arc::default();
        let subscriber = tracing_subscriber::registry().with(Told(std::sync::Arc::clone(&told)));
        tracing::subscriber::with_default(subscriber, || {
            tracing::warn!(bytes = 7, folder = "cache", "cannot be kept");
        });
        assert_eq!(*told.lock().unwrap(), ["cannot be kept, bytes: 7, folder: cache"]);
    }
}
