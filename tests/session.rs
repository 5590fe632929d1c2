//! Saved sessions: what goes on from a file is bit for bit what would have gone on without it, and a file that is cut,
//! altered or foreign is noticed, whatever was done to it.

#[allow(dead_code)] // each test file uses a part of it
#[path = "support/models.rs"]
mod models;

use std::collections::HashSet;
use std::fs;
use std::io::{Read, Write};
use std::ops::ControlFlow;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::time::Duration;

use models::{Setting, data, default_model, engine, load};
use sayfa::engine::{About, Engine, OnFull, Restored, SequenceId};
use sayfa::gguf::Gguf;
use sayfa::kv::layout::{BLOCK_TOKENS, KvType};
use sayfa::kv::session::{self, Blocks, Head, Saved};
use sayfa::model::{Model, RopeOverrides};
use serde_json::Value;
use tempfile::TempDir;

const KV_TYPES: [KvType; 3] = [KvType::F16, KvType::F32, KvType::Int8];

fn text(len: usize, vocab: usize) -> Vec<u32> {
    (0..len as u32).map(|i| (i * i * 31 + i * 7 + 3) % vocab as u32).collect()
}

fn go_on(_: usize, _: usize) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

fn bits(logits: &[f32]) -> Vec<u32> {
    logits.iter().map(|x| x.to_bits()).collect()
}

fn about() -> About {
    About { vocabulary: 7, model: "micro.gguf".into(), kv_types: "f16".into(), notes: b"notes".to_vec() }
}

fn with_kv(kv_type: KvType) -> Setting {
    Setting { kv_type, ..Setting::default() }
}

/// An engine whose sequence holds `tokens`.
fn talked(model: &Arc<Model>, setting: Setting, tokens: &[u32]) -> (Engine, SequenceId) {
    let mut engine = engine(model, setting);
    let id = engine.new_sequence();
    engine.prefill(id, tokens, &mut go_on).expect("the text fits");
    (engine, id)
}

fn restore(engine: &mut Engine, path: &Path) -> anyhow::Result<(SequenceId, Restored)> {
    let mut saved = Saved::open(path)?.expect("the file is there");
    let id = engine.new_sequence();
    let restored = engine.restore(id, &mut saved)?;
    Ok((id, restored))
}

/// Logits after each of some more tokens.
fn goes_on(engine: &mut Engine, id: SequenceId, tokens: &[u32]) -> Vec<Vec<u32>> {
    tokens.iter().map(|&token| bits(engine.decode(id, token).expect("there is room"))).collect()
}

fn check_round_trip(model: &Arc<Model>, kv_type: KvType, len: usize, name: &str) {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("session");
    let tokens = text(len + 4, model.config.vocab.min(4096));
    let (mut first, id) = talked(model, with_kv(kv_type), &tokens[..len]);
    let saving = first.save(id, &path, &about()).unwrap();
    assert_eq!((saving.tokens, saving.blocks), (len, len.div_ceil(BLOCK_TOKENS)), "{name}");

    let mut second = engine(model, with_kv(kv_type));
    // so that the blocks have other numbers than before
    let other = second.new_sequence();
    second.prefill(other, &text(20, 100), &mut go_on).unwrap();
    let (resumed, restored) = restore(&mut second, &path).unwrap();
    assert_eq!((restored.held_tokens, restored.doubt), (len, None), "{name}");
    let want = goes_on(&mut first, id, &tokens[len..]);
    assert!(goes_on(&mut second, resumed, &tokens[len..]) == want, "{name}: the logits differ");
    let saved = Saved::open(&path).unwrap().unwrap();
    assert_eq!((saved.head.tokens, saved.head.notes), (tokens[..len].to_vec(), b"notes".to_vec()));
}

#[test]
fn a_restored_sequence_goes_on_bit_for_bit() {
    for name in ["micro/F32.gguf", "micro/Q4_1.gguf", "micro/Q6_K.gguf", "variants/experts.gguf", "variants/bias.gguf"]
    {
        let model = load(&data(name));
        for kv_type in KV_TYPES {
            for len in [1, 16, 17, 300] {
                check_round_trip(&model, kv_type, len, &format!("{name} {kv_type:?}, {len} tokens"));
            }
        }
    }
}

