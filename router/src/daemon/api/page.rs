//! Makes the tables of `docs/reference/api.md` from the table of requests and the OpenAPI document.

use super::{
    MAX_BODY_BYTES, MAX_FLOWS_BYTES, MAX_SAS_BYTES, QUEUE,
    document::document,
    endpoints::{Content, Endpoint, endpoints},
};
use crate::{
    base::reference::{assert_current, file, quoted, tables, with_part},
    daemon::serving,
};
use serde_json::Value;
use std::{collections::BTreeSet, fmt::Write};

const PAGE: &str = "docs/reference/api.md";

/// The name that a reference leads to.
fn name_in(reference: &Value) -> Option<&str> {
    reference.as_str()?.rsplit('/').next()
}

/// A value for each IP version.
fn is_by_version(name: &str) -> bool {
    name.starts_with("ByVersion_")
}

struct Page {
    document: Value,
}

impl Page {
    fn schema(&self, name: &str) -> &Value {
        &self.document["components"]["schemas"][name]
    }

    /// The type of a schema, in words. `?`: it may be null.
    fn words(&self, schema: &Value) -> String {
        if let Some(name) = name_in(&schema["$ref"]) {
            return match is_by_version(name) {
                true => format!("{} by version", self.words(&self.schema(name)["properties"]["ipv4"])),
                false => format!("[{name}](#{})", name.to_lowercase()),
            };
        }
        if let Some([one, other]) = schema["anyOf"].as_array().map(Vec::as_slice) {
            return match () {
                () if other["type"] == "null" => self.words(one) + "?",
                () if schema["type"].is_array() => "address?".into(),
                () => "address".into(),
            };
        }
        if let Some(kinds) = schema["type"].as_array() {
            let mut known = schema.clone();
            known["type"] = kinds.iter().find(|kind| *kind != "null").unwrap().clone();
            return self.words(&known) + "?";
        }
        let of = |key: &str| self.words(&schema[key]);
        match schema["type"].as_str().unwrap_or_default() {
            "array" if schema["minItems"].is_u64() => {
                format!("list of {} {}", schema["minItems"], of("items"))
            }
            "array" => format!("list of {}", of("items")),
            "object" if schema["patternProperties"].is_object() => {
                let of = schema["patternProperties"].as_object().unwrap().values().next().unwrap();
                format!("{} by number", self.words(of))
            }
            "object" if schema["additionalProperties"].is_object() => {
                format!("{} by name", of("additionalProperties"))
            }
            other => other.into(),
        }
    }

    /// What a body or an answer is, in words.
    fn content(&self, content: &Value) -> String {
        let (_, content) = content.as_object().unwrap().iter().next().unwrap();
        self.words(&content["schema"])
    }

    fn operation(&self, endpoint: &Endpoint) -> &Value {
        &self.document["paths"][endpoint.path][endpoint.method]
    }

    fn requests(&self) -> String {
        let mut text = "| request | meaning | answer | command | read-only socket |\n|---|---|---|---|---|\n"
            .to_string();
        for endpoint in endpoints() {
            let operation = self.operation(&endpoint);
            let mut request = format!("`{} {}`", endpoint.method.to_uppercase(), endpoint.path);
            if let Some(body) = operation["requestBody"]["content"].as_object() {
                write!(request, " with {}", self.content(&Value::Object(body.clone()))).unwrap();
            }
            let of = self.content(&operation["responses"]["200"]["content"]);
            let answer = match endpoint.answer {
                Content::Json(_) => of,
                Content::Lines(_) => format!("lines, each {of}"),
                Content::Text(_) => "text ([metrics.md](metrics.md))".into(),
                Content::File(_) => "a pcapng file".into(),
                Content::Document => "OpenAPI 3.1 ([openapi.json](openapi.json))".into(),
            };
            let commands: Vec<_> =
                endpoint.commands.iter().map(|words| format!("`millrace {words}`")).collect();
            let readers = if endpoint.is_for_readers { "yes" } else { "no" };
            let (commands, summary) = (commands.join(", "), endpoint.summary);
            writeln!(text, "| {request} | {summary} | {answer} | {commands} | {readers} |").unwrap();
        }
        text
    }

    fn parameters(&self) -> String {
        let mut text = "| request | parameter | type | meaning |\n|---|---|---|---|\n".to_string();
        for endpoint in endpoints() {
            for one in self.operation(&endpoint)["parameters"].as_array().into_iter().flatten() {
                let kind = self.words(&one["schema"]);
                let required = if one["required"] == true { ", required" } else { "" };
                let (path, name, meaning) = (endpoint.path, one["name"].as_str().unwrap(), cell(one));
                writeln!(text, "| `{path}` | `{name}` | {kind}{required} | {meaning} |").unwrap();
            }
        }
        text
    }

    /// All types below a schema, each once, from the outside to the inside.
    fn collect(&self, schema: &Value, found: &mut Vec<String>) {
        if let Some(name) = name_in(&schema["$ref"])
            && !found.iter().any(|known| known == name)
        {
            found.push(name.into());
            self.collect(self.schema(name), found);
        }
        match schema {
            Value::Object(map) => map.values().for_each(|value| self.collect(value, found)),
            Value::Array(list) => list.iter().for_each(|value| self.collect(value, found)),
            _ => {}
        }
    }

