fn main() -> std::process::ExitCode {
    router::cli::main()
}
