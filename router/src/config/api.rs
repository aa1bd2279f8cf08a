//! `[api]`: who may read from the daemon.

use crate::base::BadValue;
use anyhow::{Context, Result};
use rustix::fs::Gid;
use serde::Deserialize;
use std::str::FromStr;

/// The settings of `[api]`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ApiSettings {
    /// The group that may use the read-only socket. `None`: there is no such socket.
    pub readers: Option<GroupName>,
}

impl ApiSettings {
    /// The group of the read-only socket.
    ///
    /// # Errors
    /// There is no group of this name.
    pub fn group(&self) -> Result<Option<Gid>> {
        self.readers.as_ref().map(GroupName::number).transpose()
    }
}

/// The name of a group, or its number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupName(String);

impl FromStr for GroupName {
    type Err = BadValue;
    fn from_str(s: &str) -> Result<Self, BadValue> {
        let fine = |b: u8| b.is_ascii_alphanumeric() || b"_-.$".contains(&b);
        if s.is_empty() || s.len() > 32 || s.starts_with('-') || !s.bytes().all(fine) {
            return Err(BadValue(format!(
                "{s:?} is not allowed: the name of a group, 1 to 32 letters, digits, '-', '_' and '.', or its number"
            )));
        }
        Ok(Self(s.into()))
    }
}

impl GroupName {
    /// The group's number, from the machine's database of groups.
    fn number(&self) -> Result<Gid> {
        let name = &self.0;
        let found = nix::unistd::Group::from_name(name)
            .with_context(|| format!("api.readers: cannot look for group {name}"))?;
        let number = found.map(|group| group.gid.as_raw()).or_else(|| name.parse().ok());
        // The highest number means "unchanged" to the kernel.
        number.filter(|number| *number != u32::MAX).map(Gid::from_raw).with_context(|| {
            format!("api.readers: there is no group {name}: create it with `groupadd --system {name}`")
        })
    }
}

/// Keys, each with an example.
pub(super) const FORMS: [(&str, &str); 1] = [("api.readers", "readers = \"millrace\"")];

#[cfg(test)]
mod tests {
    use super::{super::Config, *};
    use std::path::Path;

    fn parse(text: &str) -> Result<ApiSettings, String> {
        let text = format!("[api]\n{text}");
        Config::parse(Path::new("m.toml"), &text).map(|config| config.api).map_err(|e| e.to_string())
    }

    #[test]
    fn groups_are_names_or_numbers_of_the_machine() {
        let group = |name: &str| parse(&format!("readers = {name:?}")).unwrap().group();
        assert_eq!(parse("").unwrap().group().unwrap(), None);
        assert_eq!(group("root").unwrap(), Some(Gid::from_raw(0)));
        assert_eq!(group("12345").unwrap(), Some(Gid::from_raw(12345)));
        for unknown in ["no-such-group", "4294967295", "4294967296"] {
            let error = group(unknown).unwrap_err().to_string();
            assert!(error.contains(&format!("groupadd --system {unknown}")), "{error}");
        }
    }

    #[test]
    fn an_error_names_file_line_key_and_what_is_allowed() {
        for (text, parts) in [
            ("readers = \"\"", &["m.toml:2: api.readers: ", "the name of a group"][..]),
            ("readers = \"a b\"", &["m.toml:2: api.readers: ", "\"a b\" is not allowed"]),
            ("readers = \"-x\"", &["m.toml:2: api.readers: ", "is not allowed"]),
            ("readers = 7", &["m.toml:2: api.readers: ", "example: readers = \"millrace\""]),
            ("reader = \"x\"", &["m.toml:2: api.reader: ", "unknown field"]),
        ] {
            let error = parse(text).unwrap_err();
            assert!(parts.iter().all(|part| error.contains(part)), "{text}: {error}");
        }
    }
}
