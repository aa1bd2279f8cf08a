//! The OpenAPI document of `GET /v1/openapi.json`. It is made from [`endpoints`] and the types of requests and answers,
//! with the comments of their fields as descriptions. docs/reference/openapi.json is a copy.

use super::endpoints::{Content, Endpoint, TypeSchema, endpoints};
use crate::api::ErrorBody;
use schemars::{
    SchemaGenerator,
    generate::{Contract, SchemaSettings},
};
use serde_json::{Map, Value, json};
use std::sync::LazyLock;

/// The version of the API, as in its paths.
const VERSION: &str = "1";
/// The content type of an answer of lines.
pub const LINES: &str = "application/x-ndjson";
/// A file of packets. It has no registered type.
pub const PCAPNG: &str = "application/x-pcapng";

const DESCRIPTION: &str = "\
HTTP/1.1 with JSON on Unix sockets. The control socket serves all requests, and belongs to the user who runs the daemon. \
The read-only socket serves only the requests that do not answer 403. A connection carries one request. Within version 1, \
requests and fields may be added, but none is changed or removed: ignore fields that you do not know.";

/// The document as text.
pub fn text() -> &'static str {
    static TEXT: LazyLock<String> = LazyLock::new(|| {
        serde_json::to_string_pretty(&document()).unwrap_or_else(|error| {
            tracing::error!("the OpenAPI document cannot be written: {error}");
            "{}".into()
        }) + "\n"
    });
    &TEXT
}

/// The document.
pub fn document() -> Value {
    let mut schemas = Schemas::new();
    let mut paths = Map::new();
    for endpoint in endpoints() {
        let operation = schemas.operation(&endpoint);
        let path = paths.entry(endpoint.path).or_insert_with(|| json!({}));
        path[endpoint.method] = operation;
    }
    let mut document = json!({
        "openapi": "3.1.0",
        "info": { "title": "Millrace", "version": VERSION, "description": DESCRIPTION },
        "servers": [{ "url": "http://millrace", "description": "A Unix socket. The daemon ignores the host name." }],
        "paths": paths,
        "components": { "schemas": schemas.definitions() },
    });
    tidy(&mut document);
    document
}

/// The schemas of requests and of answers differ: a field with a default may be missing in a request, but an answer
/// always has it.
struct Schemas {
    requests: SchemaGenerator,
    answers: SchemaGenerator,
}

impl Schemas {
    fn new() -> Self {
        let generator = |contract| {
            let mut settings = SchemaSettings::draft2020_12();
            settings.definitions_path = "/components/schemas".into();
            settings.meta_schema = None;
            settings.contract = contract;
            settings.into_generator()
        };
        Self { requests: generator(Contract::Deserialize), answers: generator(Contract::Serialize) }
    }

    fn definitions(mut self) -> Map<String, Value> {
        let mut all = self.answers.take_definitions(true);
        all.extend(self.requests.take_definitions(true));
        all
    }

    fn operation(&mut self, endpoint: &Endpoint) -> Value {
        let mut operation = json!({
            "operationId": name_of(endpoint),
            "summary": endpoint.summary.trim_end_matches('.'),
            "responses": self.responses(endpoint),
        });
        if let Some(query) = endpoint.query {
            operation["parameters"] = self.parameters(query);
        }
        if let Some((body, limit)) = endpoint.body {
            operation["requestBody"] = json!({
                "description": format!("At most {} KiB. The content type is ignored.", limit >> 10),
                "required": true,
                "content": { "application/json": { "schema": body(&mut self.requests) } },
            });
        }
        operation
    }

    /// The fields of a query as parameters. None of them can be null.
    fn parameters(&mut self, query: TypeSchema) -> Value {
        let query = resolved(query(&mut self.requests).to_value(), &mut self.requests);
        let required = query["required"].as_array().cloned().unwrap_or_default();
        let fields = query["properties"].as_object().cloned().unwrap_or_default();
        let parameter = |(name, mut schema): (String, Value)| {
            let description = schema.as_object_mut().and_then(|schema| schema.remove("description"));
            json!({
                "name": name,
                "in": "query",
                "required": required.contains(&json!(name)),
                "description": description,
                "schema": without_null(schema),
            })
        };
        fields.into_iter().map(parameter).collect()
    }

    fn responses(&mut self, endpoint: &Endpoint) -> Value {
        let content = match endpoint.answer {
            Content::Json(of) => json!({ "application/json": { "schema": of(&mut self.answers) } }),
            Content::Lines(of) => json!({ LINES: { "schema": of(&mut self.answers) } }),
            Content::Text(kind) => json!({ kind: { "schema": { "type": "string" } } }),
            Content::File(kind) => json!({ kind: {} }),
            Content::Document => json!({ "application/json": { "schema": { "type": "object" } } }),
        };
        let mut responses = json!({ "200": { "description": describe(endpoint), "content": content } });
        let error = self.answers.subschema_for::<ErrorBody>();
        for status in endpoint.errors() {
            responses[status.to_string()] = json!({
                "description": meaning(status),
                "content": { "application/json": { "schema": error } },
            });
        }
        responses
    }
}

