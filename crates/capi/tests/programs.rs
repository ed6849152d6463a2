//! Tests of programs in C and C++: they do what the header promises. They are compiled with each compiler on this
//! machine, also with the address sanitizer, and run under valgrind.
//!
//! A test prints a line for each tool that is not on the machine, and skips it. `make test` installs the tools where it
//! can.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;
use std::time::Duration;

/// A compiler with its flags, and the language that it compiles.
#[derive(Clone, Copy)]
struct Compiler {
    program: &'static str,
    flags: &'static [&'static str],
    compiles: Language,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Language {
    C,
    Cpp,
}

const PLAIN: &[&str] = &["-O1", "-g"];
const SANITIZED: &[&str] = &["-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"];
const COMPILERS: [Compiler; 4] = [
    Compiler { program: "gcc", flags: &["-std=c11"], compiles: Language::C },
    Compiler { program: "clang", flags: &["-std=c11"], compiles: Language::C },
    Compiler { program: "g++", flags: &["-std=c++17"], compiles: Language::Cpp },
    Compiler { program: "clang++", flags: &["-std=c++20"], compiles: Language::Cpp },
];
/// Time limit of a program. Each program takes less on a busy machine, so a program that exceeds the limit hangs.
const ENDS_WITHIN: Duration = Duration::from_secs(120);

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// Returns the folder in which the library of this test is installed, by the script that users run. The folder lies in
/// Cargo's target folder, and the next run overwrites it. A temporary folder would not do: a value that lives as long
/// as the program is never dropped, so the folder would not be removed.
fn installed() -> &'static Path {
    static INSTALLED: OnceLock<PathBuf> = OnceLock::new();
    INSTALLED.get_or_init(|| {
        let prefix = Path::new(env!("CARGO_TARGET_TMPDIR")).join("capi");
        let program = std::env::current_exe().expect("a program has a path");
        let built = program.parent().expect("it lies in a folder");
        let mut command = Command::new(folder().join("../../scripts/install-capi"));
        let output = command.arg(&prefix).arg(built).output().expect("the script is started");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        prefix
    })
}

/// Returns the compiler flags for the library: from pkg-config, if it is on the machine.
fn flags(linked: Linked) -> Vec<String> {
    let prefix = installed();
    let mut command = Command::new("pkg-config");
    command.env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig")).args(["--cflags", "--libs", "portcullis"]);
    let said = command.output().ok().filter(|output| output.status.success());
    let by_hand = format!("-I{0}/include -L{0}/lib -lportcullis -Wl,-rpath,{0}/lib", prefix.display());
    let said = said.map_or(by_hand, |output| String::from_utf8_lossy(&output.stdout).into_owned());
    let flags = said.split_whitespace().map(str::to_owned);
    match linked {
        Linked::Shared => flags.collect(),
        Linked::Static => flags
            .filter(|flag| flag != "-lportcullis")
            .chain([format!("{}/lib/libportcullis.a", prefix.display())])
            .chain(["-lm", "-ldl"].map(str::to_owned))
            .collect(),
    }
}

fn is_here(program: &str) -> bool {
    Command::new(program).arg("--version").output().is_ok_and(|output| output.status.success())
}

/// Returns the compilers of a language that are on this machine, and prints the names of the others.
fn compilers(language: Language) -> Vec<Compiler> {
    let (here, missing): (Vec<_>, Vec<_>) = COMPILERS
        .into_iter()
        .filter(|compiler| compiler.compiles == language)
        .partition(|compiler| is_here(compiler.program));
    for compiler in missing {
        eprintln!("SKIPPED {}: it is not on this machine", compiler.program);
    }
    here
}

/// Returns whether a compiler can build programs with the sanitizers.
fn sanitizes(compiler: Compiler, into: &Path) -> bool {
    let source = into.join("empty.c");
    std::fs::write(&source, "int main(void) { return 0; }").expect("it is written");
    let mut command = Command::new(compiler.program);
    command.args(SANITIZED).arg(&source).arg("-o").arg(into.join("empty"));
    let works = command.output().is_ok_and(|output| output.status.success());
    if !works {
        eprintln!("SKIPPED {} with sanitizers: they are not on this machine", compiler.program);
    }
    works
}

#[derive(Clone, Copy)]
enum Linked {
    Shared,
    Static,
}

/// Compiles one source file. Warnings are errors. Returns the program's path.
fn compile(compiler: Compiler, flags: &[&str], source: &str, linked: Linked, into: &Path) -> PathBuf {
    let name = Path::new(source).file_stem().expect("it has a name").to_string_lossy().into_owned();
    let program = into.join(format!("{name}-{}-{}", compiler.program, flags.len()));
    let mut command = Command::new(compiler.program);
    command
        .args(compiler.flags)
        .args(["-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Werror", "-pthread"])
        .args(flags)
        .arg(folder().join(source))
        .arg("-o")
        .arg(&program)
        .args(self::flags(linked));
    let output = command.output().expect("the compiler is started");
    assert!(output.status.success(), "{command:?}\n{}", String::from_utf8_lossy(&output.stderr));
    program
}

