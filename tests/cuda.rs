//! The CUDA backend against the CPU, over the stand-in driver (`tests/cuda_driver`) or, with REQUIRE_CUDA=1, a real one.

#[allow(dead_code)] // each test file uses a part of it
#[path = "support/cuda_driver.rs"]
mod cuda_driver;
#[allow(dead_code)]
#[path = "support/cuda_models.rs"]
mod cuda_models;
#[path = "support/gguf_writer.rs"]
mod gguf_writer;
#[allow(dead_code)]
#[path = "support/models.rs"]
mod models;
#[path = "support/rewrite.rs"]
mod rewrite;

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use cuda_driver::Order;
use cuda_models::{
    ALL, END_TO_END, PAGES, Piece, answer, assert_near, batch, deep_model, distance, gpu, host, long_text, opened,
    spoil,
};
use models::{Setting, data, load};
use sayfa::backend::{Backend, Best, Stage, Tapped, Want};
use sayfa::engine::{Engine, Notice, OnFull, Options};
use sayfa::kv::layout::KvType;
use sayfa::model::Model;

/// Values of a stage given equal inputs, as a part of the largest of them: sums in another order.
const STAGE: f32 = 2e-5;

/// The fixtures of every type, sorted.
fn every_type() -> Vec<PathBuf> {
    let files = std::fs::read_dir(data("micro")).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<_> = files.filter(|path| path.extension().is_some_and(|ending| ending == "gguf")).collect();
    files.sort();
    assert_eq!(files.len(), 16);
    files
}

/// End to end a level of an activation may round the other way, which shows; where the CPU's lead is clear the greedy token
/// is the same.
#[test]
fn every_type_agrees_with_the_cpu() {
    for kv_type in [KvType::F16, KvType::Int8] {
        let setting = Setting { kv_type, ..Setting::default() };
        for file in every_type() {
            let model = load(&file);
            let text = &long_text(model.config.vocab)[..40];
            let want = answer(&mut *host(&model, setting), text, 33, 33, &PAGES);
            let got = answer(&mut *gpu(&model, setting, ALL, true), text, 33, 33, &PAGES);
            assert_near(&format!("{}, KV {}", file.display(), kv_type.name()), &got, &want);
        }
    }
}

#[test]
fn variants_of_the_architecture_agree_with_the_cpu() {
    for name in ["bias", "rope_freqs_tied", "rope_linear", "rope_yarn"] {
        let model = load(&data(&format!("variants/{name}.gguf")));
        let text = &long_text(model.config.vocab)[..24];
        let want = answer(&mut *host(&model, Setting::default()), text, 20, 20, &PAGES);
        assert_near(name, &answer(&mut *gpu(&model, Setting::default(), ALL, true), text, 20, 20, &PAGES), &want);
    }
}

// ---- stage by stage

/// What a stage of a pass gave.
enum Seen {
    Floats(Vec<f32>),
    Levels(Vec<i8>, Vec<f32>),
}

type Record = Arc<Mutex<VecDeque<(Stage, usize, Seen)>>>;

/// A prefill of 21 tokens and a decode step.
fn two_steps(backend: &mut dyn Backend, text: &[u32]) -> Vec<Vec<f32>> {
    answer(backend, &text[..22], 21, 21, &PAGES)
}

/// What the stages of the CPU give, in their order.
fn recorded(model: &Arc<Model>, setting: Setting, text: &[u32]) -> Record {
    let record = Record::default();
    let mut backend = host(model, setting);
    let seen = record.clone();
    backend.set_tap(Some(Box::new(move |stage, layer, values| {
        let values = match values {
            Tapped::Floats(values) => Seen::Floats(values.to_vec()),
            Tapped::Levels(levels, scales) => Seen::Levels(levels.to_vec(), scales.to_vec()),
        };
        seen.lock().unwrap().push_back((stage, layer, values));
    })));
    two_steps(&mut *backend, text);
    record
}

fn assert_floats(at: &str, got: &[f32], want: &[f32]) {
    assert_eq!(got.len(), want.len(), "{at}");
    let largest = want.iter().fold(0f32, |max, x| max.max(x.abs()));
    for (i, (got, want)) in got.iter().zip(want).enumerate() {
        let apart = (got - want).abs();
        assert!(apart <= STAGE * largest, "{at}: value {i} is {got}, not {want} ({} of {largest})", apart / largest);
    }
}

