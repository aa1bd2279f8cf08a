//! Checksums of the Internet protocols, and how to update them after a change.

/// The ones' complement sum of big-endian 16-bit words. An odd byte at the end is padded with zero (RFC 1071 section
/// 1).
pub fn sum(bytes: &[u8]) -> u16 {
    let (words, odd) = bytes.as_chunks();
    let sum = words.iter().map(|&word| u64::from(u16::from_be_bytes(word))).sum::<u64>();
    fold(sum + odd.first().map_or(0, |&byte| u64::from(byte) << 8))
}

/// Folds a sum of words of 16, 32 or 64 bits into 16 bits (RFC 1071 section 2 B and C).
#[inline]
pub(crate) fn fold(sum: u64) -> u16 {
    // Add the word to itself with its halves exchanged. The upper half then holds the sum of both halves, including
    // the carry.
    let sum = (sum.wrapping_add(sum.rotate_left(32)) >> 32) as u32;
    (sum.wrapping_add(sum.rotate_left(16)) >> 16) as u16
}

/// The checksum after words that it covers changed from `old` to `new`: HC' = ~(~HC + ~m + m') (RFC 1624 section 3,
/// equation 3). The number of bytes before these words must be even. A wrong checksum stays wrong by the same
/// amount.
pub fn follow(checksum: u16, old: &[u8], new: &[u8]) -> u16 {
    !fold(u64::from(!checksum) + u64::from(!sum(old)) + u64::from(sum(new)))
}

/// CRC32c (RFC 9260 appendix A), reflected, as SCTP uses it.
pub fn crc32c(bytes: &[u8]) -> u32 {
    /// The Castagnoli polynomial, reflected.
    const POLYNOMIAL: u32 = 0x82f6_3b78;
    !bytes.iter().fold(u32::MAX, |crc, &byte| {
        (0..8).fold(crc ^ u32::from(byte), |crc, _| crc >> 1 ^ if crc & 1 != 0 { POLYNOMIAL } else { 0 })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_those_of_the_rfcs() {
        // RFC 1071 section 3.
        assert_eq!(sum(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]), 0xddf2);
        assert_eq!(sum(&[0x12, 0x34, 0x56]), 0x6834);
        // RFC 1624 section 4: equation 3 gives 0x0000 where equation 2 gives 0xffff.
        assert_eq!(follow(0xdd2f, &[0x55, 0x55], &[0x32, 0x85]), 0x0000);
    }

    #[test]
    fn crc32c_is_castagnolis() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        // RFC 3720 appendix B.4: 32 bytes of zeros.
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
    }
}
