//! Files that are built into the lab under a name, or that the user has.

use std::{borrow::Cow, path::Path};

use anyhow::{Context, Result, bail};

/// The text of the built-in file of this name, or of the file at this path. `kind` names the kind of file in errors.
///
/// # Errors
/// There is neither, or the file cannot be read.
pub(crate) fn text<'a>(kind: &str, built_in: &[(&str, &'a str)], name_or_path: &str) -> Result<Cow<'a, str>> {
    if let Some((_, text)) = built_in.iter().find(|(name, _)| *name == name_or_path) {
        return Ok(Cow::Borrowed(text));
    }
    let path = Path::new(name_or_path);
    if !path.exists() {
        let names = built_in.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
        bail!("no {kind} is called {name_or_path}, and there is no such file; the built-in ones: {names}");
    }
    let text = std::fs::read_to_string(path).with_context(|| {
        format!("cannot read {name_or_path}, where a {kind} was expected: a TOML file as in lab/README.md")
    })?;
    Ok(Cow::Owned(text))
}