/// Each stage on the GPU is given what the stage before gave on the CPU.
#[test]
fn every_stage_agrees_with_the_cpu_on_its_inputs() {
    for (kv_type, file) in
        [KvType::F16, KvType::Int8].into_iter().flat_map(|t| every_type().into_iter().map(move |f| (t, f)))
    {
        let model = load(&file);
        let setting = Setting { kv_type, ..Setting::default() };
        let text = long_text(model.config.vocab);
        let record = recorded(&model, setting, &text);
        let name = format!("{}, KV {}", file.display(), kv_type.name());
        assert_eq!(record.lock().unwrap().len(), 2 * 7, "{name}: stages of a layer, in two steps");
        let mut backend = gpu(&model, setting, ALL, true);
        let (expected, label) = (record.clone(), name.clone());
        backend.set_tap(Some(Box::new(move |stage, layer, values| {
            let (want_stage, want_layer, want) = expected.lock().unwrap().pop_front().expect("a stage of the CPU");
            let at = format!("{label}: {} of layer {layer}", stage.name());
            assert_eq!((stage, layer), (want_stage, want_layer), "{at}");
            match (values, want) {
                (Tapped::Floats(got), Seen::Floats(want)) => {
                    assert_floats(&at, got, &want);
                    got.copy_from_slice(&want);
                }
                (Tapped::Levels(got, scales), Seen::Levels(want, want_scales)) => {
                    assert_floats(&at, scales, &want_scales);
                    let off = got.iter().zip(&want).map(|(got, want)| (i32::from(*got) - i32::from(*want)).abs()).max();
                    assert!(off <= Some(1), "{at}: a level is off by {off:?}");
                    got.copy_from_slice(&want);
                    scales.copy_from_slice(&want_scales);
                }
                _ => panic!("{at}: floats against levels"),
            }
        })));
        two_steps(&mut *backend, &text);
        assert!(record.lock().unwrap().is_empty(), "{name}: stages that the GPU did not show");
    }
}

// ---- what a bit may not depend on

#[test]
fn a_replayed_graph_changes_no_bit() {
    let model = deep_model(&["Q4_K", "F16", "Q5_1"]);
    for kv_type in [KvType::F16, KvType::Int8] {
        let setting = Setting { kv_type, ..Setting::default() };
        // from one page to the next, and from one span to two
        let text = &long_text(model.config.vocab)[..268];
        let eager = answer(&mut *gpu(&model, setting, ALL, false), text, 250, 100, &PAGES);
        let replayed = answer(&mut *gpu(&model, setting, ALL, true), text, 250, 100, &PAGES);
        assert_eq!(eager, replayed, "KV {}", kv_type.name());
    }
}

#[test]
fn block_numbers_and_batch_mates_change_no_bit() {
    for layers in [["Q4_0", "Q6_K"], ["Q4_1", "F32"], ["IQ4_XS", "Q2_K"]] {
        let model = deep_model(&layers);
        let text = long_text(model.config.vocab);
        let texts = [&text[..40], &text[100..133], &text[200..207], &text[300..331], &text[400..419]];
        let in_order = [0, 1, 2];
        let alone: Vec<_> =
            texts.map(|text| answer(&mut *gpu(&model, Setting::default(), ALL, true), text, 1, 1, &in_order)).into();
        let mut backend = gpu(&model, Setting::default(), ALL, true);
        let pages = [[9, 0, 5], [3, 11, 1], [7, 2, 20], [30, 29, 28], [60, 61, 63]];
        for step in 0..40 {
            let alive: Vec<usize> = (0..5).filter(|&i| step < texts[i].len()).collect();
            let pieces =
                alive.iter().map(|&i| Piece { tokens: &texts[i][step..=step], cached_tokens: step, pages: &pages[i] });
            let all = batch(&pieces.collect::<Vec<_>>(), (0..alive.len()).collect());
            let logits = backend.forward(&all).expect("a sound batch");
            for (&i, row) in alive.iter().zip(logits.chunks(model.config.vocab)) {
                assert!(row == alone[i][step], "{layers:?}: token {step} of text {i}");
            }
        }
    }
}

