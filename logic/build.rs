//! Makes the `Reason` enum from bpf/reasons.h, the list both planes share.

use std::{env, fmt::Write, fs, path::Path};

fn main() {
    let list = Path::new(&env::var("CARGO_MANIFEST_DIR").unwrap()).join("../bpf/reasons.h");
    println!("cargo::rerun-if-changed={}", list.display());
    let text = fs::read_to_string(&list).unwrap_or_else(|e| panic!("{}: {e}", list.display()));

    let (mut variants, mut all) = (String::new(), String::new());
    for line in text.lines().filter(|l| l.starts_with("REASON(")) {
        let body = line.trim_start_matches("REASON(").trim_end_matches(')');
        let mut part = body.splitn(3, ',').map(str::trim);
        let (Some(name), Some(class), Some(text)) = (part.next(), part.next(), part.next()) else {
            panic!("{}: not REASON(NAME, class, \"text\"): {line}", list.display());
        };
        let variant = camel(name);
        writeln!(variants, "    /// {}\n    {variant},", text.trim_matches('"')).unwrap();
        let (class, name) = (camel(class), name.to_lowercase());
        writeln!(all, "    (Reason::{variant}, Class::{class}, \"{name}\", {text}),").unwrap();
    }
    let count = variants.matches(",\n").count();
    let code = format!(
        "/// Why a packet was not forwarded by the kernel plane (bpf/reasons.h).\n\
         #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]\n#[repr(u8)]\npub enum Reason {{\n{variants}}}\n\n\
         const TABLE: [(Reason, Class, &str, &str); {count}] = [\n{all}];\n"
    );
    fs::write(Path::new(&env::var("OUT_DIR").unwrap()).join("reasons.rs"), code).unwrap();
}

fn camel(snake: &str) -> String {
    snake.split('_').map(|w| w[..1].to_uppercase() + &w[1..].to_lowercase()).collect()
}
