//! Compiles the protocol with protox, so that the machine needs no `protoc`.

use std::{env, error::Error, fs, path::PathBuf};

use prost::Message as _;

const FILES: [&str; 12] = [
    "vramd/v1/types.proto",
    "vramd/v1/memory.proto",
    "vramd/v1/admin.proto",
    "vramd/v1/channel.proto",
    "vramd/v1/watch.proto",
    "vramd/v1/moves.proto",
    "vramd/v1/prefetch.proto",
    "vramd/v1/settings.proto",
    "vramd/v1/tenant.proto",
    "vramd/v1/trace.proto",
    "vramd/v1/turns.proto",
    "vramd/v1/mapped_file.proto",
];

fn main() -> Result<(), Box<dyn Error>> {
    for file in FILES {
        println!("cargo::rerun-if-changed={file}");
    }
    let mut compiler = protox::Compiler::new(["."])?;
    compiler.include_imports(true).include_source_info(true).open_files(FILES)?;
    let descriptors = compiler.file_descriptor_set();
    let out = PathBuf::from(env::var("OUT_DIR")?);
    fs::write(out.join("descriptor.bin"), descriptors.encode_to_vec())?;
    tonic_prost_build::configure().compile_fds(descriptors)?;
    Ok(())
}
