//! Where a NaN or infinity comes from, for whoever has to tell of one.

use std::sync::{Arc, Mutex, PoisonError};

use super::{Engine, SequenceId};
use crate::backend::{Stage, Tapped};

impl Engine {
    /// The first stage of a sequence's last step whose result holds a NaN or infinity, and its layer. The step is computed
    /// once more, with an eye on every stage. `None`: all that can be seen is finite, as it is when only the last norm or
    /// the output head is at fault.
    pub fn first_non_finite(&mut self, id: SequenceId) -> Option<(Stage, usize)> {
        let &last = self.tokens(id).last()?;
        let before = self.tokens(id).len() - 1;
        let found = Arc::new(Mutex::new(None));
        let seen = found.clone();
        self.backend.set_tap(Some(Box::new(move |stage, layer, values| {
            let is_finite = match values {
                Tapped::Floats(values) => values.iter().all(|value| value.is_finite()),
                // A quantizer keeps a NaN or infinity in the scale.
                Tapped::Levels(_, scales) => scales.iter().all(|scale| scale.is_finite()),
            };
            if !is_finite {
                seen.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert((stage, layer));
            }
        })));
        self.truncate(id, before);
        // A step that fails this time shows nothing more, and the first failure is the one to tell of.
        let _ = self.decode(id, last);
        self.backend.set_tap(None);
        *found.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
