//! Words for times and lists.

/// A time in at most two units, such as `3 min 20 s`.
pub fn span(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} min {} s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{} h {} min", seconds / 3600, seconds % 3600 / 60),
        _ => format!("{} d {} h", seconds / 86_400, seconds % 86_400 / 3600),
    }
}

/// At most three names, and how many more there are.
pub fn some_names<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    const MOST: usize = 3;
    let names: Vec<_> = names.into_iter().collect();
    let shown = names[..names.len().min(MOST)].join(", ");
    match names.len().saturating_sub(MOST) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_short() {
        assert_eq!([59, 61, 3661, 90_061].map(span), ["59 s", "1 min 1 s", "1 h 1 min", "1 d 1 h"]);
        assert_eq!(some_names(["a", "b", "c"]), "a, b, c");
        assert_eq!(some_names(["a", "b", "c", "d"]), "a, b, c and 1 more");
    }
}