/// A prefill of one sequence and a decode step of another in one batch, and two prefills in one.
#[test]
fn a_prompt_beside_other_sequences_changes_no_bit() {
    let model = deep_model(&["Q4_K", "Q8_0"]);
    let text = long_text(model.config.vocab);
    let (prompt, other) = (&text[..50], &text[60..80]);
    let alone =
        |text: &[u32], prompt| answer(&mut *gpu(&model, Setting::default(), ALL, true), text, prompt, 64, &PAGES);
    let (want_prompt, want_other) = (alone(prompt, 50), alone(other, 19));

    let mut backend = gpu(&model, Setting::default(), ALL, true);
    let of_other = |tokens, cached_tokens| Piece { tokens, cached_tokens, pages: &[4, 8] };
    let of_prompt = || Piece { tokens: prompt, cached_tokens: 0, pages: &[15, 3, 9, 1] };
    backend.forward(&batch(&[of_other(&other[..19], 0)], vec![])).expect("a sound batch");
    let logits =
        backend.forward(&batch(&[of_prompt(), of_other(&other[19..], 19)], vec![50, 49])).expect("a sound batch");
    let (got_other, got_prompt) = logits.split_at(model.config.vocab);
    assert!(got_prompt == want_prompt[0] && got_other == want_other[1], "a prompt beside a decoding sequence");

    let both = batch(&[of_other(&other[..19], 0), of_prompt()], vec![18, 68]);
    let logits = backend.forward(&both).expect("a sound batch");
    let (got_other, got_prompt) = logits.split_at(model.config.vocab);
    assert!(got_prompt == want_prompt[0] && got_other == want_other[0], "two prompts");
}

/// Threads and blocks of the stand-in in other orders; a real device has its own.
#[test]
fn the_order_of_threads_changes_no_bit() {
    let model = deep_model(&["Q4_K", "Q5_0", "BF16"]);
    let text = &long_text(model.config.vocab)[..46];
    let Some(driver) = cuda_driver::install() else { return };
    for kv_type in [KvType::F16, KvType::Int8] {
        let setting = Setting { kv_type, ..Setting::default() };
        let run = || answer(&mut *gpu(&model, setting, ALL, true), text, 43, 43, &PAGES);
        let forward = run();
        for order in [Order::Reverse, Order::Random { seed: 1 }, Order::Random { seed: 2 }] {
            driver.order(order);
            let other = run();
            driver.order(Order::Forward);
            assert_eq!(other, forward, "{order:?}, KV {}", kv_type.name());
        }
    }
}

// ---- lengths, pages, parts

#[test]
fn lengths_around_every_edge_agree_with_the_cpu() {
    let model = load(&data("micro/Q4_0.gguf"));
    let text = long_text(model.config.vocab);
    for kv_type in [KvType::F16, KvType::Int8] {
        let setting = Setting { kv_type, ..Setting::default() };
        let (mut device, mut cpu) = (gpu(&model, setting, ALL, true), host(&model, setting));
        for prompt in [1, 2, 15, 16, 17, 21, 22, 31, 32, 33, 63, 64, 65, 127, 129, 255, 256, 257, 509] {
            let text = &text[..prompt + 2];
            // chunks that end inside pages, spans and tiles
            for chunk in [prompt, 100] {
                let want = answer(&mut *cpu, text, prompt, chunk, &PAGES);
                let got = answer(&mut *device, text, prompt, chunk, &PAGES);
                assert_near(&format!("{prompt} tokens in chunks of {chunk}, KV {}", kv_type.name()), &got, &want);
            }
        }
    }
}

#[test]
fn what_free_blocks_hold_does_not_matter() {
    let model = deep_model(&["Q4_0", "Q8_0"]);
    let text = &long_text(model.config.vocab)[..70];
    for kv_type in [KvType::F16, KvType::Int8] {
        let setting = Setting { kv_type, ..Setting::default() };
        let run = |poison| {
            let mut backend = gpu(&model, setting, ALL, true);
            (0..64).for_each(|block| spoil(&mut *backend, block, poison));
            answer(&mut *backend, text, 37, 20, &PAGES)
        };
        let clean = run(0);
        assert!(clean.iter().flatten().all(|x| x.is_finite()));
        for poison in [0xff, 0x7f] {
            assert_eq!(run(poison), clean, "{poison:#x}, KV {}", kv_type.name());
        }
    }
}