/// `getStatus`, `postFlows`.
fn name_of(endpoint: &Endpoint) -> String {
    let word = endpoint.path.rsplit('/').next().unwrap_or_default().trim_end_matches(".json");
    let (first, rest) = word.split_at(1.min(word.len()));
    format!("{}{}{rest}", endpoint.method, first.to_uppercase())
}

fn describe(endpoint: &Endpoint) -> String {
    match endpoint.answer {
        Content::Lines(_) => format!("{} Each line is a JSON object.", endpoint.summary),
        _ => endpoint.summary.into(),
    }
}

/// What the status of an error means.
pub fn meaning(status: u16) -> &'static str {
    match status {
        400 => "The request is wrong, or the daemon refuses it.",
        403 => "Only the control socket serves this request.",
        404 => "The request names a port, router or interface that does not exist.",
        408 => "The body was not complete in time.",
        413 => "The body is too long.",
        500 => "The daemon could not carry out the request.",
        503 => "Try again later: too many requests wait, the daemon is busy, or it is ending.",
        _ => "An error.",
    }
}

/// The schema that a reference stands for.
fn resolved(schema: Value, generator: &mut SchemaGenerator) -> Value {
    let name = schema["$ref"].as_str().and_then(|path| path.rsplit('/').next());
    // A query is a type of its own: nothing else refers to it.
    name.and_then(|name| generator.definitions_mut().remove(name)).unwrap_or(schema)
}

/// The same schema, but the value cannot be null.
fn without_null(mut schema: Value) -> Value {
    if let Some(kind) = schema["type"].as_array().and_then(|kinds| kinds.iter().find(|kind| *kind != "null"))
    {
        schema["type"] = kind.clone();
    }
    let is_null = |one: &Value| one["type"] == "null";
    if let Some([one, other]) = schema["anyOf"].as_array().map(Vec::as_slice) {
        let kept = if is_null(one) { other } else { one };
        return kept.clone();
    }
    if let Some(schema) = schema.as_object_mut() {
        schema.retain(|_, value| !value.is_null());
    }
    schema
}

/// Writes formats that OpenAPI knows, and leaves out defaults of null.
fn tidy(value: &mut Value) {
    match value {
        Value::Object(map) => {
            if map.get("format").is_some_and(|format| format == "ip") {
                map.remove("format");
                map.insert("anyOf".into(), json!([{ "format": "ipv4" }, { "format": "ipv6" }]));
            }
            if map.get("default").is_some_and(Value::is_null) {
                map.remove("default");
            }
            map.values_mut().for_each(tidy);
        }
        Value::Array(list) => list.iter_mut().for_each(tidy),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::reference::{assert_current, file};

    #[test]
    fn the_file_of_the_reference_is_the_document() {
        assert_current(&file("docs/reference/openapi.json"), text());
    }

    #[test]
    fn every_request_type_and_field_has_a_description() {
        let document = document();
        let mut without = Vec::new();
        let of = |value: &Value| value["description"].as_str().is_some_and(|text| !text.is_empty());
        for (name, schema) in document["components"]["schemas"].as_object().unwrap() {
            if !of(schema) {
                without.push(name.clone());
            }
            let fields = schema["properties"].as_object().into_iter().flatten();
            without
                .extend(fields.filter(|(_, field)| !of(field)).map(|(field, _)| format!("{name}.{field}")));
            let values = schema["oneOf"].as_array().into_iter().flatten();
            without.extend(values.filter(|value| !of(value)).map(|value| format!("{name}: {value}")));
        }
        for (path, operations) in document["paths"].as_object().unwrap() {
            for (method, operation) in operations.as_object().unwrap() {
                assert!(operation["summary"].is_string());
                let parts = operation["parameters"].as_array().into_iter().flatten();
                let parts = parts.chain(operation.get("requestBody"));
                let parts = parts.chain(operation["responses"].as_object().unwrap().values());
                without.extend(parts.filter(|part| !of(part)).map(|part| format!("{method} {path}: {part}")));
            }
        }
        assert!(without.is_empty(), "{without:#?}");
        // Words of the code that mean nothing to a client.
        let text = text();
        for word in ["None", "::", "[`"] {
            assert!(!text.contains(word), "the document has {word:?}");
        }
    }

    #[test]
    fn every_reference_leads_to_a_schema_and_every_name_is_there_once() {
        let document = document();
        let text = text();
        for reference in text.split("\"$ref\": \"#").skip(1).filter_map(|rest| rest.split('"').next()) {
            assert!(document.pointer(reference).is_some(), "{reference}");
        }
        let names: Vec<_> = endpoints().iter().map(name_of).collect();
        let once: std::collections::BTreeSet<_> = names.iter().collect();
        assert_eq!(once.len(), names.len(), "{names:?}");
    }
}
