//! The words of a conversation, and how they are kept in a saved session.

use anyhow::{Context, bail, ensure};
use serde_json::{Value, json};

use crate::template::{Message, Role};
use crate::tokenizer::TokenId;

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Conversation {
    /// The system message first if there is one, then user and assistant in turn, the assistant last.
    pub messages: Vec<Message>,
    /// The last prompt and its answer, in the ids they had.
    pub spoken: Vec<TokenId>,
    /// What was read from files and stands before the next message.
    pub documents: Vec<Document>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Document {
    pub name: String,
    pub text: String,
}

impl Conversation {
    pub fn system(&self) -> Option<&str> {
        let first = self.messages.first().filter(|message| message.role == Role::System);
        first.map(|message| message.content.as_str())
    }

    /// What the user said last, if it was answered.
    pub fn last_question(&self) -> Option<&str> {
        self.messages.iter().rev().find(|message| message.role == Role::User).map(|message| message.content.as_str())
    }

    pub fn is_answered(&self) -> bool {
        self.messages.iter().any(|message| message.role == Role::Assistant)
    }

    /// The documents that wait and then the text, with a blank line between them, as `run` joins files and a prompt.
    pub fn question(&self, text: &str) -> String {
        let documents = self.documents.iter().map(|document| document.text.as_str());
        documents.chain([text]).collect::<Vec<_>>().join("\n\n")
    }

    /// Starts anew. The system message stays.
    pub fn clear(&mut self) {
        self.messages.retain(|message| message.role == Role::System);
        self.spoken.clear();
        self.documents.clear();
    }

    pub fn to_notes(&self) -> Vec<u8> {
        let message = |message: &Message| json!([message.role.name(), message.content]);
        let messages: Vec<Value> = self.messages.iter().map(message).collect();
        let document = |document: &Document| json!([document.name, document.text]);
        let documents: Vec<Value> = self.documents.iter().map(document).collect();
        json!({ "messages": messages, "spoken": self.spoken, "documents": documents }).to_string().into_bytes()
    }

    pub fn from_notes(notes: &[u8], vocab: usize) -> anyhow::Result<Conversation> {
        ensure!(!notes.is_empty(), "it was saved by `run`");
        let notes: Value = serde_json::from_slice(notes)?;
        let list = |name: &str| notes[name].as_array().with_context(|| format!("it has no {name}"));
        let text = |value: &Value| value.as_str().map(str::to_string);
        let message = |value: &Value| {
            let role = [Role::System, Role::User, Role::Assistant].into_iter().find(|role| value[0] == role.name());
            role.zip(text(&value[1])).map(|(role, content)| Message { role, content })
        };
        let messages = list("messages")?.iter().map(message).collect::<Option<Vec<_>>>();
        let messages = messages.context("a message of it has no role or no text")?;
        let id = |value: &Value| value.as_u64().filter(|&id| id < vocab as u64).map(|id| id as TokenId);
        let spoken = list("spoken")?.iter().map(id).collect::<Option<Vec<_>>>();
        let spoken = spoken.context("a token of it is not in the vocabulary")?;
        let talk = messages.iter().skip_while(|message| message.role == Role::System);
        let in_turn = [Role::User, Role::Assistant].into_iter().cycle();
        if !talk.clone().zip(in_turn).all(|(message, role)| message.role == role) || talk.count() % 2 == 1 {
            bail!("its messages are not in turn");
        }
        // Files of earlier versions have none.
        let document = |value: &Value| text(&value[0]).zip(text(&value[1])).map(|(name, text)| Document { name, text });
        let documents = notes["documents"].as_array().into_iter().flatten().map(document).collect::<Option<Vec<_>>>();
        let documents = documents.context("a document of it has no name or no text")?;
        Ok(Conversation { messages, spoken, documents })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(role: Role, content: &str) -> Message {
        Message { role, content: content.to_string() }
    }

    fn conversation() -> Conversation {
        Conversation {
            messages: vec![said(Role::System, "s"), said(Role::User, "a\nb"), said(Role::Assistant, "é")],
            spoken: vec![1, 2, 3],
            documents: vec![Document { name: "f".into(), text: "x\n".into() }],
        }
    }

    #[test]
    fn notes_hold_every_word() {
        let conversation = conversation();
        assert_eq!(Conversation::from_notes(&conversation.to_notes(), 4).unwrap(), conversation);
        let old = br#"{"messages": [["user", "a"], ["assistant", "b"]], "spoken": []}"#;
        assert!(Conversation::from_notes(old, 4).unwrap().documents.is_empty());
    }

    #[test]
    fn notes_that_cannot_be_right_are_refused() {
        let error = |notes: &str, vocab| Conversation::from_notes(notes.as_bytes(), vocab).unwrap_err().to_string();
        assert_eq!(error("", 4), "it was saved by `run`");
        assert_eq!(error("{}", 4), "it has no messages");
        assert_eq!(error(r#"{"messages": [["user", "a"]], "spoken": []}"#, 4), "its messages are not in turn");
        assert_eq!(
            error(r#"{"messages": [["judge", "a"]], "spoken": []}"#, 4),
            "a message of it has no role or no text"
        );
        assert_eq!(error(r#"{"messages": [], "spoken": [4]}"#, 4), "a token of it is not in the vocabulary");
        let error = error(r#"{"messages": [], "spoken": [], "documents": [["f"]]}"#, 4);
        assert_eq!(error, "a document of it has no name or no text");
    }

    #[test]
    fn documents_stand_before_the_question() {
        let mut conversation = conversation();
        assert_eq!(conversation.question("why?"), "x\n\n\nwhy?");
        conversation.clear();
        assert_eq!(conversation.question("why?"), "why?");
        assert_eq!((conversation.messages.len(), conversation.system()), (1, Some("s")));
    }
}