#[test]
fn blocks_are_copied_read_and_written_whole() {
    let model = deep_model(&["Q4_0", "Q5_K", "Q8_0"]);
    let text = &long_text(model.config.vocab)[..20];
    // on one device and on two
    for offloaded in [ALL, 2] {
        let mut backend = gpu(&model, Setting::default(), offloaded, true);
        answer(&mut *backend, text, 18, 18, &[5, 6]);
        let bytes = backend.info().block_bytes as usize;
        let block = |backend: &mut dyn Backend, id| {
            let mut contents = vec![0; bytes];
            backend.read_block(id, &mut contents).expect("a block");
            contents
        };
        let first = block(&mut *backend, 5);
        assert!(
            first.chunks(bytes / 12).all(|piece| piece.iter().any(|&byte| byte != 0)),
            "every layer has left its rows"
        );
        backend.copy_block(5, 11).expect("a block");
        assert!(block(&mut *backend, 11) == first);
        let second = block(&mut *backend, 6);
        backend.write_block(12, &second).expect("a block");
        let next = |backend: &mut dyn Backend, pages: &[u32]| {
            let piece = Piece { tokens: &text[19..], cached_tokens: 19, pages };
            backend.forward(&batch(&[piece], vec![0])).expect("a sound batch").to_vec()
        };
        assert!(next(&mut *backend, &[5, 6]) == next(&mut *backend, &[11, 12]), "{offloaded} on the GPU");
        // what the CPU has computed can go on here
        let mut cpu = host(&model, Setting::default());
        answer(&mut *cpu, text, 18, 18, &[0, 1]);
        for (from, to) in [(0, 21), (1, 22)] {
            backend.write_block(to, &block(&mut *cpu, from)).expect("a block");
        }
        assert_near("a sequence of the CPU", &[next(&mut *backend, &[21, 22])], &[next(&mut *cpu, &[0, 1])]);
    }
}

/// Old pages forgotten from a full context again and again, positions far ahead of what is held, and computed anew at the
/// trained length.
#[test]
fn full_contexts_that_forget_agree_with_the_cpu() {
    let model = load(&data("micro/Q4_0.gguf"));
    let text = long_text(model.config.vocab);
    for (kv_type, keep) in [(KvType::F16, 16), (KvType::Int8, 0)] {
        let setting = Setting { kv_type, ..Setting::default() };
        let on_full = OnFull::Evict { keep };
        let options = Options { context_tokens: 64, sequences: 1, cache_tokens: 64, on_full };
        let engine = |backend| Engine::new(backend, &options).expect("a small context");
        let (mut device, mut cpu) = (engine(opened(&model, setting)), engine(host(&model, setting)));
        let (on_device, on_cpu) = (device.new_sequence(), cpu.new_sequence());
        let mut notices = (0, 0);
        for (at, &token) in text[..560].iter().enumerate() {
            let got = device.decode(on_device, token).expect("old tokens make room").to_vec();
            let want = cpu.decode(on_cpu, token).expect("old tokens make room").to_vec();
            assert_near(&format!("token {at}, KV {}", kv_type.name()), &[got], &[want]);
            for notice in device.take_notices() {
                match notice {
                    Notice::Evicted { .. } => notices.0 += 1,
                    Notice::Recomputed { .. } => notices.1 += 1,
                }
            }
        }
        assert!(notices.0 > 20 && notices.1 > 0, "{notices:?}");
    }
}

/// A program opens the device beside its vocabulary, on a thread of its own.
#[test]
fn a_backend_works_on_another_thread_than_it_was_opened_on() {
    let model = deep_model(&["Q4_0", "Q8_0"]);
    let text = &long_text(model.config.vocab)[..8];
    let want = answer(&mut *gpu(&model, Setting::default(), ALL, true), text, 5, 5, &PAGES);
    let opened =
        || std::thread::scope(|scope| scope.spawn(|| gpu(&model, Setting::default(), ALL, true)).join().unwrap());
    let (mut first_writes, mut first_reads, mut first_runs) = (opened(), opened(), opened());
    std::thread::scope(|scope| {
        scope.spawn(|| spoil(&mut *first_writes, 3, 0));
        scope.spawn(|| first_reads.copy_block(1, 2).expect("a block"));
    });
    assert_eq!(answer(&mut *first_runs, text, 5, 5, &PAGES), want);
}

