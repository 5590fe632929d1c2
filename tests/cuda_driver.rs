//! The stand-in CUDA driver is itself tested: it catches kernels that are wrong on purpose (`tests/cuda_driver/seeded_bugs`),
//! says nothing against right ones, and refuses what a real driver refuses.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

#[expect(dead_code, reason = "this test only builds the stand-in, and loads it into processes of its own")]
#[path = "support/cuda_driver.rs"]
mod cuda_driver;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cuda_driver/seeded_bugs")
}

/// The program that launches one of the kernels; one for all variants of the driver.
fn host(driver: &Path) -> &'static Path {
    static HOST: OnceLock<PathBuf> = OnceLock::new();
    HOST.get_or_init(|| {
        let program = std::env::temp_dir().join(format!("seeded-bugs-{}", std::process::id()));
        let output = Command::new("g++")
            .args(["-std=c++17", "-O1"])
            .arg(folder().join("host.cpp"))
            .arg(driver.join("libcuda.so"))
            .arg("-o")
            .arg(&program)
            .output()
            .expect("g++ starts");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        program
    })
}

/// How a launch is watched.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Variant {
    Plain,
    Asan,
    Tsan,
}

/// What a process said on both streams, and whether it ended well.
struct Run {
    text: String,
    good: bool,
}

/// Launches a kernel in a process of its own.
fn launch(variant: Variant, words: &[&str], settings: &[(&str, &str)]) -> Run {
    let (name, library) = match variant {
        Variant::Plain => ("plain", None),
        Variant::Asan => ("asan", Some("libasan.so")),
        Variant::Tsan => ("tsan", Some("libtsan.so")),
    };
    let driver = cuda_driver::build(name, &folder().join("kernels.cu"));
    let host = host(&driver);
    // ThreadSanitizer needs addresses that are not randomized on some systems; a container may forbid that.
    let fixed = variant == Variant::Tsan
        && Command::new("setarch").args(["-R", "true"]).output().is_ok_and(|output| output.status.success());
    let mut command = Command::new(if fixed { "setarch" } else { "env" });
    if fixed {
        command.arg("-R");
    }
    command.arg(host).args(words).env("LD_LIBRARY_PATH", &driver).env("ASAN_OPTIONS", "detect_leaks=0");
    for (setting, value) in settings {
        command.env(format!("SAYFA_CUDA_{setting}"), value);
    }
    if let Some(library) = library {
        command.env("LD_PRELOAD", cuda_driver::sanitizer_library(library));
    }
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    Run { text, good: output.status.success() }
}

fn assert_says(variant: Variant, words: &[&str], settings: &[(&str, &str)], expected: &[&str]) {
    let run = launch(variant, words, settings);
    for part in expected {
        assert!(run.text.contains(part), "{variant:?} {words:?} {settings:?} does not say {part:?}:\n{}", run.text);
    }
}

#[test]
fn right_kernels_are_right_in_every_order_and_under_every_watch() {
    for kernel in ["right_sum", "right_neighbours", "right_double", "right_copy"] {
        for variant in [Variant::Plain, Variant::Asan, Variant::Tsan] {
            for order in ["forward", "reverse", "random"] {
                let run = launch(variant, &[kernel], &[("ORDER", order)]);
                assert!(run.good && run.text == "right\n", "{variant:?} {kernel} {order}:\n{}", run.text);
            }
        }
    }
}

#[test]
fn barriers_and_warps_that_part_of_the_threads_reach_end_the_launch() {
    for (kernel, sentence) in [
        ("divergent_barrier", "a barrier after some threads of the block have returned"),
        ("two_barriers", "threads of one block wait at different barriers"),
        ("partial_shuffle", "a warp operation waits for lanes that never come"),
        ("shuffle_from_outside_the_mask", "a shuffle reads from a lane outside the mask"),
        ("two_warp_operations", "lanes of one warp meet at different warp operations"),
    ] {
        for order in ["forward", "reverse", "random"] {
            let place = format!("kernel {kernel}, block (0, 0, 0), thread (");
            let expected = ["error 719", sentence, &place, "seeded_bugs/kernels.cu:"];
            assert_says(Variant::Plain, &[kernel], &[("ORDER", order)], &expected);
        }
    }
}

