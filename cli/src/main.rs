//! The `dtrain` program.

fn main() -> std::process::ExitCode {
    dtrain::Program::new().main()
}
