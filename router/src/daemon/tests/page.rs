//! Compares `docs/reference/api.md` with the types of requests and answers.

use crate::{
    api::{
        ErrorBody, cores::CoresReport, cores::EventReport, flows::FlowReport, flows::FlowsChanged,
        flows::FlowsRequest, sas::SasReport, sas::SasRequest, status::ConnectionReport,
        status::ExplainReport, status::ExplainRequest, status::FirewallReport, status::InterfaceReport,
        status::PortReport, status::RouteReport, status::RouterReport, status::Status, status::StopReport,
        status::VerifyReport,
    },
    base::reference::{Shape, Table, file, quoted, shapes, tables},
    daemon::api::{MAX_BODY_BYTES, MAX_FLOWS_BYTES, MAX_SAS_BYTES, QUEUE},
    switch::controllers::ControllersReport,
};
use serde::de::DeserializeOwned;
use std::collections::{BTreeMap, BTreeSet};

/// Fields with their shapes, in the order of the type.
type Fields = Vec<(&'static str, Shape)>;

/// Adds a type of the API, and those below it.
fn add<T: DeserializeOwned>(types: &mut BTreeMap<&'static str, Fields>) {
    let shapes = shapes::<T>();
    for (path, shape) in shapes.iter().filter(|(_, shape)| !shape.fields.is_empty()) {
        let field = |name: &&'static str| (*name, shapes[&[&path[..], &[*name]].concat()].clone());
        let fields: Fields = shape.fields.iter().map(field).collect();
        let known = types.entry(shape.kind).or_insert_with(|| fields.clone());
        // The values for the two IP versions can be of any type.
        assert!(*known == fields || shape.kind == "Families", "two types are named {}", shape.kind);
    }
}

/// Does the page's word for a type stand for this shape?
fn is(word: &str, shape: &Shape) -> bool {
    let (word, is_optional) = match word.split_once('?') {
        Some((word, _)) => (word, true),
        None => (word, false),
    };
    let is_one = !shape.is_list && !shape.is_map;
    let fits = match word.trim_matches(['[', ']']).split([' ', ']', ',']).next().unwrap_or_default() {
        "bool" if word.ends_with("by version") => shape.kind == "Families",
        "by" | "sentences" if word.ends_with("by version") => shape.kind == "Families",
        "string" | "sentence" => is_one && shape.kind == "string",
        "list" | "lists" => shape.is_list,
        "object" => shape.is_map || is_one && !shape.fields.is_empty(),
        kind => is_one && kind == shape.kind,
    };
    fits && is_optional == shape.is_optional
}

/// The type that a table is about.
fn type_of(table: &Table) -> Option<&str> {
    let tables = [
        ("field of a hop", "HopReport"),
        ("field of a router", "VerifyRouter"),
        ("field of `rules`", "RulesReport"),
        ("field of a core", "CoreReport"),
        ("field of a controller", "ControllerReport"),
        ("field of an SA", "SaReport"),
        ("field of a worker", "WorkerStand"),
        ("field of an output", "OutputStand"),
        ("field of a workload", "WorkloadReport"),
        ("field of a queue", if table.heading == "CoresReport" { "QueueReport" } else { "QueueStand" }),
    ];
    match table.columns[0].as_str() {
        "field" => Some(&table.heading),
        other => tables.iter().find(|(column, _)| *column == other).map(|(_, name)| *name),
    }
}

#[test]
fn the_page_of_the_api_has_all_fields_and_no_others() {
    let mut types = BTreeMap::new();
    for add in [
        add::<Status>,
        add::<PortReport>,
        add::<RouterReport>,
        add::<InterfaceReport>,
        add::<FirewallReport>,
        add::<ConnectionReport>,
        add::<RouteReport>,
        add::<VerifyReport>,
        add::<ExplainRequest>,
        add::<ExplainReport>,
        add::<CoresReport>,
        add::<EventReport>,
        add::<ControllersReport>,
        add::<FlowReport>,
        add::<FlowsRequest>,
        add::<FlowsChanged>,
        add::<SasReport>,
        add::<SasRequest>,
        add::<StopReport>,
        add::<ErrorBody>,
    ] {
        add(&mut types);
    }
    let page = std::fs::read_to_string(file("docs/reference/api.md")).unwrap();
    let tables = tables(&page);
    let mut faults = Vec::new();

    // Types that have a table.
    let mut rows = BTreeMap::new();
    for table in tables.iter().filter(|table| table.columns[0].starts_with("field")) {
        let Some((name, fields)) = type_of(table).and_then(|name| types.get_key_value(name)) else {
            faults.push(format!("{}, {}: no such type", table.heading, table.columns[0]));
            continue;
        };
        let mut shown = BTreeSet::new();
        for row in &table.rows {
            let names: Vec<_> = quoted(&row[0]).collect();
            let words: Vec<_> = row[1].split(", ").collect();
            for (i, field) in names.iter().enumerate() {
                let Some((field, shape)) = fields.iter().find(|(known, _)| known == field) else {
                    faults.push(format!("{name}: there is no field {field}"));
                    continue;
                };
                let word = if words.len() == names.len() { words[i] } else { &row[1] };
                if table.columns[1] == "type" && !word.is_empty() && !is(word, shape) {
                    faults.push(format!("{name}: {field} is {shape:?}, not {word:?}"));
                }
                shown.insert(*field);
                rows.insert((*name, *field), row[1..].join(" "));
            }
        }
        let missing = fields.iter().map(|(field, _)| *field).filter(|field| !shown.contains(field));
        faults.extend(missing.map(|field| format!("{name}: {field} is missing")));
    }
    // Other types: in a paragraph that begins with their name, or where they are a field.
    let mut shown: BTreeSet<_> = rows.keys().map(|(name, _)| *name).collect();
    shown.extend(["Families", "ReloadReport", "StopReport", "ErrorBody"]);
    let is_name = |word: &&str| word.chars().all(|c| c.is_ascii_lowercase() || c == '_');
    for name in types.keys().filter(|name| !shown.contains(*name)).copied().collect::<Vec<_>>() {
        let Some(paragraph) = page.split("\n\n").find(|text| text.starts_with(&format!("{name} have ")))
        else {
            continue;
        };
        let known: BTreeSet<_> = types[name].iter().map(|(field, _)| *field).collect();
        assert_eq!(quoted(paragraph).filter(is_name).collect::<BTreeSet<_>>(), known, "{name}");
        shown.insert(name);
    }
    let mut inline = BTreeSet::new();
    for ((name, field), row) in &rows {
        let (_, shape) = types[name].iter().find(|(known, _)| known == field).unwrap();
        let mut known = BTreeSet::new();
        let mut open = vec![shape];
        while let Some(shape) = open.pop() {
            if let Some((name, fields)) =
                types.get_key_value(shape.kind).filter(|(name, _)| !shown.contains(*name))
            {
                inline.insert(*name);
                known.extend(fields.iter().map(|(field, _)| *field));
                open.extend(fields.iter().map(|(_, shape)| shape));
            }
        }
        // The text of a link is about something else.
        let text = row.replace("[`", "").replace("`](", "");
        let listed: BTreeSet<_> = quoted(&text).filter(is_name).collect();
        if !known.is_empty() && listed != known {
            faults.push(format!("{name}.{field}: {listed:?} in place of {known:?}"));
        }
    }
    faults.extend(
        types
            .keys()
            .filter(|name| !shown.contains(*name) && !inline.contains(*name))
            .map(|name| format!("{name} is missing")),
    );
    assert!(faults.is_empty(), "docs/reference/api.md:\n{}", faults.join("\n"));
}

#[test]
fn the_page_of_the_api_has_all_requests_and_its_limits() {
    let page = std::fs::read_to_string(file("docs/reference/api.md")).unwrap();
    let tables = tables(&page);
    let requests = tables.iter().find(|table| table.columns[0] == "request").unwrap();
    let path = |row: &Vec<String>| quoted(&row[0]).next()?.split([' ', '?', '[']).nth(1).map(String::from);
    let shown: BTreeSet<_> = requests.rows.iter().filter_map(path).collect();
    let code = std::fs::read_to_string(file("router/src/daemon/api.rs")).unwrap();
    let routes = code.split(".route(\"").skip(1).map(|rest| rest.split('"').next().unwrap().to_string());
    assert_eq!(shown, routes.collect());

    let [body, flows, sas] = [MAX_BODY_BYTES >> 10, MAX_FLOWS_BYTES >> 20, MAX_SAS_BYTES >> 20];
    let limits = format!("| {body} KiB; `/flows` {flows} MiB; `/sas` {sas} MiB |");
    assert!(page.contains(&limits), "{limits}");
    let waiting = format!("for the control thread, and for the flow rules | {QUEUE} each |");
    assert!(page.contains(&waiting), "{waiting}");
}
