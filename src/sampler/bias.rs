//! Logit biases, and tokens that may never come. They work on the whole list, before every stage.

use std::collections::HashMap;

use super::candidates::{Candidate, change};
use crate::tokenizer::TokenId;

/// Adds to the logits of single tokens.
pub fn add(candidates: &mut [Candidate], biases: &HashMap<TokenId, f32>) {
    if !biases.is_empty() {
        change(candidates, biases, |logit, bias| logit + bias);
    }
}

/// Takes out the banned tokens, unless nothing would be left (where a grammar allows nothing else). Both lists are in
/// the order of ids, so that one walk along them will do.
pub fn ban(candidates: &mut Vec<Candidate>, banned: &[TokenId]) {
    if banned.is_empty() || candidates.iter().all(|candidate| banned.binary_search(&candidate.id).is_ok()) {
        return;
    }
    let mut ahead = banned.iter().copied().peekable();
    candidates.retain(|candidate| {
        while ahead.next_if(|&id| id < candidate.id).is_some() {}
        ahead.peek() != Some(&candidate.id)
    });
}

#[cfg(test)]
mod tests {
    use super::super::tests::{candidates, ids, logits};
    use super::*;

    #[test]
    fn a_bias_is_added_to_its_token_alone() {
        let mut list = candidates(&[1.0, 2.0, 3.0]);
        add(&mut list, &HashMap::from([(0, 5.0), (2, -0.5), (9, 100.0)]));
        assert_eq!(logits(&list), [6.0, 2.0, 2.5]);
    }

    #[test]
    fn extreme_biases_stay_finite() {
        let mut list = candidates(&[1.0, f32::MAX, f32::MIN, 0.0]);
        let biases = HashMap::from([(0, f32::INFINITY), (1, f32::MAX), (2, f32::MIN), (3, f32::NAN)]);
        add(&mut list, &biases);
        assert_eq!(logits(&list), [f32::MAX, f32::MAX, f32::MIN, f32::MIN]);
    }

    #[test]
    fn banned_tokens_are_gone_and_the_others_keep_their_order() {
        let mut list = candidates(&[9.0, 8.0, 1.0, 0.0]);
        ban(&mut list, &[0, 2, 77]);
        assert_eq!(ids(&list), [1, 3]);
        ban(&mut list, &[0, 3]);
        assert_eq!(ids(&list), [1]);
    }

    #[test]
    fn a_ban_on_all_there_is_is_not_followed() {
        let mut list = candidates(&[9.0, 8.0]);
        ban(&mut list, &[0, 1]);
        assert_eq!(ids(&list), [0, 1]);
    }
}
