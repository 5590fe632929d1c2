//! `/set`: parameters of `settings`, the system message, and what is on or off.

use anyhow::{anyhow, bail, ensure};

use super::commands::{Flow, split_word};
use super::session::{Session, Switches};
use super::settings;
use super::words::unquoted;
use crate::cli::terminal::Terminal;

struct Switch {
    /// The word that turns it on, and what is said then.
    on: (&'static str, &'static str),
    off: (&'static str, &'static str),
    of: fn(&mut Switches) -> &mut bool,
}

const SWITCHES: &[Switch] = &[
    Switch {
        on: ("verbose", "Figures follow each answer"),
        off: ("quiet", "No figures follow answers"),
        of: |switches| &mut switches.figures,
    },
    Switch {
        on: ("wordwrap", "Lines end between words"),
        off: ("nowordwrap", "Lines end where the terminal ends"),
        of: |switches| &mut switches.wrap,
    },
    Switch {
        on: ("think", "Thoughts are shown"),
        off: ("nothink", "Thoughts are hidden; the model thinks them all the same"),
        of: |switches| &mut switches.thoughts,
    },
    Switch {
        on: ("history", "Messages are kept for later chats"),
        off: ("nohistory", "Messages are not kept for later chats"),
        of: |switches| &mut switches.history,
    },
];

pub const HELP: &str =
    "verbose or quiet, wordwrap or nowordwrap, think or nothink, history or nohistory, format or noformat";

pub fn switches() -> impl Iterator<Item = &'static str> {
    SWITCHES.iter().flat_map(|switch| [switch.on.0, switch.off.0])
}

/// What may follow `/set`.
pub fn words() -> Vec<String> {
    settings::names()
        .into_iter()
        .chain(switches())
        .chain(["system", "format", "noformat", "parameter"])
        .map(str::to_string)
        .collect()
}

/// `/set NAME VALUE`; ollama's `/set parameter NAME VALUE` and `/set system TEXT` too.
pub fn set(session: &mut Session, rest: &str, terminal: &mut Terminal) -> anyhow::Result<Flow> {
    let (name, value) = split_word(rest);
    if let Some((switch, is_on)) = find(name) {
        ensure!(value.is_empty(), "/set {name} takes no value");
        *(switch.of)(&mut session.switches) = is_on;
        terminal.info(if is_on { switch.on.1 } else { switch.off.1 });
        return Ok(Flow::Stay);
    }
    match name {
        "system" => return system(session, value, terminal),
        "format" => {
            ensure!(
                !value.is_empty(),
                "/set format needs json, a JSON schema or the file of one; /set noformat ends it"
            );
            session.set_format(Some(unquoted(value)), terminal)?;
            terminal.info("Answers follow this format");
            return Ok(Flow::Stay);
        }
        "noformat" => {
            ensure!(value.is_empty(), "/set noformat takes no value");
            session.set_format(None, terminal)?;
            terminal.info("Answers are free text");
            return Ok(Flow::Stay);
        }
        "parameter" => return set(session, value, terminal),
        "" => bail!("/set needs the name of a parameter and a value (/show parameters lists them), or a word: {HELP}"),
        _ => {}
    }
    let changed = session.set(name, value).map_err(|error| anyhow!(settings::in_chat_words(&format!("{error:#}"))));
    let (shown, idle) = changed?;
    idle.iter().for_each(|idle| terminal.warn(&settings::in_chat_words(idle)));
    terminal.info(&format!("Set parameter '{name}' to '{shown}'"));
    Ok(Flow::Stay)
}

pub fn system(session: &mut Session, text: &str, terminal: &mut Terminal) -> anyhow::Result<Flow> {
    ensure!(!text.is_empty(), "a system message needs a text (none takes it away); /show system shows the present one");
    if text == "none" {
        session.set_system(None)?;
        terminal.info("No system message from here on");
    } else {
        session.set_system(Some(unquoted(text)))?;
        terminal.info("Set system message");
    }
    Ok(Flow::Stay)
}

fn find(word: &str) -> Option<(&'static Switch, bool)> {
    let is_on = |switch: &Switch| switch.on.0 == word;
    let switch = SWITCHES.iter().find(|switch| is_on(switch) || switch.off.0 == word)?;
    Some((switch, is_on(switch)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_switch_turns_its_own_thing_on_and_off() {
        let mut switches = Switches { figures: false, wrap: false, thoughts: false, history: false };
        for (n, switch) in SWITCHES.iter().enumerate() {
            *(switch.of)(&mut switches) = true;
            let on = [switches.figures, switches.wrap, switches.thoughts, switches.history];
            assert_eq!(on.iter().filter(|&&on| on).count(), n + 1, "{} changes what another one did", switch.on.0);
        }
        for word in ["quiet", "nowordwrap", "nothink", "nohistory"] {
            let (switch, is_on) = find(word).unwrap();
            *(switch.of)(&mut switches) = is_on;
        }
        assert!(!(switches.figures || switches.wrap || switches.thoughts || switches.history));
        assert!(find("temperature").is_none());
    }

    #[test]
    fn no_word_means_two_things() {
        let mut all = words();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), words().len());
    }
}
