//! The program `dtrain`.

fn main() -> std::process::ExitCode {
    dtrain::Program::new().main()
}
