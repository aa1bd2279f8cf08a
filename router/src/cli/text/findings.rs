//! Problems and notes as lines below tables.

use crate::{
    api::findings::{Finding, Remark, remarks},
    base::words::span,
};

/// The most lines of problems, and of notes.
const MOST: usize = 20;

/// A line for each remark, under `problems:` and `notes:`.
pub fn lines(problems: &[Remark], notes: &[Remark]) -> String {
    let part = |head: &str, all: &[Remark]| {
        let more = all.len().saturating_sub(MOST);
        let rest = (more > 0).then(|| format!("  {more} more; --json has them all\n"));
        let lines: String = all.iter().take(MOST).map(line).chain(rest).collect();
        if lines.is_empty() { lines } else { format!("{head}:\n{lines}") }
    };
    part("problems", problems) + &part("notes", notes)
}

/// The same for findings.
pub fn findings(all: &[Finding]) -> String {
    let (notes, problems): (Vec<_>, Vec<_>) = all.iter().cloned().partition(|finding| finding.is_note);
    lines(&remarks(&problems), &remarks(&notes))
}

fn line(remark: &Remark) -> String {
    let age = remark.age_s.map_or(String::new(), |age_s| format!(" (for {})", span(age_s as u64)));
    format!("  {}{age}\n", remark.text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn problems_come_first_and_the_list_is_bounded() {
        let remark = |n: usize| Remark { text: format!("thing {n}"), age_s: (n == 0).then_some(75.5) };
        let many: Vec<_> = (0..1000).map(remark).collect();
        let text = lines(&many[..2], &many);
        assert!(text.starts_with("problems:\n  thing 0 (for 1 min 15 s)\n  thing 1\nnotes:\n"), "{text}");
        assert_eq!(text.lines().count(), 3 + 1 + MOST + 1);
        assert!(text.ends_with("  980 more; --json has them all\n"), "{text}");
        assert_eq!(lines(&[], &[]), "");
    }
}