#[test]
fn a_restored_sequence_of_the_default_model_goes_on_bit_for_bit() {
    let model = load(&default_model());
    for kv_type in KV_TYPES {
        check_round_trip(&model, kv_type, 41, &format!("{kv_type:?}"));
    }
}

#[test]
fn a_prompt_computes_only_what_the_session_does_not_hold_and_others_share_it() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("session");
    let model = load(&data("micro/Q4_0.gguf"));
    let tokens = text(60, model.config.vocab);
    let (first, id) = talked(&model, Setting::default(), &tokens[..40]);
    first.save(id, &path, &about()).unwrap();
    let mut second = engine(&model, Setting::default());
    let (resumed, _) = restore(&mut second, &path).unwrap();
    let prefilled = second.prefill(resumed, &tokens, &mut go_on).unwrap();
    assert_eq!((prefilled.cached_tokens, prefilled.computed_tokens), (40, 20));
    let other = second.new_sequence();
    let parted = [&tokens[..35], &[1, 2, 3]].concat();
    assert_eq!(second.prefill(other, &parted, &mut go_on).unwrap().cached_tokens, 32, "whole blocks are published");
    assert_eq!(second.prefill(resumed, &tokens[..10], &mut go_on).unwrap().cached_tokens, 9);
}

/// A small session of 40 tokens, and what is right to happen with changed copies of its file.
struct Victim {
    folder: TempDir,
    model: Arc<Model>,
    tokens: Vec<u32>,
    file: Vec<u8>,
    head_bytes: usize,
    block_bytes: usize,
    want: Vec<Vec<u32>>,
    engine: Engine,
    /// Restored lengths whose logits were compared already.
    compared: HashSet<usize>,
}

impl Victim {
    fn new() -> Victim {
        let folder = TempDir::new().unwrap();
        let path = folder.path().join("session");
        let model = load(&data("micro/Q4_0.gguf"));
        let tokens = text(42, model.config.vocab);
        let (mut first, id) = talked(&model, Setting::default(), &tokens[..40]);
        first.save(id, &path, &about()).unwrap();
        let want = goes_on(&mut first, id, &tokens[40..]);
        let (file, block_bytes) = (fs::read(&path).unwrap(), first.info().block_bytes as usize);
        let head_bytes = file.len() - 3 * block_bytes;
        let (engine, compared) = (engine(&model, Setting::default()), HashSet::new());
        Victim { folder, model, tokens, file, head_bytes, block_bytes, want, engine, compared }
    }

    /// Tokens in the blocks before the one that holds this byte.
    fn tokens_before(&self, at: usize) -> usize {
        (at - self.head_bytes) / self.block_bytes * BLOCK_TOKENS
    }

    /// `None`: refused with a sentence. Else the tokens that were restored: what follows them must be as it would have
    /// been, once the rest is computed.
    fn outcome(&mut self, file: &[u8]) -> Option<(usize, Option<String>)> {
        let path = self.folder.path().join("changed");
        fs::write(&path, file).unwrap();
        let (id, Restored { held_tokens, doubt }) = match restore(&mut self.engine, &path) {
            Err(error) => {
                let sentence = format!("{error:#}");
                assert!(sentence.contains("changed") && !sentence.contains('\n'), "{sentence}");
                return None;
            }
            Ok(restored) => restored,
        };
        assert_eq!(self.engine.tokens(id), &self.tokens[..held_tokens]);
        self.engine.free_sequence(id);
        if self.compared.insert(held_tokens) {
            let mut engine = engine(&self.model, Setting::default());
            let (id, _) = restore(&mut engine, &path).unwrap();
            engine.prefill(id, &self.tokens[..40], &mut go_on).unwrap();
            assert!(goes_on(&mut engine, id, &self.tokens[40..]) == self.want, "after {held_tokens} tokens");
        }
        Some((held_tokens, doubt))
    }
}

