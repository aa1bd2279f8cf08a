//! AES-GCM by aws-lc-rs: works on every CPU, one packet after another.

use aws_lc_rs::aead::{AES_128_GCM, AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use logic::esp::{Aead, Job, Key, TAG};

pub struct Expanded(Option<LessSafeKey>);

impl Expanded {
    pub fn new(key: &Key) -> Self {
        let algorithm = if key.aes().len() == 16 { &AES_128_GCM } else { &AES_256_GCM };
        // A key has the length of one of these.
        Expanded(UnboundKey::new(algorithm, key.aes()).ok().map(LessSafeKey::new))
    }
}

impl Aead for Expanded {
    fn seal(&self, jobs: &mut [Job<'_>]) -> bool {
        let mut all = true;
        for job in jobs {
            let aad = Aad::from(job.aad.get(..job.aad_bytes.into()).unwrap_or_default());
            job.is_right = false;
            let Some((text, tag)) = job.text.split_last_chunk_mut::<TAG>() else {
                all = false;
                continue;
            };
            let nonce = Nonce::assume_unique_for_key(job.nonce);
            let sealed =
                self.0.as_ref().and_then(|key| key.seal_in_place_separate_tag(nonce, aad, text).ok());
            match sealed {
                Some(sealed) => {
                    tag.copy_from_slice(sealed.as_ref());
                    job.is_right = true;
                }
                // It seals every text that fits a frame. A text that it did not seal must not leave unencrypted.
                None => {
                    job.text.fill(0);
                    all = false;
                }
            }
        }
        all
    }

    fn open(&self, jobs: &mut [Job<'_>]) {
        for job in jobs {
            let aad = Aad::from(job.aad.get(..job.aad_bytes.into()).unwrap_or_default());
            let nonce = Nonce::assume_unique_for_key(job.nonce);
            let opened = self.0.as_ref().map(|key| key.open_in_place(nonce, aad, job.text).is_ok());
            job.is_right = opened == Some(true);
        }
    }
}