/// Runs a program to its end under `timeout` of the core utilities, so that a program that hangs fails the test instead
/// of blocking it.
fn run(program: &[&str]) -> Output {
    let mut command = Command::new("timeout");
    command.arg(ENDS_WITHIN.as_secs().to_string()).args(program);
    let output = command.output().expect("timeout is started");
    assert!(
        output.status.success(),
        "{program:?} ended with {}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    output
}

fn path(program: &Path) -> &str {
    program.to_str().expect("a path of the tests is text")
}

#[test]
fn layouts_are_the_same_in_c_and_cpp() {
    let into = tempfile::tempdir().expect("a folder");
    for compiler in compilers(Language::C) {
        compile(compiler, PLAIN, "tests/programs/layouts.c", Linked::Shared, into.path());
    }
    for compiler in compilers(Language::Cpp) {
        let as_cpp = &["-x", "c++"];
        compile(compiler, as_cpp, "tests/programs/layouts.c", Linked::Shared, into.path());
    }
}

#[test]
fn programs_in_c_do_what_the_header_says_with_each_compiler_and_its_sanitizers() {
    let into = tempfile::tempdir().expect("a folder");
    for compiler in compilers(Language::C) {
        for source in ["tests/programs/everything.c", "tests/programs/misuse.c"] {
            let flags = if sanitizes(compiler, into.path()) { SANITIZED } else { PLAIN };
            run(&[path(&compile(compiler, flags, source, Linked::Shared, into.path()))]);
        }
    }
}

#[test]
fn an_arena_is_registered_with_cuda_and_let_go_before_it_is_unmapped() {
    let into = tempfile::tempdir().expect("a folder");
    let Some(&compiler) = compilers(Language::C).first() else { return };
    let library = into.path().join("libcuda.so.1");
    let mut command = Command::new(compiler.program);
    command.args(["-shared", "-fPIC", "-o"]).arg(&library).arg(folder().join("../foreign/tests/fake_cuda.c"));
    assert!(command.arg("-ldl").status().expect("the compiler is started").success());
    let program = compile(compiler, PLAIN, "tests/programs/cuda.c", Linked::Shared, into.path());
    let folder_of_library = format!("LD_LIBRARY_PATH={}", path(into.path()));
    let output = run(&["env", &folder_of_library, path(&program)]);
    let output = String::from_utf8(output.stdout).expect("the program writes text");
    let (address, bytes) = output.trim().split_once(' ').expect("two numbers");
    let calls = std::fs::read_to_string(format!("{}.log", path(&library))).expect("there were calls");
    let of_memory: Vec<_> = calls.lines().filter(|call| call.starts_with("cuMem")).collect();
    let expected =
        [format!("cuMemHostRegister {address} {bytes} 1"), format!("cuMemHostUnregister {address} 1")];
    assert_eq!(of_memory, expected, "{calls}");
}

#[test]
fn programs_in_cpp_do_what_the_header_says_with_each_compiler_and_its_sanitizers() {
    let into = tempfile::tempdir().expect("a folder");
    for compiler in compilers(Language::Cpp) {
        let everything = |flags: &[&str]| {
            let program = "tests/programs/everything.cpp";
            run(&[path(&compile(compiler, flags, program, Linked::Shared, into.path()))]);
        };
        everything(PLAIN);
        if sanitizes(compiler, into.path()) {
            // With sanitizers, GCC 12 warns that an empty optional string is used uninitialised.
            everything(&[SANITIZED, &["-Wno-error"]].concat());
        }
    }
}

#[test]
fn the_examples_run_with_the_shared_library_and_with_the_static_one() {
    let into = tempfile::tempdir().expect("a folder");
    for (compiler, linked) in compilers(Language::C).into_iter().zip([Linked::Shared, Linked::Static]) {
        let flags = if sanitizes(compiler, into.path()) { SANITIZED } else { PLAIN };
        for (source, says) in EXAMPLES {
            let ended = run(&[path(&compile(compiler, flags, source, linked, into.path()))]);
            let said = String::from_utf8_lossy(&ended.stdout).into_owned();
            assert!(said.contains(says), "{said}");
        }
    }
}

/// The examples, and the text that each prints at its end.
const EXAMPLES: [(&str, &str); 2] =
    [("examples/block_store.c", "a late read: 101 (expired)"), ("examples/epoll_loop.c", "2000 reads ended")];

#[test]
fn the_examples_leak_nothing_and_touch_nothing_that_is_not_their_own_under_valgrind() {
    if !is_here("valgrind") {
        eprintln!("SKIPPED valgrind: it is not on this machine");
        return;
    }
    let Some(compiler) = compilers(Language::C).into_iter().next() else { return };
    let into = tempfile::tempdir().expect("a folder");
    for (source, _) in EXAMPLES {
        let program = compile(compiler, PLAIN, source, Linked::Shared, into.path());
        let memcheck =
            ["--quiet", "--error-exitcode=9", "--leak-check=full", "--errors-for-leak-kinds=definite"];
        // Under valgrind one thread runs at a time. Without fair scheduling, a thread that waits would keep the others
        // from running.
        let fair = ["--fair-sched=yes", "--show-leak-kinds=definite"];
        run(&[&["valgrind"], &memcheck[..], &fair[..], &[path(&program)]].concat());
    }
}
