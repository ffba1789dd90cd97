use opentelemetry::trace::TraceContextExt;
use tracing_opentelemetry::OpenTelemetrySpanExt;

/// The current span as a W3C `traceparent`; `None` outside of any trace.
pub(crate) fn current_traceparent() -> Option<String> {
    let context = tracing::Span::current().context();
    let span = context.span();
    let span = span.span_context();
    span.is_valid()
        .then(|| format!("00-{}-{}-{:02x}", span.trace_id(), span.span_id(), span.trace_flags().to_u8()))
}

#[cfg(test)]
mod tests {
    use opentelemetry::Context;
    use opentelemetry::trace::{SpanContext, SpanId, TraceContextExt, TraceFlags, TraceId, TraceState};
    use tracing_opentelemetry::OpenTelemetrySpanExt;
    use tracing_subscriber::layer::SubscriberExt;

    use crate::NewEvent;

    fn event() -> NewEvent {
        NewEvent::new("Order", "101")
    }

    /// Runs in a span that continues a trace from elsewhere.
    fn in_traced_span<T>(body: impl FnOnce() -> T) -> T {
        let parent = SpanContext::new(
            TraceId::from_hex("0af7651916cd43dd8448eb211c80319c").unwrap(),
            SpanId::from_hex("b7ad6b7169203331").unwrap(),
            TraceFlags::SAMPLED,
            true,
            TraceState::default(),
        );
        let subscriber = tracing_subscriber::registry().with(tracing_opentelemetry::layer());
        tracing::subscriber::with_default(subscriber, || {
            let span = tracing::info_span!("business");
            span.set_parent(Context::new().with_remote_span_context(parent)).unwrap();
            span.in_scope(body)
        })
    }

    #[test]
    fn an_event_made_in_a_span_carries_its_traceparent() {
        let event = in_traced_span(|| event().traced());
        let expected = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        assert_eq!(event.headers, [("traceparent".to_owned(), expected.to_owned())]);
    }

    #[test]
    fn a_traceparent_of_the_applications_own_is_kept() {
        let event = in_traced_span(|| event().header("traceparent", "mine").traced());
        assert_eq!(event.headers, [("traceparent".to_owned(), "mine".to_owned())]);
    }

    #[test]
    fn outside_of_a_trace_there_is_none() {
        assert_eq!(event().traced().headers, []);
    }
}
