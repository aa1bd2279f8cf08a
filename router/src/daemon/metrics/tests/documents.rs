//! The table in docs/reference/metrics.md, and the alert rules and the dashboard of the package.

use super::*;
use crate::{base::reference::file, daemon::metrics::families::Kind};
use serde_json::Value;
use std::fmt::Write;

const PAGE: &str = "docs/reference/metrics.md";
const RULES: &str = "debian/examples/millrace.rules.yml";
const DASHBOARD: &str = "debian/examples/millrace-dashboard.json";

fn read(name: &str) -> String {
    std::fs::read_to_string(file(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// The page, with the tables that are made of the families.
fn made(page: &str) -> String {
    let mut groups: Vec<&str> = Metric::ALL.iter().map(|metric| metric.family().group).collect();
    groups.dedup();
    let mut text = page.to_owned();
    for group in &groups {
        let begin = format!("## {group}\n\n<!-- begin -->\n");
        let at = text.find(&begin).unwrap_or_else(|| panic!("{PAGE} has no {begin}")) + begin.len();
        let end = text[at..].find("<!-- end -->").expect("an end of each table");
        let mut table =
            String::from("| name | type | labels | most series | meaning |\n|---|---|---|---|---|\n");
        for metric in Metric::ALL.iter().filter(|metric| metric.family().group == *group) {
            let Family { kind, labels, most, help, .. } = metric.family();
            let kind = if *kind == Kind::Counter { "counter" } else { "gauge" };
            let (name, labels) = (metric.family().sample(), labels.join(", "));
            writeln!(table, "| `{name}` | {kind} | {labels} | {most} | {help} |").unwrap();
        }
        text.replace_range(at..at + end, &table);
    }
    assert_eq!(text.matches("<!-- begin -->").count(), groups.len(), "{PAGE} has another table");
    let sum: usize = Metric::ALL.iter().map(|metric| metric.family().most).sum();
    assert!(text.contains(&format!("at most {sum} series")), "{PAGE} does not say: at most {sum} series");
    text
}

#[test]
fn the_reference_page_is_made_of_the_table() {
    let page = read(PAGE);
    let made = made(&page);
    if std::env::var_os("MILLRACE_WRITE").is_some() {
        std::fs::write(file(PAGE), &made).unwrap();
        return;
    }
    let differs = made.lines().zip(page.lines()).find(|(made, page)| made != page);
    assert!(
        made == page,
        "{PAGE} differs from the table; first difference: {differs:#?}\n\
         `MILLRACE_WRITE=1 cargo test -p millrace --lib metrics` writes it again"
    );
}

/// The words of a text that could be metrics of ours.
fn named(text: &str) -> BTreeSet<&str> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    text.split(|c| !is_part(c)).filter(|word| word.starts_with("millrace_")).collect()
}

/// Each selector `metric{label...}` and `by (label)` of our metrics names labels that exist.
fn check(name: &str, text: &str) {
    let known: BTreeMap<_, _> =
        Metric::ALL.iter().map(|metric| (metric.family().sample(), metric.family().labels)).collect();
    let used = named(text);
    assert!(used.len() >= 8, "{name} uses {used:?}");
    let unknown: Vec<_> = used.iter().filter(|word| !known.contains_key(**word)).collect();
    assert!(unknown.is_empty(), "{name} uses unknown metrics: {unknown:?}");
    for (metric, labels) in &known {
        for rest in text.split(&format!("{metric}{{")).skip(1) {
            let (selector, _) = rest.split_once('}').unwrap();
            for pair in selector.split(',') {
                let label = pair.split(['=', '!', '~']).next().unwrap().trim();
                let is_known = labels.contains(&label) || ["instance", "job"].contains(&label);
                assert!(is_known, "{name}: {metric} has no label {label}");
            }
        }
    }
}

#[test]
fn alert_rules_use_only_known_metrics() {
    let rules = read(RULES);
    check(RULES, &rules);
    // Each rule has all that an operator needs.
    let alerts: Vec<_> = rules.split("- alert: ").skip(1).collect();
    assert!(alerts.len() >= 8);
    for alert in alerts {
        for part in ["expr: ", "for: ", "severity: ", "summary: ", "description: "] {
            assert!(alert.contains(part), "{part}: {alert}");
        }
        assert!(named(alert).len() + alert.matches("up{").count() > 0, "{alert}");
    }
}

#[test]
fn the_dashboard_is_one_and_uses_only_known_metrics() {
    let text = read(DASHBOARD);
    check(DASHBOARD, &text.replace("\\\"", "\""));
    let dashboard: Value = serde_json::from_str(&text).unwrap();
    assert!(dashboard["title"].is_string() && dashboard["uid"].is_string() && dashboard["id"].is_null());
    assert!(dashboard["schemaVersion"].as_u64().is_some_and(|version| version >= 36));
    let (mut ids, mut taken) = (BTreeSet::new(), BTreeSet::new());
    for panel in dashboard["panels"].as_array().unwrap() {
        assert!(ids.insert(panel["id"].as_u64().unwrap()), "{panel}");
        let place = ["x", "y", "w", "h"].map(|of| panel["gridPos"][of].as_u64().unwrap());
        let [x, y, w, h] = place;
        assert!(x + w <= 24, "{panel}");
        let mut cells = (x..x + w).flat_map(|x| (y..y + h).map(move |y| (x, y)));
        assert!(cells.all(|cell| taken.insert(cell)), "panels overlap: {panel}");
        if panel["type"] == "row" {
            continue;
        }
        assert!(
            ["stat", "timeseries", "table", "bargauge"].iter().any(|kind| panel["type"] == *kind),
            "{panel}"
        );
        assert_eq!(panel["datasource"]["uid"], "${datasource}", "{panel}");
        let targets = panel["targets"].as_array().unwrap();
        assert!(!targets.is_empty());
        for target in targets {
            let expression = target["expr"].as_str().unwrap();
            assert!(
                expression.contains("instance=~\"$instance\"") && target["refId"].is_string(),
                "{expression}"
            );
            let brackets =
                |open, close| expression.matches(open).count() == expression.matches(close).count();
            assert!(brackets('(', ')') && brackets('{', '}') && brackets('[', ']'), "{expression}");
        }
    }
}
