//! Bytes as hexadecimal digits.

/// Two digits for each byte, in lower case.
pub fn encode(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The bytes of pairs of digits. `None`: a character is no digit, or their number is odd.
pub fn decode(text: &str) -> Option<Vec<u8>> {
    let digits: Option<Vec<u8>> = text.chars().map(|c| c.to_digit(16).map(|d| d as u8)).collect();
    let digits = digits.filter(|d| d.len() % 2 == 0)?;
    Some(digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hexadecimal() {
        assert_eq!(encode(&[0, 255, 0x7a]), "00ff7a");
        assert_eq!(decode("00ff7A"), Some(vec![0, 255, 0x7a]));
        assert_eq!(decode(""), Some(vec![]));
        for wrong in ["0", "0g", "+1", "ää"] {
            assert_eq!(decode(wrong), None, "{wrong}");
        }
    }
}