#[test]
fn any_part_of_the_layers_can_be_on_the_gpu() {
    let model = deep_model(&["Q4_K", "F16", "Q8_0", "Q6_K"]);
    let text = &long_text(model.config.vocab)[..24];
    let want = answer(&mut *host(&model, Setting::default()), text, 20, 9, &PAGES);
    for offloaded in 0..=5 {
        let mut backend = gpu(&model, Setting::default(), offloaded, true);
        let info = backend.info().clone();
        let whole = host(&model, Setting::default()).info().clone();
        assert_eq!((info.block_bytes, info.identity), (whole.block_bytes, whole.identity), "{offloaded} on the GPU");
        assert_eq!(info.weight_bytes_per_token, whole.weight_bytes_per_token);
        assert_eq!(info.device.contains(&format!("{offloaded} of 5")), offloaded > 0, "{}", info.device);
        assert_near(&format!("{offloaded} on the GPU"), &answer(&mut *backend, text, 20, 9, &PAGES), &want);
    }
}

// ---- ends

#[test]
fn the_likeliest_token_is_the_one_with_the_largest_logit() {
    let model = deep_model(&["Q4_0", "Q4_1"]);
    let text = long_text(model.config.vocab);
    let (mut with_logits, mut with_best) =
        (gpu(&model, Setting::default(), ALL, true), gpu(&model, Setting::default(), ALL, true));
    for at in 0..12 {
        let step = || batch(&[Piece { tokens: &text[at..=at], cached_tokens: at, pages: &PAGES }], vec![0]);
        let want = Best::of(with_logits.forward(&step()).expect("a sound batch"));
        let best =
            with_best.run(&step(), sayfa::backend::Input::Tokens, Want::Best).expect("a sound batch").best().to_vec();
        assert_eq!(best, [want], "token {at}");
        assert!(want.is_finite);
    }
}

/// Nine kernels a layer, the head's norm and product, and one for the likeliest token.
#[test]
fn a_decode_step_takes_nine_launches_a_layer() {
    for layers in [&["Q4_0"][..], &["Q4_K", "F16", "Q5_1"][..]] {
        let model = deep_model(layers);
        let text = long_text(model.config.vocab);
        let mut backend = gpu(&model, Setting::default(), ALL, true);
        answer(&mut *backend, &text[..5], 5, 5, &PAGES);
        backend.set_profiling(true);
        let step = |at: usize| batch(&[Piece { tokens: &text[at..=at], cached_tokens: at, pages: &PAGES }], vec![0]);
        backend.forward(&step(5)).expect("a sound batch");
        let profile = backend.take_profile().expect("it was asked for");
        assert_eq!((profile.launches, profile.passes), (9 * layers.len() + 2, 1));
        assert!(profile.seconds(Stage::Qkv) > 0.0 && profile.work(Stage::Down).bytes > 0.0);
        backend.run(&step(6), sayfa::backend::Input::Tokens, Want::Best).expect("a sound batch");
        assert_eq!(backend.take_profile().expect("it was asked for").launches, 9 * layers.len() + 3);
    }
}

#[test]
fn a_pool_that_does_not_fit_is_an_error_with_its_size() {
    let model = load(&data("micro/Q4_0.gguf"));
    let mut backend = gpu(&model, Setting::default(), ALL, true);
    let error = format!("{:#}", backend.reserve(1 << 30, 512).unwrap_err());
    assert!(error.contains("MiB on the GPU") && error.contains("-c") && error.contains("memory"), "{error}");
}

#[test]
fn distances_are_measured() {
    assert_eq!(distance(&[vec![0.0, 2.0, 1.0]], &[vec![0.0, 2.0, 0.0]]), 0.5);
    assert!(distance(&[vec![0.0, f32::NAN]], &[vec![0.0, 1.0]]).is_nan());
    const { assert!(END_TO_END < 0.05) };
}
