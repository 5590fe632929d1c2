//! Branches of a conversation: `/fork NAME` goes on in a copy that shares all pages, `/switch NAME` goes back and forth.
//!
//! A chat has the blocks of one full context and its cache, however many branches it has. Those that wait keep their
//! pages while there is room, and give them up, oldest first, before an answer could lack any; what the cache still
//! holds of them is found again when they go on, the rest is read anew.

use anyhow::{bail, ensure};

use super::conversation::Conversation;
use super::session::Session;
use crate::engine::{Engine, SequenceId};
use crate::generation::Completion;
use crate::kv::layout::BLOCK_TOKENS;

/// The branch that a chat starts in.
pub const FIRST: &str = "main";

/// A branch that waits.
pub struct Branch {
    pub name: String,
    pub conversation: Conversation,
    last: Option<Completion>,
    pub sequence: SequenceId,
}

impl Session {
    /// Goes on in a copy of the present branch.
    pub fn fork(&mut self, name: &str) -> anyhow::Result<()> {
        ensure!(
            !name.is_empty() && !name.contains(char::is_whitespace),
            "/fork needs a name of one word for the new branch"
        );
        ensure!(name != self.branch && self.find(name).is_none(), "there is a branch '{name}' already: /switch {name}");
        let sequence = self.loaded.engine.fork(self.sequence);
        self.enter(Branch { name: name.to_string(), conversation: self.conversation.clone(), last: None, sequence });
        Ok(())
    }

    /// Goes on in another branch.
    pub fn switch(&mut self, name: &str) -> anyhow::Result<()> {
        match self.find(name) {
            Some(at) => {
                let branch = self.waiting.remove(at);
                self.enter(branch);
                Ok(())
            }
            None if name == self.branch => bail!("this is the branch '{name}'"),
            None => bail!("no branch '{name}': there are {}", self.branch_names().join(", ")),
        }
    }

    /// The present branch first.
    pub fn branch_names(&self) -> Vec<&str> {
        let waiting = self.waiting.iter().rev().map(|branch| branch.name.as_str());
        std::iter::once(self.branch.as_str()).chain(waiting).collect()
    }

    fn find(&self, name: &str) -> Option<usize> {
        self.waiting.iter().position(|branch| branch.name == name)
    }

    fn enter(&mut self, branch: Branch) {
        let left = Branch {
            name: std::mem::replace(&mut self.branch, branch.name),
            conversation: std::mem::replace(&mut self.conversation, branch.conversation),
            last: std::mem::replace(&mut self.last, branch.last),
            sequence: std::mem::replace(&mut self.sequence, branch.sequence),
        };
        self.waiting.push(left);
    }

    /// Lets waiting branches give up pages until the present one can fill its context.
    pub(super) fn claim_room(&mut self) {
        let engine = &mut self.loaded.engine;
        let waiting = self.waiting.iter().map(|branch| branch.sequence);
        give_up_until_room(engine, self.sequence, waiting);
    }
}

fn give_up_until_room(engine: &mut Engine, present: SequenceId, waiting: impl Iterator<Item = SequenceId>) {
    // One more than a context has: the partial page that a fork begins with is copied.
    let wanted = engine.context_tokens().div_ceil(BLOCK_TOKENS) + 1;
    for sequence in waiting {
        let usage = engine.usage();
        let own = engine.page_owners(present).iter().filter(|&&owners| owners == 1).count();
        if usage.total - usage.live + own >= wanted {
            return;
        }
        engine.truncate(sequence, 0);
    }
}