#[test]
fn a_file_cut_at_any_byte_is_refused_or_its_rest_computed_again() {
    let mut victim = Victim::new();
    let file = victim.file.clone();
    for len in 1..file.len() {
        match victim.outcome(&file[..len]) {
            None => assert!(len < victim.head_bytes, "cut to {len} bytes"),
            Some((held, doubt)) => {
                let held_blocks = victim.tokens_before(len);
                assert_eq!(held, held_blocks, "cut to {len} bytes");
                let doubt = doubt.expect("something is missing");
                assert_eq!(doubt, format!("block {} of 3 is cut off", held_blocks / BLOCK_TOKENS + 1));
            }
        }
    }
    assert_eq!(victim.compared, HashSet::from([0, 16, 32]));
    assert_eq!(victim.outcome(&[&file[..], &[0]].concat()), None, "a byte too many");
    assert_eq!(victim.outcome(&file), Some((40, None)));
    fs::write(victim.folder.path().join("empty"), "").unwrap();
    assert!(Saved::open(&victim.folder.path().join("empty")).unwrap().is_none());
}

#[test]
fn no_altered_byte_goes_unnoticed() {
    let mut victim = Victim::new();
    let mut random = 88172645463325252u64;
    let flips = 4000;
    for n in 0..flips {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        // every byte of the head once, then anywhere
        let at = if n < victim.head_bytes { n } else { random as usize % victim.file.len() };
        let mut file = victim.file.clone();
        file[at] ^= (random >> 40) as u8 | 1;
        match victim.outcome(&file) {
            None => assert!(at < victim.head_bytes, "byte {at}"),
            Some((held, doubt)) => {
                assert_eq!(held, victim.tokens_before(at), "byte {at}");
                assert!(doubt.expect("a block is damaged").contains("is damaged"), "byte {at}");
            }
        }
    }
    assert!(victim.head_bytes < flips / 2, "some flips are in the blocks");
    assert_eq!(victim.compared, HashSet::from([0, 16, 32]));
}

/// Whoever can compute a checksum can also write nonsense under it.
#[test]
fn a_head_of_nonsense_numbers_is_refused_without_great_allocations() {
    let mut victim = Victim::new();
    for number in 0..9 {
        for value in [0, 1, 41, 1 << 20, 1 << 40, u64::MAX / 4, u64::MAX] {
            let mut file = victim.file.clone();
            let at = 16 + 8 * number;
            let old = u64::from_le_bytes(file[at..at + 8].try_into().unwrap());
            file[at..at + 8].copy_from_slice(&value.to_le_bytes());
            let crc = crc32fast::hash(&file[16..victim.head_bytes]);
            file[12..16].copy_from_slice(&crc.to_le_bytes());
            // identity and vocabulary are any numbers; identity decides whether blocks are used
            match (number, victim.outcome(&file)) {
                (1, outcome) => assert_eq!(outcome.map(|outcome| outcome.0), Some(0)),
                (2, outcome) => assert_eq!(outcome, Some((40, None))),
                (_, outcome) if value == old => assert_eq!(outcome, Some((40, None))),
                // a larger block than the backend's
                (3, Some((held, _))) => assert_eq!(held, 0),
                (_, outcome) => assert_eq!(outcome, None, "number {number} as {value}"),
            }
        }
    }
    let mut file = victim.file.clone();
    let token = file.windows(4).rposition(|bytes| bytes == victim.tokens[39].to_le_bytes()).unwrap();
    assert!(token < victim.head_bytes);
    file[token..token + 4].copy_from_slice(&9999u32.to_le_bytes());
    let crc = crc32fast::hash(&file[16..victim.head_bytes]);
    file[12..16].copy_from_slice(&crc.to_le_bytes());
    assert_eq!(victim.outcome(&file), None, "a token beyond the vocabulary");
}

