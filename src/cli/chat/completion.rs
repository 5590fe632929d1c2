//! What Tab makes of the beginning of a command.

use rustyline::completion::{Completer, FilenameCompleter, Pair};
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::validate::Validator;
use rustyline::{Context, Helper};

use super::commands::{self, Argument};
use crate::cli::models;

pub struct CommandCompleter {
    files: FilenameCompleter,
    pub branches: Vec<String>,
}

impl CommandCompleter {
    pub fn new() -> CommandCompleter {
        CommandCompleter { files: FilenameCompleter::new(), branches: Vec::new() }
    }

    /// Words that may stand where the last word of `typed` stands; `None`: it is the name of a file.
    fn words(&self, typed: &str) -> Option<Vec<String>> {
        if !typed.starts_with('/') {
            return Some(Vec::new());
        }
        let Some((command, rest)) = commands::find(typed).filter(|_| typed.contains(' ')) else {
            return Some(commands::names().into_iter().map(str::to_string).collect());
        };
        // ollama's way to say it.
        let rest = rest.strip_prefix("parameter ").unwrap_or(rest);
        match command.argument {
            Argument::File => None,
            Argument::Model if rest.contains('/') => None,
            Argument::Words(_) if command.names == ["/set"] && rest.starts_with("format ") => {
                (!rest.contains('/')).then(|| vec!["json".to_string()])
            }
            _ if rest.contains(' ') => Some(Vec::new()),
            Argument::Unknown => Some(Vec::new()),
            Argument::Words(words) => Some(words()),
            Argument::Branch => Some(self.branches.clone()),
            Argument::Model => Some(models::names()),
        }
    }
}

impl Completer for CommandCompleter {
    type Candidate = Pair;

    fn complete(&self, line: &str, cursor: usize, _: &Context) -> rustyline::Result<(usize, Vec<Pair>)> {
        let typed = &line[..cursor];
        let Some(words) = self.words(typed) else { return self.files.complete_path(line, cursor) };
        let start = typed.rfind(' ').map_or(0, |space| space + 1);
        let pair = |word: String| Pair { display: word.clone(), replacement: word };
        Ok((start, words.into_iter().filter(|word| word.starts_with(&typed[start..])).map(pair).collect()))
    }
}

impl Helper for CommandCompleter {}
impl Highlighter for CommandCompleter {}
impl Validator for CommandCompleter {}
impl Hinter for CommandCompleter {
    type Hint = String;
}

#[cfg(test)]
mod tests {
    use rustyline::history::DefaultHistory;

    use super::*;

    /// The line as each candidate would leave it.
    fn completed(typed: &str) -> Vec<String> {
        let completer = CommandCompleter { branches: vec!["main".into(), "other".into()], ..CommandCompleter::new() };
        let history = DefaultHistory::new();
        let (start, found) = completer.complete(typed, typed.len(), &Context::new(&history)).unwrap();
        found.into_iter().map(|pair| format!("{}{}", &typed[..start], pair.replacement)).collect()
    }

    #[test]
    fn commands_complete_from_their_beginning() {
        assert_eq!(completed("/he"), ["/help"]);
        assert_eq!(completed("/s"), ["/switch", "/system", "/set", "/show", "/stats", "/save"]);
        assert_eq!(completed("/help k"), ["/help keys", "/help kv"]);
        assert!(completed("hello").is_empty());
        for name in commands::names() {
            assert!(completed(name).contains(&name.to_string()));
        }
    }

    #[test]
    fn arguments_complete_by_their_kind() {
        assert_eq!(completed("/set top"), ["/set top_k", "/set top_p", "/set top_n_sigma"]);
        assert_eq!(
            completed("/set parameter top"),
            ["/set parameter top_k", "/set parameter top_p", "/set parameter top_n_sigma"]
        );
        assert_eq!(completed("/set nowo"), ["/set nowordwrap"]);
        assert_eq!(completed("/set format js"), ["/set format json"]);
        assert_eq!(completed("/help sa"), ["/help save"]);
        assert_eq!(completed("/show m"), ["/show messages"]);
        assert_eq!(completed("/switch o"), ["/switch other"]);
        assert!(completed("/set top_p 0").is_empty() && completed("/system a").is_empty());
    }

    #[test]
    fn files_complete_with_their_spaces_escaped() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("a note.txt"), "").unwrap();
        std::fs::create_dir(folder.path().join("notes")).unwrap();
        let start = folder.path().display();
        assert_eq!(completed(&format!("/read {start}/a")), [format!(r"/read {start}/a\ note.txt")]);
        assert_eq!(completed(&format!("/load {start}/no")), [format!("/load {start}/notes/")]);
        assert_eq!(completed(&format!("/model {start}/no")), [format!("/model {start}/notes/")]);
    }
}
