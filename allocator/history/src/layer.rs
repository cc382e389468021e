//! The layer that keeps the span path of every thread.
//!
//! A path is looked up when a span is made, and kept with the span; entering and leaving only push and pop it.

use std::fmt::{self, Write};

use tracing::{
    Subscriber,
    field::{Field, Visit},
    span::{Attributes, Id},
};
use tracing_subscriber::{Layer, layer::Context, registry::LookupSpan};

use crate::SpanPath;

/// Longest name of a span with its fields, bytes.
const MAX_NAME_BYTES: usize = 120;

/// A `tracing` layer that maintains [`SpanPath::current`] in every thread.
///
/// The fields that a span is made with are part of its name (`layer i=3`); fields recorded later are not. Names are
/// cut at 120 bytes.
#[derive(Clone, Copy, Default, Debug)]
pub struct SpanPathLayer;

impl SpanPathLayer {
    /// The layer. Add it to a registry with `with`.
    #[must_use]
    pub fn new() -> Self {
        Self
    }
}

/// The path of a span, kept in its extensions.
struct PathOfSpan(SpanPath);

impl<S> Layer<S> for SpanPathLayer
where
    S: Subscriber + for<'lookup> LookupSpan<'lookup>,
{
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        let parent = span
            .scope()
            .skip(1)
            .find_map(|ancestor| ancestor.extensions().get::<PathOfSpan>().map(|path| path.0))
            .unwrap_or(SpanPath::ROOT);
        let metadata = attributes.metadata();
        let mut name = BoundedName(String::new());
        name.add(format_args!("{}", metadata.name()));
        let without_fields = name.0.len();
        attributes.record(&mut name);
        let (file, line) = (metadata.file().unwrap_or(""), metadata.line().unwrap_or(0));
        let path = parent.child(&name.0[..without_fields], &name.0, file, line);
        span.extensions_mut().replace(PathOfSpan(path));
    }

    fn on_enter(&self, id: &Id, context: Context<'_, S>) {
        let path = context.span(id).and_then(|span| span.extensions().get::<PathOfSpan>().map(|path| path.0));
        if let Some(path) = path {
            path.enter(id.into_u64());
        }
    }

    fn on_exit(&self, id: &Id, _context: Context<'_, S>) {
        SpanPath::leave(id.into_u64());
    }
}

/// A name that takes no more text once it is at its bound, so that a long field costs little.
struct BoundedName(String);

impl BoundedName {
    fn add(&mut self, text: fmt::Arguments<'_>) {
        // The error says that the bound was reached; what fits has been written.
        let _ = self.write_fmt(text);
    }
}

impl Write for BoundedName {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = MAX_NAME_BYTES - self.0.len();
        let fits = boundary_within(text, room);
        self.0.push_str(&text[..fits]);
        if fits < text.len() { Err(fmt::Error) } else { Ok(()) }
    }
}

/// The largest character boundary of `text` at or below `bytes`.
fn boundary_within(text: &str, bytes: usize) -> usize {
    (0..=bytes.min(text.len())).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0)
}

impl Visit for BoundedName {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.add(format_args!(" {}={value}", field.name()));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.add(format_args!(" {}={value:?}", field.name()));
    }
}

#[cfg(test)]
mod tests {
    use tracing::{info_span, subscriber::with_default};
    use tracing_subscriber::{Registry, layer::SubscriberExt};

    use super::*;

    fn traced<R>(body: impl FnOnce() -> R) -> R {
        with_default(Registry::default().with(SpanPathLayer::new()), body)
    }

    fn here() -> String {
        SpanPath::current().text()
    }

    #[test]
    fn nested_spans_make_a_path() {
        traced(|| {
            assert_eq!(here(), "");
            info_span!("train").in_scope(|| {
                assert_eq!(here(), "train");
                for i in 0..2 {
                    let layer = info_span!("layer", i, kind = "dense");
                    layer.in_scope(|| assert_eq!(here(), format!("train/layer i={i} kind=dense")));
                    layer.in_scope(|| assert_eq!(here(), format!("train/layer i={i} kind=dense"), "entered again"));
                }
                assert_eq!(here(), "train");
            });
            assert_eq!(here(), "");
        });
    }

    #[test]
    fn a_path_follows_the_parent_of_the_span_and_not_the_thread() {
        traced(|| {
            let outer = info_span!("outer");
            let other = info_span!(parent: None, "other");
            let child = info_span!(parent: &outer, "child");
            other.in_scope(|| child.in_scope(|| assert_eq!(here(), "outer/child")));
        });
    }

    #[test]
    fn a_layer_that_is_there_twice_changes_nothing() {
        let twice = Registry::default().with(SpanPathLayer::new()).with(SpanPathLayer::new());
        with_default(twice, || {
            info_span!("outer").in_scope(|| info_span!("inner").in_scope(|| assert_eq!(here(), "outer/inner")));
            assert_eq!(here(), "");
        });
    }

    #[test]
    fn each_thread_has_its_own_path() {
        traced(|| {
            let dispatch = tracing::dispatcher::get_default(Clone::clone);
            let barrier = std::sync::Barrier::new(2);
            std::thread::scope(|scope| {
                let run = |name: &'static str| {
                    tracing::dispatcher::with_default(&dispatch, || {
                        let span = info_span!("worker", name);
                        span.in_scope(|| {
                            barrier.wait();
                            let path = here();
                            barrier.wait();
                            path
                        })
                    })
                };
                let first = scope.spawn(move || run("a"));
                let second = scope.spawn(move || run("b"));
                assert_eq!(first.join().expect("no panic"), "worker name=a");
                assert_eq!(second.join().expect("no panic"), "worker name=b");
            });
            assert_eq!(here(), "");
        });
    }

    #[test]
    fn spans_know_the_line_that_made_them() {
        traced(|| {
            let (span, line) = (info_span!("placed"), line!());
            span.in_scope(|| {
                let spans = SpanPath::current().spans();
                assert_eq!((spans[0].file, spans[0].line), (file!(), line));
            });
        });
    }

    #[test]
    fn long_fields_are_cut_at_a_character() {
        traced(|| {
            let long = "é".repeat(1000);
            info_span!("x", long).in_scope(|| {
                let path = here();
                assert!(path.len() <= MAX_NAME_BYTES && path.len() >= MAX_NAME_BYTES - 1, "{}", path.len());
                assert!(path.starts_with("x long=éé"));
            });
        });
    }
}
