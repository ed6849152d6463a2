//! The registration of arenas with CUDA, against a stand-in for the driver's library, which writes down its calls.

use portcullis::SessionOptions;
use portcullis_errors::{Coded, ErrorCode};
use portcullis_foreign::{Attached, CudaDriver, CudaError, LocalNode, WantedCuda};
use portcullis_memory::Memory;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A folder with the stand-in. The stand-in stays loaded, so each test has a file of its own.
struct Fake {
    folder: tempfile::TempDir,
}

impl Fake {
    /// Compiles the stand-in. `None`: there is no C compiler, and the test is skipped.
    fn built(flags: &[&str]) -> Option<Self> {
        let folder = tempfile::tempdir().expect("a folder");
        let fake = Self { folder };
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fake_cuda.c");
        let mut compiler = Command::new("cc");
        compiler.args(["-shared", "-fPIC", "-Wall", "-Werror", "-o"]).arg(fake.library());
        compiler.args(flags).arg(source).arg("-ldl");
        let Ok(output) = compiler.output() else {
            eprintln!("SKIPPED: there is no C compiler for the stand-in of CUDA's driver");
            return None;
        };
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Some(fake)
    }

    fn library(&self) -> PathBuf {
        self.folder.path().join("libcuda.so.1")
    }

    /// Returns the calls so far.
    fn calls(&self) -> Vec<String> {
        let log = self.folder.path().join("libcuda.so.1.log");
        std::fs::read_to_string(log).unwrap_or_default().lines().map(str::to_owned).collect()
    }

    fn is_loaded(&self) -> bool {
        let maps = std::fs::read_to_string("/proc/self/maps").expect("the kernel lists the mappings");
        maps.contains(self.library().to_str().expect("a path of the tests is text"))
    }
}

fn attached(node: &LocalNode) -> Attached {
    node.connect("red", SessionOptions::default()).expect("the node lets it in")
}

fn node() -> LocalNode {
    LocalNode::start(16 << 20, None).expect("a node")
}

#[test]
fn the_whole_arena_is_registered_once_and_until_the_last_buffer_is_gone() {
    let Some(fake) = Fake::built(&[]) else { return };
    let node = node();
    let mut attached = attached(&node);
    for _ in 0..2 {
        assert_eq!(attached.register_with_cuda(WantedCuda::Required, &fake.library()), Ok(true));
    }
    assert!(attached.is_registered_with_cuda());
    let (address, bytes) = (attached.session.arena().address() as usize, attached.session.arena().length());
    assert_eq!(address % 4096, 0, "a driver registers whole pages");
    let registered = [
        "cuInit 0".to_owned(),
        "cuDeviceGet 0".to_owned(),
        "cuDevicePrimaryCtxRetain 40".to_owned(),
        "cuCtxPushCurrent 1".to_owned(),
        format!("cuMemHostRegister {address} {bytes} 1"),
        "cuCtxPopCurrent".to_owned(),
    ];
    assert_eq!(fake.calls(), registered);
    let buffer = attached.session.buffer(4096).expect("room");
    drop(attached);
    assert_eq!(fake.calls(), registered, "a GPU may copy from the buffer");
    drop(buffer);
    let ended = [
        "cuCtxPushCurrent 1".to_owned(),
        format!("cuMemHostUnregister {address} 1"),
        "cuCtxPopCurrent".to_owned(),
        "cuDevicePrimaryCtxRelease 40".to_owned(),
    ];
    assert_eq!(fake.calls()[registered.len()..], ended);
}

#[test]
fn the_registration_ends_with_a_session_whose_node_has_ended() {
    let Some(fake) = Fake::built(&[]) else { return };
    let node = node();
    let mut attached = attached(&node);
    attached.register_with_cuda(WantedCuda::IfPossible, &fake.library()).expect("the stand-in accepts");
    drop(node);
    drop(attached);
    let calls = fake.calls();
    let unregistered = |call: &&String| call.starts_with("cuMemHostUnregister") && call.ends_with(" 1");
    assert_eq!(calls.iter().filter(unregistered).count(), 1, "{calls:?}");
}