#[test]
fn memory_that_is_not_there_ends_the_launch_and_names_the_thread() {
    for (kernel, thread) in [("writes_past_the_end", 127), ("reads_past_the_end", 127), ("writes_past_shared", 127)] {
        let place = format!("kernel {kernel}, block (0, 0, 0), thread ({thread}, 0, 0)");
        assert_says(Variant::Plain, &[kernel], &[], &["error 700", "illegal access at 0x", &place]);
    }
    let expected = ["error 700", "division of integers by zero", "kernel divides_by_zero"];
    assert_says(Variant::Plain, &["divides_by_zero"], &[], &expected);
}

#[test]
fn address_sanitizer_names_the_line() {
    for (kernel, what) in [
        ("writes_past_the_end", "heap-buffer-overflow"),
        ("reads_past_the_end", "heap-buffer-overflow"),
        ("writes_past_shared", "heap-buffer-overflow"),
        ("writes_past_static_shared", "global-buffer-overflow"),
        ("unaligned_vector", "misaligned address"),
    ] {
        let run = launch(Variant::Asan, &[kernel], &[]);
        assert!(!run.good, "{kernel}:\n{}", run.text);
        assert!(run.text.contains(what) && run.text.contains("kernels.cu:"), "{kernel}:\n{}", run.text);
    }
    let run = launch(Variant::Asan, &["right_double", "poisoned"], &[]);
    assert!(!run.good && run.text.contains("use-after-poison") && run.text.contains("kernels.cu:"), "{}", run.text);
}

#[test]
fn thread_sanitizer_names_the_line() {
    for kernel in ["racy_sum", "unfenced_neighbours", "copy_without_barrier"] {
        // Also in an order in which the results happen to be right.
        for order in ["forward", "reverse"] {
            let run = launch(Variant::Tsan, &[kernel], &[("ORDER", order)]);
            let found = run.text.contains("data race") && run.text.contains(&format!("{kernel} ")) && !run.good;
            assert!(found && run.text.contains("kernels.cu:"), "{kernel} {order}:\n{}", run.text);
        }
    }
}

#[test]
fn what_no_error_can_tell_shows_in_the_results() {
    let wrong = ["wrong results\n"];
    assert_says(Variant::Plain, &["racy_sum"], &[("ORDER", "random")], &wrong);
    assert_says(Variant::Plain, &["copy_without_wait"], &[], &wrong);
    assert_says(Variant::Plain, &["copy_without_barrier"], &[("ORDER", "reverse")], &wrong);
    assert_says(Variant::Plain, &["uninitialised_shared"], &[], &wrong);
    assert_says(Variant::Plain, &["right_double", "poisoned"], &[], &wrong);
    assert_says(Variant::Plain, &["right_double", "unsynchronised"], &[], &wrong);
    assert_says(Variant::Plain, &["right_double", "unsynchronised"], &[("LAZY", "1")], &["right\n"]);
}

#[test]
fn the_settings_change_what_the_driver_offers() {
    for (settings, code) in [
        (("DEVICES", "0"), 100),
        (("PTX_VERSION", "7.8"), 222),
        (("COMPUTE_CAPABILITY", "70"), 209),
        (("MEMORY_MIB", "0"), 2),
        (("HELD_MIB", "2048"), 2),
        (("INIT_ERROR", "803"), 803),
    ] {
        assert_says(Variant::Plain, &["right_double"], &[settings], &[&format!("error {code}: ")]);
    }
    assert_says(Variant::Plain, &["right_double"], &[("DEVICES", "2")], &["right\n"]);
    // Threads that have returned count as arrived, as on the hardware.
    assert_says(Variant::Plain, &["divergent_barrier"], &[("STRICT", "0")], &["right\n"]);
}
