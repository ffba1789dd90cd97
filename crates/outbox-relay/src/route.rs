//! Where an event goes: its own destination, or the queue's template over its fields.

use minijinja::{Environment, UndefinedBehavior, context};
use outbox_store::Event;

/// What a template may name.
pub const FIELDS: &[&str] =
    &["aggregate_id", "aggregate_type", "content_type", "event_type", "id", "queue", "seq"];

const TEMPLATE: &str = "destination";

/// A queue's destination template, compiled.
#[derive(Debug)]
pub struct DestinationTemplate {
    /// The template has no expressions: the destination is the same for every event.
    fixed: Option<String>,
    environment: Environment<'static>,
}

impl DestinationTemplate {
    /// Compiles a template such as `{{ aggregate_type }}.events`.
    ///
    /// # Errors
    /// One line: what is wrong with the syntax, or which field does not exist and which do.
    pub fn parse(source: &str) -> Result<Self, String> {
        let mut environment = Environment::new();
        environment.set_undefined_behavior(UndefinedBehavior::Strict);
        environment
            .add_template_owned(TEMPLATE, source.to_owned())
            .map_err(|error| format!("template \"{source}\": {}", first_line(&error)))?;
        let fixed = {
            let template = environment.get_template(TEMPLATE).map_err(|error| first_line(&error))?;
            let mut unknown: Vec<String> = template
                .undeclared_variables(false)
                .into_iter()
                .filter(|name| {
                    !FIELDS.contains(&name.as_str())
                        && environment.globals().all(|(global, _)| global != name)
                })
                .collect();
            unknown.sort();
            if let Some(name) = unknown.first() {
                return Err(unknown_field(source, name));
            }
            let is_fixed = !["{{", "{%", "{#"].iter().any(|mark| source.contains(mark));
            is_fixed.then(|| source.to_owned())
        };
        let template = Self { fixed, environment };
        template.try_out().map_err(|error| format!("template \"{source}\": {error}"))?;
        Ok(template)
    }

    /// The destination of one event.
    ///
    /// # Errors
    /// One line, when the template cannot be rendered for this event or comes out empty.
    pub fn render(&self, queue: &str, event: &Event) -> Result<String, String> {
        if let Some(fixed) = &self.fixed {
            return Ok(fixed.clone());
        }
        let rendered = self.render_fields(&context! {
            id => event.id.to_string(),
            seq => event.seq,
            queue => queue,
            aggregate_type => event.aggregate_type,
            aggregate_id => event.aggregate_id,
            event_type => event.event_type.as_deref().unwrap_or_default(),
            content_type => event.content_type.as_deref().or(event.payload.default_content_type()).unwrap_or_default(),
        })?;
        if rendered.is_empty() {
            Err("the destination template comes out empty".to_owned())
        } else {
            Ok(rendered)
        }
    }

    fn render_fields(&self, fields: &minijinja::Value) -> Result<String, String> {
        self.environment
            .get_template(TEMPLATE)
            .and_then(|template| template.render(fields))
            .map_err(|error| first_line(&error))
    }

    /// Filters and tests that do not exist show only when a template is rendered.
    fn try_out(&self) -> Result<(), String> {
        self.render_fields(&context! {
            id => "00000000-0000-0000-0000-000000000000",
            seq => 1,
            queue => "default",
            aggregate_type => "Order",
            aggregate_id => "101",
            event_type => "OrderCreated",
            content_type => "application/json",
        })
        .map(|_| ())
    }
}

fn unknown_field(source: &str, name: &str) -> String {
    let near = FIELDS
        .iter()
        .map(|field| (strsim::jaro_winkler(name, field), field))
        .max_by(|a, b| a.0.total_cmp(&b.0));
    let suggestion = match near {
        Some((likeness, field)) if likeness > 0.75 => format!("; did you mean `{field}`?"),
        _ => String::new(),
    };
    format!(
        "template \"{source}\" names the unknown field `{name}`; there are: {}{suggestion}",
        FIELDS.join(", ")
    )
}

fn first_line(error: &minijinja::Error) -> String {
    error.to_string().lines().next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use outbox_store::Payload;
    use uuid::Uuid;

    use super::*;

    fn event() -> Event {
        Event { id: Uuid::nil(), payload: Payload::Json(Bytes::from_static(b"{}")), ..Event::bare(7, "101") }
    }

    #[test]
    fn a_template_sees_the_events_fields() {
        let table = [
            ("{{ aggregate_type }}.events", "Order.events"),
            ("{{ queue }}-{{ seq }}-{{ aggregate_id }}-{{ content_type }}", "q-7-101-application/json"),
            ("{% if event_type %}{{ event_type }}{% else %}none{% endif %}", "none"),
            ("{{ aggregate_type | lower }}", "order"),
            ("plain", "plain"),
        ];
        for (template, expected) in table {
            let template = DestinationTemplate::parse(template).unwrap();
            assert_eq!(template.render("q", &event()).unwrap(), expected);
        }
    }

    #[test]
    fn a_template_that_comes_out_empty_is_an_error() {
        let template = DestinationTemplate::parse("{{ event_type }}").unwrap();
        assert!(template.render("q", &event()).unwrap_err().contains("empty"));
    }

    #[test]
    fn an_unknown_field_is_named_with_what_there_is() {
        let error = DestinationTemplate::parse("{{ agregate_type }}.events").unwrap_err();
        assert!(
            error.contains("`agregate_type`") && error.contains("did you mean `aggregate_type`?"),
            "{error}"
        );
        assert!(error.contains("aggregate_id, aggregate_type, content_type"), "{error}");
        let error = DestinationTemplate::parse("{{ zzz }}").unwrap_err();
        assert!(error.contains("`zzz`") && !error.contains("did you mean"), "{error}");
    }

    #[test]
    fn bad_syntax_is_one_line() {
        for template in ["{{ aggregate_type", "{{ seq | nofilter }}", "{% for %}"] {
            let error = DestinationTemplate::parse(template).unwrap_err();
            assert!(!error.contains('\n') && error.contains(template), "{error}");
        }
    }
}