    fn types(&self) -> String {
        let mut found = Vec::new();
        for endpoint in endpoints() {
            let operation = self.operation(&endpoint);
            for part in [&operation["requestBody"], &operation["parameters"], &operation["responses"]["200"]]
            {
                self.collect(part, &mut found);
            }
        }
        self.collect(&self.document["paths"], &mut found);
        let known: BTreeSet<_> = self.document["components"]["schemas"].as_object().unwrap().keys().collect();
        assert_eq!(found.iter().collect::<BTreeSet<_>>(), known, "types that no request has");
        let parts: Vec<_> =
            found.iter().filter(|name| !is_by_version(name)).map(|name| self.section(name)).collect();
        parts.join("\n")
    }

    fn section(&self, name: &str) -> String {
        let schema = self.schema(name);
        let mut text = format!("### {name}\n\n{}\n\n", wrapped(schema["description"].as_str().unwrap()));
        if let Some(values) = schema["oneOf"].as_array() {
            text += "| value | meaning |\n|---|---|\n";
            for one in values {
                writeln!(text, "| `{}` | {} |", one["const"].as_str().unwrap(), cell(one)).unwrap();
            }
            return text;
        }
        let required = schema["required"].as_array().cloned().unwrap_or_default();
        text += "| field | type | meaning |\n|---|---|---|\n";
        let fields = schema["properties"].as_object().unwrap();
        // The list of required fields has the order of the type. The others come last.
        let is_required = |field: &&str| required.iter().any(|known| known == field);
        let first = required.iter().filter_map(Value::as_str);
        let last = fields.keys().map(String::as_str).filter(|field| !is_required(field));
        for field in first.chain(last) {
            let schema = &fields[field];
            let mut kind = self.words(schema);
            if !is_required(&field) {
                match &schema["default"] {
                    Value::Null => kind += ", may be absent",
                    default if *default == "" => kind += ", default empty",
                    default => write!(kind, ", default `{default}`").unwrap(),
                }
            }
            writeln!(text, "| `{field}` | {kind} | {} |", cell(schema)).unwrap();
        }
        text
    }
}

/// A description as a cell of a table. The names of pages become links.
fn cell(schema: &Value) -> String {
    let text = schema["description"].as_str().unwrap().split_whitespace().collect::<Vec<_>>().join(" ");
    let text = text.replace('|', "\\|");
    match text.split_once("docs/reference/") {
        Some((before, rest)) => {
            let (name, after) = rest.split_once(".md").expect("the name of a page");
            format!("{before}[{name}.md]({name}.md){after}")
        }
        None => text,
    }
}

/// A text in lines of at most 100 columns.
fn wrapped(text: &str) -> String {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let line = lines.last_mut().unwrap();
        match line.len() + 1 + word.len() > 100 {
            true => lines.push(word.into()),
            false if line.is_empty() => *line = word.into(),
            false => *line += &format!(" {word}"),
        }
    }
    lines.join("\n")
}

#[test]
fn the_page_of_the_reference_is_made_of_the_requests_and_types() {
    let page = Page { document: document() };
    let mut text = std::fs::read_to_string(file(PAGE)).unwrap();
    let parts = [("requests", page.requests()), ("parameters", page.parameters()), ("types", page.types())];
    for (name, part) in &parts {
        text = with_part(&text, name, part);
    }
    assert_eq!(text.matches("<!-- begin ").count(), parts.len(), "{PAGE} has a part that nothing makes");
    assert_current(&file(PAGE), &text);
}

#[test]
fn the_page_has_the_statuses_and_limits() {
    let page = std::fs::read_to_string(file(PAGE)).unwrap();
    let tables = tables(&page);
    let statuses = tables.iter().find(|table| table.columns[0] == "status").unwrap();
    let shown: BTreeSet<_> = statuses.rows.iter().map(|row| row[0].parse::<u16>().unwrap()).collect();
    // A request that there is not has no entry in the table of requests.
    let known = endpoints().iter().flat_map(Endpoint::errors).chain([404, 405]).collect();
    assert_eq!(shown, known);

    let [body, flows, sas] = [MAX_BODY_BYTES >> 10, MAX_FLOWS_BYTES >> 20, MAX_SAS_BYTES >> 20];
    let room = [serving::CONTROL.room, serving::READ_ONLY.room];
    let limits = [
        format!("| {body} KiB; `/v1/flows` {flows} MiB; `/v1/sas` {sas} MiB |"),
        format!("for the control thread, and for the flow rules | {QUEUE} each |"),
        format!("| {}, of one user {};", room[0].waiting, room[0].waiting_of_a_source),
        format!("| {} for root, and as many", room[0].inside_of_a_source),
        format!("{} of all other users, and {} of one |", room[1].inside, room[1].inside_of_a_source),
    ];
    for limit in limits {
        assert!(page.contains(&limit), "{limit}");
    }
    assert!(quoted(&page).any(|word| word == "[api]"), "the page names the table of the configuration");
}
