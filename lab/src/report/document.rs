//! Reads the JSON documents of `compare` and `rfc2544` as if they were lines.

use serde_json::{Value, json};

use super::{
    experiment::words,
    read::{Run, sort},
};

/// Reads a document that holds a `run` record, and `samples` or `lines`.
pub(super) fn run(file: &str, document: Value) -> Result<Run, String> {
    let about = document.get("run").filter(|run| run.is_object());
    let about = about.ok_or("no results of millrace-lab: a JSON document without \"run\"")?.clone();
    let mut runs = vec![Run { file: file.into(), about: Some(about), ..Run::default() }];
    let list = |name: &str| document.get(name).and_then(Value::as_array);
    let lines: Vec<Value> = match (list("samples"), list("lines")) {
        (Some(samples), _) => {
            let skipped = list("skipped").into_iter().flatten().cloned();
            samples.iter().map(|sample| compared(&document, sample)).chain(skipped).collect()
        }
        (None, Some(lines)) => lines.clone(),
        (None, None) => return Err("no results of millrace-lab: neither \"samples\" nor \"lines\"".into()),
    };
    for (at, line) in lines.into_iter().enumerate() {
        if let Err(why) = sort(&mut runs, line) {
            runs[0].notices.push(format!("line {} of the document {why}", at + 1));
        }
    }
    let run = runs.swap_remove(0);
    let mut notices: Vec<String> = run.notices.iter().take(3).cloned().collect();
    if document.get("interrupted") == Some(&Value::Bool(true)) {
        notices.push("the run was interrupted".into());
    }
    notices.extend(document.get("error").map(|error| format!("the run ended early: {}", words(error))));
    Ok(Run { notices, ..run })
}

/// Converts a row of `compare`: measured values go below `sample`, as in JSON lines.
fn compared(document: &Value, row: &Value) -> Value {
    let mut sample = row.clone();
    if let Some(fields) = sample.as_object_mut() {
        fields.remove("subject");
        fields.remove("repeat");
    }
    let rate = document.pointer("/parameters/pps").filter(|pps| pps.is_number());
    let pace = rate.map_or_else(|| json!("saturate"), |pps| json!({"rate": pps}));
    json!({"record": "sample", "case": "compare", "parameters": document.get("parameters"), "pace": pace,
        "subject": row.get("subject"), "repeat": row.get("repeat"), "sample": sample})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_compare_are_samples() {
        let row = json!({"subject": "linux", "repeat": 1, "mpps": 0.4, "loss": 0.0, "cpu_left": null});
        let document = |pps: Value| json!({"run": {"cores": 2}, "parameters": {"frame": 64, "pps": pps}, "samples": [row], "ratios": {}});
        let lines = run("a.json", document(json!(400_000))).unwrap().lines;
        assert_eq!(
            lines,
            [json!({"record": "sample", "case": "compare", "parameters": {"frame": 64, "pps": 400_000},
                "pace": {"rate": 400_000}, "subject": "linux", "repeat": 1,
                "sample": {"mpps": 0.4, "loss": 0.0, "cpu_left": null}})]
        );
        let saturated = run("a.json", document(Value::Null)).unwrap();
        assert_eq!(
            (&saturated.lines[0]["pace"], saturated.about),
            (&json!("saturate"), Some(json!({"cores": 2})))
        );
    }

    #[test]
    fn subjects_that_compare_skipped_are_kept() {
        let skipped =
            json!({"record": "skipped", "case": "compare", "subject": "ovs", "why": "not installed"});
        let document = json!({"run": {}, "parameters": {}, "samples": [], "skipped": [skipped]});
        assert_eq!(run("a.json", document).unwrap().lines, [skipped]);
    }

    #[test]
    fn lines_of_rfc2544_are_kept_and_its_end_is_reported() {
        let line = json!({"record": "sample", "case": "throughput", "subject": "millrace", "sample": {"throughput_pps": 7}});
        let figure = json!({"record": "figure", "name": "a", "title": "A", "y": {"at": "/sample/loss", "label": "lost"}});
        let document = json!({"run": {}, "subject": "millrace", "lines": [figure, line, {"record": "figure"}],
            "results": [{"frame": 64}], "interrupted": true, "error": "no \"port\""});
        let run = run("a.json", document).unwrap();
        assert_eq!((run.figures.len(), &run.lines[..]), (1, &[line][..]));
        assert!(run.notices[0].starts_with("line 3 of the document is not a figure"), "{:?}", run.notices);
        assert_eq!(run.notices[1..], ["the run was interrupted", "the run ended early: no \"port\""]);
    }
}