#[test]
fn blocks_of_another_model_or_setting_are_not_used() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("session");
    let model = load(&data("micro/Q4_0.gguf"));
    let tokens = text(40, model.config.vocab);
    let (first, id) = talked(&model, Setting::default(), &tokens);
    first.save(id, &path, &about()).unwrap();
    let turned = RopeOverrides { freq_base: Some(9999.0), ..RopeOverrides::default() };
    let turned = Model::from_gguf(&Gguf::open(&data("micro/Q4_0.gguf")).unwrap(), &turned).unwrap();
    let other_norm = changed_model(&folder, "blk.0.attn_norm.weight");
    let others = [
        (model.clone(), with_kv(KvType::F32), "KV in F32"),
        (model.clone(), with_kv(KvType::Int8), "KV in INT8"),
        (load(&data("micro/Q4_1.gguf")), Setting::default(), "other weights"),
        (Arc::new(turned), Setting::default(), "other RoPE"),
        (load(&other_norm), Setting::default(), "another norm"),
    ];
    for (model, setting, name) in others {
        let mut engine = engine(&model, setting);
        let (id, restored) = restore(&mut engine, &path).unwrap();
        assert_eq!(engine.tokens(id), [0; 0], "{name}");
        let doubt = restored.doubt.expect(name);
        assert!(doubt.contains("micro.gguf") && doubt.contains("f16"), "{name}: {doubt}");
    }
}

/// The micro model with one byte of a tensor changed.
fn changed_model(folder: &TempDir, tensor: &str) -> PathBuf {
    let path = data("micro/Q4_0.gguf");
    let mut bytes = fs::read(&path).unwrap();
    let found = Gguf::open(&path).unwrap().tensor(tensor).expect("a tensor of the model").data();
    let at = bytes.windows(found.len()).position(|window| window == &found[..]).unwrap();
    bytes[at + 1] ^= 4;
    let changed = folder.path().join("changed.gguf");
    fs::write(&changed, bytes).unwrap();
    changed
}

#[test]
fn after_an_eviction_only_the_tokens_are_saved() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("session");
    let model = load(&data("micro/Q4_0.gguf"));
    let setting = Setting { context_tokens: 32, on_full: OnFull::Evict { keep: 0 }, ..Setting::default() };
    let tokens = text(33, model.config.vocab);
    let (mut first, id) = talked(&model, setting, &tokens[..32]);
    first.decode(id, tokens[32]).unwrap();
    let saving = first.save(id, &path, &about()).unwrap();
    assert_eq!((saving.tokens, saving.blocks), (33, 0));
    let mut second = engine(&model, Setting::default());
    let (id, restored) = restore(&mut second, &path).unwrap();
    assert_eq!(restored.held_tokens, 0);
    assert!(restored.doubt.unwrap().contains("forgotten"));
    assert_eq!(second.prefill(id, &tokens, &mut go_on).unwrap().computed_tokens, 33);
}

#[test]
fn a_session_that_finds_no_room_is_computed_again_as_far_as_asked_for() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("session");
    let model = load(&data("micro/Q4_0.gguf"));
    let tokens = text(40, model.config.vocab);
    let (first, id) = talked(&model, Setting::default(), &tokens);
    first.save(id, &path, &about()).unwrap();
    let mut second = engine(&model, Setting { context_tokens: 24, ..Setting::default() });
    let (resumed, restored) = restore(&mut second, &path).unwrap();
    assert_eq!((restored.held_tokens, restored.doubt), (24, None), "as many as the context takes");
    assert_eq!(second.prefill(resumed, &tokens[..24], &mut go_on).unwrap().cached_tokens, 23);
    while second.usage().free + second.usage().cached > 0 {
        let id = second.new_sequence();
        let start = second.usage().total as u32;
        second.prefill(id, &[start, second.usage().live as u32], &mut go_on).unwrap();
    }
    let (_, restored) = restore(&mut second, &path).unwrap();
    assert_eq!((restored.held_tokens, restored.doubt.unwrap()), (0, "all 8 KV blocks are in use".to_string()));
}

fn saved_head(tokens: usize) -> Head {
    Head { tokens: text(tokens, 100), model: "m".into(), ..Head::default() }
}

