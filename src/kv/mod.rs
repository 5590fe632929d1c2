//! The paged KV cache: which sequence owns which pages. Ids only, never bytes.

pub mod layout;