#[test]
fn the_device_of_the_threads_context_is_preferred_to_the_first() {
    let Some(fake) = Fake::built(&["-DCURRENT_DEVICE=1"]) else { return };
    let node = node();
    let mut attached = attached(&node);
    attached.register_with_cuda(WantedCuda::Required, &fake.library()).expect("the stand-in accepts");
    assert_eq!(fake.calls()[..2], ["cuInit 0", "cuDevicePrimaryCtxRetain 41"]);
}

#[test]
fn nothing_is_loaded_unless_it_is_wanted() {
    let Some(fake) = Fake::built(&[]) else { return };
    let node = node();
    let mut attached = attached(&node);
    assert_eq!(attached.register_with_cuda(WantedCuda::No, &fake.library()), Ok(false));
    assert!(!fake.is_loaded() && fake.calls().is_empty());
    attached.register_with_cuda(WantedCuda::Required, &fake.library()).expect("the stand-in accepts");
    assert!(fake.is_loaded(), "the test sees whether the library is loaded");
}

#[test]
fn a_refused_registration_names_the_call_and_leaves_nothing_behind() {
    let flags = ["-DREFUSED=\"cuMemHostRegister\"", "-DRESULT=2"];
    let Some(fake) = Fake::built(&flags) else { return };
    let node = node();
    let mut attached = attached(&node);
    let bytes = attached.session.arena().length();
    let refused = attached.register_with_cuda(WantedCuda::Required, &fake.library()).expect_err("refused");
    assert_eq!(refused.code(), ErrorCode::CudaRefused);
    let library = fake.library().display().to_string();
    let name = "CUDA_ERROR_OF_THE_TEST".to_owned();
    assert_eq!(refused, CudaError::Refused { library, call: "cuMemHostRegister", bytes, name, number: 2 });
    let calls = fake.calls();
    assert_eq!(calls[calls.len() - 2..], ["cuCtxPopCurrent", "cuDevicePrimaryCtxRelease 40"]);
    drop(attached);
    assert_eq!(fake.calls(), calls, "memory that is not registered is not unregistered");
}

#[test]
fn each_missing_part_has_an_error_that_names_the_library() {
    let node = node();
    let mut attached = attached(&node);
    let missing = Path::new("/nowhere/libcuda.so.1");
    let error = attached.register_with_cuda(WantedCuda::Required, missing).expect_err("there is none");
    assert_eq!(error.code(), ErrorCode::NoCuda);
    let CudaError::NoLibrary { library, why } = &error else { panic!("{error}") };
    assert_eq!(library, "/nowhere/libcuda.so.1");
    assert!(why.contains("No such file"), "the loader's own reason: {why}");
    assert_eq!(attached.register_with_cuda(WantedCuda::IfPossible, missing), Ok(false));
    for (flags, expected) in [
        (&["-DWITHOUT_REGISTER"][..], "has no cuMemHostRegister_v2"),
        (&["-DREFUSED=\"cuInit\"", "-DRESULT=100"], "finds no GPU"),
        // The stub library of CUDA's toolkit.
        (&["-DREFUSED=\"cuInit\"", "-DRESULT=34"], "cannot be used (cuInit: "),
    ] {
        let Some(fake) = Fake::built(flags) else { return };
        let error = attached.register_with_cuda(WantedCuda::Required, &fake.library()).expect_err("refused");
        assert_eq!(error.code(), ErrorCode::NoCuda);
        let text = error.to_string();
        assert!(text.contains(expected) && text.contains(fake.library().to_str().expect("text")), "{text}");
        assert_eq!(attached.register_with_cuda(WantedCuda::IfPossible, &fake.library()), Ok(false));
    }
    assert_eq!(CudaDriver::LIBRARY, "libcuda.so.1");
}
