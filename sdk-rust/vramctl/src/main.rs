//! `vramctl`: the operator's tool.

fn main() -> std::process::ExitCode {
    vramctl::main()
}
