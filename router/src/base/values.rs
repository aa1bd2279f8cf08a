//! Names and values that come from users, checked.

use std::{fmt, str::FromStr};

/// Why a text is not a value; says what is allowed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadValue(pub String);

impl fmt::Display for BadValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for BadValue {}

/// The name of a network device.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortName(String);

impl PortName {
    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for PortName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for PortName {
    type Err = BadValue;
    /// What `dev_valid_name()` of the kernel accepts.
    fn from_str(s: &str) -> Result<Self, BadValue> {
        let wrong = s.is_empty()
            || s.len() > 15
            || s == "."
            || s == ".."
            || s.chars().any(|c| c == '/' || c == ':' || c.is_whitespace() || c.is_control());
        if wrong {
            return Err(BadValue(format!(
                "{s:?} is not a device name: 1 to 15 characters, no slash, colon or space, such as \"eth1\""
            )));
        }
        Ok(Self(s.into()))
    }
}
