//! Text of others for terminals and logs.

/// As a terminal may show it: whoever runs a process or makes a device names it.
pub fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}