/// Saves a session of two blocks filled with `fill`.
fn save_filled(path: &Path, fill: u8) -> anyhow::Result<()> {
    let read = &mut |_: usize, block: &mut [u8]| {
        block.fill(fill);
        Ok(())
    };
    session::save(path, &saved_head(20), Blocks { count: 2, bytes: 5000, read })
}

fn assert_filled(path: &Path, fill: u8) {
    let mut saved = Saved::open(path).unwrap().expect("a session");
    assert_eq!(saved.head, saved_head(20));
    for _ in 0..saved.n_blocks() {
        assert!(saved.next_block().unwrap().iter().all(|&byte| byte == fill));
    }
}

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn a_session_is_its_owners_alone_and_nothing_else_stays_behind() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("session");
    save_filled(&path, 1).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    save_filled(&path, 2).unwrap();
    assert_filled(&path, 2);
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let link = folder.path().join("link");
    std::os::unix::fs::symlink(&path, &link).unwrap();
    save_filled(&link, 3).unwrap();
    assert_filled(&path, 3);
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink(), "a link stays a link");
    assert_eq!(names(folder.path()), ["link", "session"]);
}

#[test]
fn a_save_that_fails_leaves_the_old_session_and_what_is_no_session_alone() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("session");
    save_filled(&path, 1).unwrap();
    let read = &mut |page: usize, _: &mut [u8]| match page {
        0 => Ok(()),
        _ => Err(anyhow::anyhow!("the device is gone")),
    };
    let broken = session::save(&path, &saved_head(20), Blocks { count: 2, bytes: 5000, read });
    let error = format!("{:#}", broken.unwrap_err());
    assert!(error.contains("session could not be written") && error.contains("the device is gone"), "{error}");
    assert_filled(&path, 1);

    let letter = folder.path().join("letter.txt");
    fs::write(&letter, "Dear friend").unwrap();
    let error = format!("{:#}", save_filled(&letter, 1).unwrap_err());
    assert!(error.contains("letter.txt") && error.contains("no saved session"), "{error}");
    assert_eq!(fs::read(&letter).unwrap(), b"Dear friend");
    let full = Path::new("/dev/full");
    assert!(format!("{:#}", save_filled(full, 1).unwrap_err()).contains("no regular file"));
    assert!(fs::metadata(full).unwrap().file_type().is_char_device());
    assert!(save_filled(folder.path(), 1).is_err() && save_filled(&letter.join("below"), 1).is_err());
    assert_eq!(names(folder.path()), ["letter.txt", "session"]);
}

