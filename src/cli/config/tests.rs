use clap::FromArgMatches;

use super::*;
use crate::cli::{Cli, Command as Asked, help, run::RunArgs};

fn file(text: &str) -> File {
    File::parse(PathBuf::from("c.toml"), text).unwrap()
}

fn completed(text: &str, flags: &str, preset: Option<&str>) -> anyhow::Result<(ArgMatches, Vec<Added>)> {
    let program = help::program();
    let args = std::iter::once("sayfa").chain(flags.split_whitespace()).map(OsString::from).collect();
    let typed = Typed::parse(args, true, &program).unwrap();
    let file = file(text);
    check_names(&file, &program)?;
    complete(&typed, &file, preset, &program)
}

fn run(text: &str, flags: &str, preset: Option<&str>) -> RunArgs {
    let (matches, _) = completed(text, &format!("run -p x {flags}"), preset).unwrap();
    let Asked::Run(run) = Cli::from_arg_matches(&matches).unwrap().command else { panic!("{flags} is no run") };
    run
}

#[test]
fn a_flag_wins_over_the_preset_the_preset_over_the_command_and_the_command_over_the_rest() {
    let text = "batch-size = 1\npredict = 1\nkeep = 1\nthreads = 1\n[run]\nbatch-size = 2\npredict = 2\nkeep = 2\n\
                [chat]\nthreads = 9\n[presets.p]\nbatch-size = 3\npredict = 3\n";
    let of = |run: RunArgs| (run.generation.predict, run.model.batch_size, run.cache.keep, run.model.threads);
    assert_eq!(of(run(text, "-n 4", Some("p"))), (4, 3, Some(2), 1));
    assert_eq!(of(run(text, "", None)), (2, 2, Some(2), 1));
    assert_eq!(of(run("", "", None)), (-1, 256, None, 0));
}

#[test]
fn lists_are_given_whole_and_replaced_whole() {
    let text = "stop = ['a', '-b', '\\n']\n[bench]\ndepth = [0, 64]\n";
    assert_eq!(run(text, "", None).generation.stop, ["a", "-b", "\\n"]);
    assert_eq!(run(text, "-r c", None).generation.stop, ["c"]);
    assert_eq!(run("stop = 'a'\n[run]\nstop = []", "", None).generation.stop, [""; 0]);
    let (matches, _) = completed(text, "bench", None).unwrap();
    let depths: Vec<_> = matches.subcommand().unwrap().1.get_many::<usize>("depth").unwrap().copied().collect();
    assert_eq!(depths, [0, 64]);
}

#[test]
fn switches_can_be_turned_off_above_the_file() {
    let text = "stats = true\nmlock = true\n[run]\nmlock = false\n[presets.loud]\nstats = false\n";
    let of = |flags, preset| {
        let run = run(text, flags, preset);
        (run.stats, run.model.mlock)
    };
    assert_eq!(of("", None), (true, false));
    assert_eq!(of("--stats=false --mlock", None), (false, true));
    assert_eq!(of("", Some("loud")), (false, false));
}

#[test]
fn what_a_flag_excludes_or_says_as_a_whole_is_left_out_of_the_file() {
    let text = "quiet = true\nsystem = 'x'\nkv-type-k = 'f32'\n[presets.loud]\nverbose = true\n";
    assert!(run(text, "", None).talk.quiet);
    let loud = run(text, "-v --raw --kv-type int8", None);
    assert!(loud.talk.verbose && !loud.talk.quiet && loud.raw && loud.system.system.is_none());
    assert_eq!(loud.model.kv_type_k, None);
    let (_, added) = completed("samplers = 'top_k'", "run -p x --sampler-seq kt", None).unwrap();
    assert!(added.is_empty(), "{added:?}");
    assert!(!run(text, "", Some("loud")).talk.quiet);
    // The model of the file gives way to a shape.
    let (matches, added) = completed("model = 'm.gguf'\nthreads = 2", "bench --shape llama-2-7b", None).unwrap();
    assert!(!matches.subcommand().unwrap().1.contains_id("model"));
    assert_eq!(added.iter().map(|added| added.key.as_str()).collect::<Vec<_>>(), ["threads"]);
}

#[test]
fn a_key_that_says_something_beside_another_flag_only_waits_for_it() {
    let weights = |flags: &str| {
        let (_, added) = completed("[plan]\nweights = 'q8_0'\nctx-size = 64\n", flags, None).unwrap();
        added.iter().map(|added| added.key.clone()).collect::<Vec<_>>()
    };
    assert_eq!(weights("plan"), ["ctx-size"]);
    assert_eq!(weights("plan --shape llama-2-7b"), ["weights", "ctx-size"]);
    assert!(run("session = 'f'\nsession-ro = true", "", None).session.session_ro);
}

