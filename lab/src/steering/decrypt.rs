//! Decrypts frames that leave a tunnel, and counts them by the core that did it (decrypt.bpf.c).

use std::os::fd::{AsFd, OwnedFd};

use anyhow::{Context, Result, ensure};
use libbpf_rs::{
    ProgramInput,
    skel::{OpenSkel, SkelBuilder},
};

use crate::{
    bpf::{self, decrypt as skeleton},
    namespace::Namespace,
};

/// Decrypts frames until it is dropped.
pub struct Decrypt {
    _link: OwnedFd,
    skeleton: skeleton::DecryptSkel<'static>,
}

impl Decrypt {
    /// Starts to decrypt what this device receives.
    pub fn on(namespace: &Namespace, device: &str) -> Result<Self> {
        let open = skeleton::DecryptSkelBuilder::default().open(bpf::storage())?;
        let skeleton =
            open.load().context("decrypting in the kernel needs bpf_crypto_decrypt (Linux 6.10)")?;
        let set_up = skeleton.progs.set_up.test_run(ProgramInput::default())?;
        ensure!(
            set_up.return_value == 0,
            "the kernel has no cipher ecb(aes): error {}",
            set_up.return_value as i32
        );
        let index = namespace.interface_index(device)?;
        let link = namespace.enter(|| Ok(bpf::attach_ingress(skeleton.progs.decrypt.as_fd(), index)?));
        Ok(Self { _link: link.with_context(|| format!("decrypting what {device} receives"))?, skeleton })
    }

    /// Frames for a machine decrypted by each core so far.
    pub fn by_core(&self, machine: u8) -> Result<Vec<u64>> {
        bpf::read_per_cpu(&self.skeleton.maps.decrypted, machine.into())
    }
}