/// The test runs itself as a process that stops in the middle of saving, and kills it there.
#[test]
fn a_process_killed_while_it_saves_leaves_the_old_session() {
    const WHERE: &str = "SAYFA_TEST_SAVE_AND_HANG";
    if let Some(path) = std::env::var_os(WHERE) {
        let read = &mut |page: usize, _: &mut [u8]| {
            if page == 1 {
                std::thread::sleep(Duration::from_secs(600));
            }
            Ok(())
        };
        session::save(Path::new(&path), &saved_head(20), Blocks { count: 2, bytes: 5000, read }).unwrap();
        panic!("it should have been killed");
    }
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("session");
    save_filled(&path, 1).unwrap();
    let mut saving = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "a_process_killed_while_it_saves_leaves_the_old_session"])
        .env(WHERE, &path)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let is_within_the_first_block = || {
        let sizes = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().metadata().unwrap().len());
        sizes.filter(|&size| size > 5000).count() == 2
    };
    for _ in 0..1000 {
        if is_within_the_first_block() {
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(is_within_the_first_block(), "the process never came to its second block");
    saving.kill().unwrap();
    saving.wait().unwrap();
    assert_filled(&path, 1);
    save_filled(&path, 2).unwrap();
    assert_filled(&path, 2);
}

// ---- through the program ----

fn micro(name: &str) -> String {
    data(&format!("micro/{name}.gguf")).display().to_string()
}

fn sayfa(folder: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sayfa"));
    command.args(args).current_dir(folder).env("HOME", folder).env_remove("SAYFA_MODEL").env_remove("SAYFA_MODELS");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn fed(mut command: Command, input: &str) -> Output {
    let mut child = command.spawn().unwrap();
    // a program that refuses its flags does not read
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    child.wait_with_output().unwrap()
}

fn out(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn err(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// `run` with a small model and a greedy answer, as JSON.
fn run(folder: &Path, model: &str, more: &[&str]) -> Output {
    let args = ["run", "-m", model, "--raw", "--json", "--temp", "0", "-n", "8", "-c", "256", "--ignore-eos"];
    fed(sayfa(folder, &[&args[..], more].concat()), "")
}

struct Answered {
    text: String,
    prompt_tokens: u64,
    cached_tokens: u64,
}

fn answered(output: &Output) -> Answered {
    assert!(output.status.success(), "{}", err(output));
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    let number = |key: &str| json[key].as_u64().unwrap();
    let text = json["text"].as_str().unwrap().to_string();
    Answered { text, prompt_tokens: number("prompt_tokens"), cached_tokens: number("cached_tokens") }
}

fn chat(folder: &Path, model: &str, more: &[&str], input: &str) -> Output {
    let args = ["chat", "-m", model, "--temp", "0", "-n", "12", "-c", "1024"];
    fed(sayfa(folder, &[&args[..], more].concat()), input)
}

const LONG: &str = "This is a text that fills more than three blocks of the cache, byte by byte";

#[test]
fn a_second_run_computes_only_what_is_new() {
    let folder = TempDir::new().unwrap();
    let (folder, model) = (folder.path(), micro("Q4_0"));
    let session = ["--session", "s", "-p"];
    let longer = format!("{LONG}, and goes on");
    let alone = |prompt: &str| answered(&run(folder, &model, &["-p", prompt])).text;
    let first = answered(&run(folder, &model, &[&session[..], &[LONG]].concat()));
    assert_eq!((first.text, first.cached_tokens), (alone(LONG), 0));
    let again = answered(&run(folder, &model, &[&session[..], &[LONG]].concat()));
    assert_eq!((again.text, again.cached_tokens), (alone(LONG), first.prompt_tokens - 1), "all but the last token");

    let before = fs::read(folder.join("s")).unwrap();
    let read_only = answered(&run(folder, &model, &[&session[..], &[&longer, "--session-ro"]].concat()));
    assert_eq!(read_only.text, alone(&longer));
    // where the texts part, the tokenizer may join otherwise
    assert!((first.prompt_tokens - 2..=first.prompt_tokens).contains(&read_only.cached_tokens));
    assert!(fs::read(folder.join("s")).unwrap() == before, "--session-ro leaves the file alone");
    answered(&run(folder, &model, &[&session[..], &[&longer]].concat()));
    assert!(fs::read(folder.join("s")).unwrap() != before);
    assert_eq!(names(folder), ["s"]);
}

#[test]
fn sessions_that_do_not_fit_are_said_and_the_text_is_right() {
    let folder = TempDir::new().unwrap();
    let (folder, model) = (folder.path(), micro("Q4_0"));
    let with = |model: &str, more: &[&str]| {
        run(folder, model, &[&["--session", "s", "--session-ro", "-p", LONG], more].concat())
    };
    answered(&run(folder, &model, &["--session", "s", "-p", LONG]));
    let file = fs::read(folder.join("s")).unwrap();

    let int8 = with(&model, &["--kv-type", "int8"]);
    let alone = |model: &str, more: &[&str]| answered(&run(folder, model, &[&["-p", LONG], more].concat())).text;
    let got = answered(&int8);
    assert_eq!((got.text, got.cached_tokens), (alone(&model, &["--kv-type", "int8"]), 0));
    assert!(err(&int8).contains("saved by Q4_0.gguf with KV in f16"), "{}", err(&int8));
    let other = answered(&with(&micro("Q8_0"), &[]));
    assert_eq!((other.text, other.cached_tokens), (alone(&micro("Q8_0"), &[]), 0));
    let foreign = with(&default_model().display().to_string(), &[]);
    assert_eq!((foreign.status.code(), out(&foreign)), (Some(1), String::new()));
    assert!(err(&foreign).contains("vocabulary") && err(&foreign).lines().count() == 1, "{}", err(&foreign));

    let mut damaged = file.clone();
    *damaged.last_mut().unwrap() ^= 1;
    fs::write(folder.join("s"), &damaged).unwrap();
    let output = with(&model, &[]);
    assert_eq!(answered(&output).text, alone(&model, &[]));
    assert!(err(&output).contains("warning") && err(&output).contains("block 5 of 5 is damaged"), "{}", err(&output));
    for (at, words) in [(8, "version"), (0, "no saved session"), (90, "head is damaged")] {
        let mut damaged = file.clone();
        damaged[at] ^= 8;
        fs::write(folder.join("s"), &damaged).unwrap();
        let output = run(folder, &model, &["--session", "s", "-p", LONG]);
        assert_eq!((output.status.code(), err(&output).lines().count()), (Some(1), 1), "{}", err(&output));
        assert!(err(&output).contains(words), "{}", err(&output));
        assert!(fs::read(folder.join("s")).unwrap() == damaged, "what was refused is not overwritten");
    }
}

#[test]
fn places_that_take_no_session() {
    let folder = TempDir::new().unwrap();
    let (folder, model) = (folder.path(), micro("Q4_0"));
    let missing = run(folder, &model, &["--session", "no/s", "-p", "x"]);
    assert_eq!((missing.status.code(), out(&missing)), (Some(1), String::new()), "said before the work");
    assert!(err(&missing).contains("no folder no"), "{}", err(&missing));
    let alone = run(folder, &model, &["--session-ro", "-p", "x"]);
    assert_eq!(alone.status.code(), Some(2));
    let read_only = run(folder, &model, &["--session", "s", "--session-ro", "-p", "x"]);
    assert!(answered(&read_only).cached_tokens == 0 && err(&read_only).contains("no such file"), "{}", err(&read_only));
    assert_eq!(names(folder), [""; 0]);

    // a few KiB to a file at most: the disk is full in the middle of saving
    answered(&run(folder, &model, &["--session", "s", "-p", LONG]));
    let before = fs::read(folder.join("s")).unwrap();
    let script = format!(
        "trap '' XFSZ; ulimit -f 8; exec '{}' run -m '{model}' --raw --temp 0 -n 4 -p abc --session s",
        env!("CARGO_BIN_EXE_sayfa")
    );
    let full = Command::new("sh").args(["-c", &script]).current_dir(folder).stdin(Stdio::null()).output().unwrap();
    assert_eq!(full.status.code(), Some(1), "{}", err(&full));
    assert!(err(&full).lines().last().unwrap().contains("could not be written"), "{}", err(&full));
    assert!(fs::read(folder.join("s")).unwrap() == before && names(folder) == ["s"]);
}

#[test]
fn a_chat_goes_on_in_a_second_process_as_if_it_were_one() {
    let folder = TempDir::new().unwrap();
    let (folder, model) = (folder.path(), default_model().display().to_string());
    let questions = ["Name a river.", "And another one?", "Which is longer?"];
    let whole = chat(folder, &model, &["--system", "Be brief."], &questions.join("\n"));
    let first = chat(folder, &model, &["--system", "Be brief.", "--session", "s"], questions[0]);
    let second = chat(folder, &model, &["--session", "s", "-v"], &format!("{}\n/stats", questions[1]));
    let third = chat(folder, &model, &["--session", "s"], questions[2]);
    assert_eq!(out(&first) + &out(&second) + &out(&third), out(&whole));
    assert_eq!(out(&whole).matches('\n').count(), 3, "{}", out(&whole));
    let cached = err(&second).lines().find_map(|line| {
        let (prompt, _) = line.split_once(" of them from the cache")?;
        prompt.rsplit(' ').next()?.parse::<usize>().ok()
    });
    assert!(cached > Some(25), "the first turn was not computed again: {}", err(&second));

    let refused = fed(sayfa(folder, &["run", "-m", &model, "-p", "x", "-n", "1", "--session", "s"]), "");
    assert_eq!(refused.status.code(), Some(1));
    assert!(err(&refused).contains("holds a conversation"), "{}", err(&refused));
}

#[test]
fn a_chat_resumes_from_tokens_alone_when_the_blocks_are_of_no_use() {
    let folder = TempDir::new().unwrap();
    let (folder, model) = (folder.path(), default_model().display().to_string());
    let int8 = |more: &[&str], input: &str| chat(folder, &model, &[more, &["--kv-type", "int8"]].concat(), input);
    let whole = int8(&[], "Name a river.\nAnd another?");
    let first = int8(&["--session", "s"], "Name a river.");
    let file = fs::read(folder.join("s")).unwrap();
    let second = int8(&["--session", "s"], "And another?");
    fs::write(folder.join("s"), &file[..file.len() - 9]).unwrap();
    let cut = int8(&["--session", "s"], "And another?");
    assert_eq!(out(&first) + &out(&second), out(&whole));
    assert_eq!(out(&cut), out(&second));
    assert!(err(&cut).contains("is cut off"), "{}", err(&cut));
    let other = chat(folder, &model, &["--session", "s"], "");
    assert!(other.status.success() && err(&other).contains("KV in int8"), "{}", err(&other));
    let held = Saved::open(&folder.join("s")).unwrap().unwrap().head.kv_types;
    assert_eq!(held, "int8", "nothing was said, so nothing is written");
}

#[test]
fn chats_are_saved_and_loaded_by_command_and_a_failed_load_changes_nothing() {
    let folder = TempDir::new().unwrap();
    let (folder, model) = (folder.path(), micro("Q4_0"));
    let say = |input: &str| chat(folder, &model, &["-v"], input);
    let one = say("one\n/save a\ntwo\n/save b\n/load a\n/show messages\ntwo\n");
    assert!(one.status.success(), "{}", err(&one));
    assert_eq!(err(&one).matches(r#"{"role":"#).count(), 2);
    let resumed = say("/load a\ntwo\n");
    assert!(out(&one).ends_with(&out(&resumed)) && !out(&resumed).is_empty(), "the same answer after /load");

    fs::write(folder.join("bad"), "not a session").unwrap();
    answered(&run(folder, &model, &["--session", "prompt", "-p", "x"]));
    let failing = say("one\n/load bad\n/load gone\n/load prompt\n/load\n/save\n/save no/such\n/show messages\n");
    assert_eq!(failing.status.code(), Some(1));
    let said = err(&failing);
    assert_eq!(said.matches(r#"{"role":"#).count(), 2, "the conversation is still there: {said}");
    for words in ["no saved session", "gone: there is no session", "saved by `run`", "/load needs", "/save needs"] {
        assert!(said.contains(words), "{words}: {said}");
    }
    let foreign = chat(folder, &default_model().display().to_string(), &[], "/load a\n");
    assert!(err(&foreign).contains("vocabulary"), "{}", err(&foreign));
    let wrong = chat(folder, &model, &["--session", "prompt"], "");
    assert!(wrong.status.code() == Some(1) && err(&wrong).contains("saved by `run`"), "{}", err(&wrong));
}

#[test]
fn an_interrupted_answer_is_saved_as_far_as_it_came() {
    let folder = TempDir::new().unwrap();
    let (folder, model) = (folder.path(), default_model().display().to_string());
    let args = ["chat", "-m", &model, "--temp", "0", "-c", "1024", "--ignore-eos", "--session", "s"];
    let mut child = sayfa(folder, &args).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(b"Tell me a long story.\n").unwrap();
    let mut stdout = child.stdout.take().unwrap();
    // lines come as they are complete
    assert!(stdout.read(&mut [0; 1]).unwrap() == 1);
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    std::io::copy(&mut stdout, &mut std::io::sink()).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    drop(stdin);
    let resumed = chat(folder, &model, &["--session", "s"], "/show messages\n");
    assert_eq!(err(&resumed).matches(r#"{"role":"#).count(), 2, "{}", err(&resumed));
}