#[test]
fn a_value_is_checked_by_the_parser_of_its_flag_and_the_sentence_names_the_line() {
    for (text, sentence) in [
        ("temp = -1", "c.toml, line 1: temp must be a number of 0 or more, not '-1'"),
        ("\ntemp = 'hot'", "c.toml, line 2: temp must be a number of 0 or more, not 'hot'"),
        ("[run]\nkv-type = 'f8'", "c.toml, line 2: kv-type must be one of f16, f32, int8, not 'f8'"),
        ("threads = 1.5", "c.toml, line 1: threads must be a whole number, not '1.5'"),
        ("threads = true", "c.toml, line 1: threads must be a value, not true"),
        ("mlock = 1", "c.toml, line 1: mlock must be true or false"),
        ("threads = [1]", "c.toml, line 1: threads must be one value, not a list"),
        ("system = 5", "c.toml, line 1: system must be a text in quotation marks, not 5"),
        ("stop = ''", "c.toml, line 1: stop needs a value that is not empty"),
        ("tempp = 1", "c.toml, line 1: there is no key 'tempp', did you mean temp?"),
        ("ctx_size = 1", "c.toml, line 1: there is no key 'ctx_size', did you mean ctx-size?"),
        ("reverse-prompt = 'a'", "c.toml, line 1: there is no key 'reverse-prompt', did you mean stop?"),
        ("[chat]\nprompt = 'a'", "c.toml, line 2: there is no key 'prompt' for chat"),
        ("config = 'a'", "c.toml, line 1: there is no key 'config'"),
        ("[presets.a]\nx = 1", "c.toml, line 2: there is no key 'x'"),
        ("[charts]\n", "c.toml, line 1: there is no table 'charts': tables are presets.NAME, chat, run"),
        ("[completions]\n", "c.toml, line 1: there is no table 'completions': tables are presets.NAME, chat, run"),
        ("quiet = true\nverbose = true", "c.toml, line 1: the argument '--quiet' cannot be used with '--verbose'"),
    ] {
        let error = completed(text, "run -p x", None).map(|_| ()).unwrap_err();
        assert!(error.is::<Usage>() && error.to_string().starts_with(sentence), "{text:?}: {error}");
    }
    let error = completed("", "run -p x", Some("p")).map(|_| ()).unwrap_err();
    assert_eq!(error.to_string(), "there is no preset 'p' in c.toml: it has no presets");
}

#[test]
fn any_flag_of_any_command_can_be_a_key_and_what_replaces_another_is_there() {
    let program = help::program();
    let is_there = |key: &str| program.get_subcommands().any(|command| flag(command, key).is_some());
    let pairs = REPLACES.iter().flat_map(|&(higher, lower)| [higher, lower]);
    let missing: Vec<&str> = pairs.chain(ENVIRONMENT.map(|(key, _)| key)).filter(|key| !is_there(key)).collect();
    assert!(missing.is_empty(), "{missing:?}");
    for command in help::program().get_subcommands().filter(|command| is_configured(command)) {
        for key in command.get_arguments().filter_map(Arg::get_long).filter(|key| !NO_KEYS.contains(key)) {
            let text = format!("[{}]\n{key} = true\n", command.get_name());
            let checked = check_names(&file(&text), &help::program());
            assert!(checked.is_ok(), "{text}: {}", checked.unwrap_err());
        }
    }
}

#[test]
fn errors_tell_which_of_their_flags_stand_in_the_file() {
    let (_, added) = completed("keep = 5\nctx-size = 9", "run -p x", None).unwrap();
    let explained = |error: anyhow::Error| explained(error, &added);
    let usage = explained(Usage("--keep says nothing".to_string()).into());
    assert!(usage.is::<Usage>());
    assert_eq!(usage.to_string(), "--keep says nothing (keep is set in c.toml, line 1)");
    let failure = explained(anyhow!("too long: raise -c"));
    assert_eq!(failure.to_string(), "too long: raise -c (ctx-size is set in c.toml, line 2)");
    assert!(!failure.is::<Usage>());
    assert_eq!(explained(anyhow!("no --keeper, no --c, no x-c")).to_string(), "no --keeper, no --c, no x-c");
}

#[test]
fn the_example_says_nothing_as_it_is_and_is_sound_when_it_is_uncommented() {
    let example = include_str!("example.toml");
    assert!(run(example, "", None).generation.stop.is_empty());
    let is_setting = |line: &str| line.starts_with('#') && !line.starts_with("# ");
    let lines = example.lines().map(|line| if is_setting(line) { &line[1..] } else { line });
    let text = lines.collect::<Vec<_>>().join("\n");
    let precise = run(&text, "", Some("precise"));
    assert_eq!((precise.sampling.temp, precise.model.ctx_size, precise.stats), (0.0, Some(8192), true));
    assert_eq!(run(&text, "", Some("creative")).sampling.top_p, 0.98);
}
