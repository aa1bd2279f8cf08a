//! The ingress in memory: classes, and a bounded ring for each path (P4).

use super::Frame;
use crate::paths::{
    PathId,
    class::{Class, Classifier},
};
use std::collections::VecDeque;

/// Frames that wait for their path.
pub struct Rings<F> {
    classifier: Classifier,
    rings: Vec<Ring<F>>,
}

struct Ring<F> {
    frames: VecDeque<F>,
    room: usize,
}

/// Why a frame is not in a ring.
#[derive(Debug, PartialEq, Eq)]
pub enum NotTaken<F> {
    /// No path's class matches it.
    NoPath(F),
    /// The ring of its path is full.
    Full(PathId, F),
}

impl<F: Frame> Rings<F> {
    /// For each path: its class, and the most frames that wait for it.
    pub fn new(paths: impl IntoIterator<Item = (Class, usize)>) -> Self {
        let ring = |(class, room)| (class, Ring { frames: VecDeque::new(), room });
        let (classes, rings) = paths.into_iter().map(ring).unzip();
        Rings { classifier: Classifier::new(classes), rings }
    }

    /// Takes a frame. Returns its path.
    pub fn offer(&mut self, frame: F) -> Result<PathId, NotTaken<F>> {
        let path = self.classifier.path_of(frame.data(), frame.ingress());
        let Some((path, ring)) = path.and_then(|path| Some((path, self.rings.get_mut(usize::from(path))?)))
        else {
            return Err(NotTaken::NoPath(frame));
        };
        if ring.frames.len() >= ring.room {
            return Err(NotTaken::Full(path, frame));
        }
        ring.frames.push_back(frame);
        Ok(path)
    }

    /// Hands over up to `most` frames, the oldest first.
    pub fn receive(&mut self, path: PathId, most: usize, to: &mut Vec<F>) {
        if let Some(Ring { frames, .. }) = self.rings.get_mut(usize::from(path)) {
            to.extend(frames.drain(..most.min(frames.len())));
        }
    }

    /// The number of frames that wait.
    pub fn waiting(&self, path: PathId) -> usize {
        self.rings.get(usize::from(path)).map_or(0, |ring| ring.frames.len())
    }
}
