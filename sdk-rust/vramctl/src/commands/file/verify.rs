//! `vramctl verify`: checks that the mapped bytes are the sealed ones.

use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::json;
use vramd_client::{AllocationId, ClientBuilder, Error, Sealed, Sentence, Target};

use super::{
    checkpoint::{self, Checkpoint},
    digest, stdin,
};
use crate::output::{Output, failure::Failure, progress, text::plain};

#[derive(Debug, Args)]
pub(crate) struct Verify {
    /// `name` for the own tenant, `tenant/name`, or an id like a-1099511627777.
    name: String,
    /// File, or checkpoint, to compare with, too. A checkpoint is a file of safetensors, a folder of them or their index.
    file: Option<PathBuf>,
    /// Stay attached until standard input ends.
    #[arg(long)]
    hold: bool,
}

pub(crate) fn run(verify: &Verify, client: ClientBuilder, output: &Output) -> Result<(), Failure> {
    let client = client.name("vramctl verify").connect()?;
    // Unless it is to stay mapped, the allocation may be larger than its device.
    let target = target(&verify.name);
    let attached = if verify.hold { client.attach(target)? } else { client.attach_unpinned(target)? };

    let progress = progress::bytes("hashing", attached.info().size.get(), output);
    let found = digest::hash_mapping(&attached, &progress)?;
    progress.finish_and_clear();
    check(attached.digest(), &found)?;
    if let Some(file) = &verify.file {
        compare(&attached, &found, file, output)?;
    }
    report(&attached, &found, verify, output)?;
    if verify.hold {
        stdin::wait_for_end()?;
    }
    Ok(attached.detach()?)
}

/// Compares the allocation with a checkpoint by its tensors, and with any other file by its digest.
fn compare(attached: &Sealed, digest: &str, path: &Path, output: &Output) -> Result<(), Failure> {
    if Checkpoint::is_at(path) {
        let tensors = checkpoint::tensors_of(attached)?;
        // A file of any content may have been put, and have this name.
        if tensors.is_ok() || !path.is_file() {
            let checkpoint = Checkpoint::open(path)?;
            let progress = progress::bytes("comparing", checkpoint.size(), output);
            checkpoint.compare(attached, tensors, &progress)?;
            progress.finish_and_clear();
            return Ok(());
        }
    }
    let length = path.metadata().map_err(Failure::file(path))?.len();
    let progress = progress::bytes("hashing", length, output);
    let file_digest = digest::hash_file(path, &progress)?;
    progress.finish_and_clear();
    check(&file_digest, digest)
}

/// Reads an id as an id, and everything else as a name.
pub(crate) fn target(text: &str) -> Target {
    match text.starts_with("a-").then(|| text.parse::<AllocationId>()) {
        Some(Ok(id)) => id.into(),
        _ => text.into(),
    }
}

fn check(expected: &str, found: &str) -> Result<(), Failure> {
    if expected == found {
        return Ok(());
    }
    Err(Error::DigestMismatch {
        expected: expected.to_owned(),
        found: found.to_owned(),
        said: Sentence::default(),
    }
    .into())
}

fn report(attached: &Sealed, digest: &str, verify: &Verify, output: &Output) -> Result<(), Failure> {
    let size = attached.info().size.get();
    // A device address if the allocation lies in device memory.
    let address = format!("{:#x}", attached.as_device_ptr());
    let file = verify.file.as_ref().map(|file| file.display().to_string());
    let text = || {
        let same = file.as_ref().map(|file| format!(", the same as {}", plain(file))).unwrap_or_default();
        format!("verified {digest} ({size} bytes mapped at {address}){same}")
    };
    let fields = json!({
        "verified": true,
        "allocation_id": attached.id().to_string(),
        "name": attached.info().name,
        "digest": digest,
        "size_bytes": size,
        "address": address,
        "device_memory": attached.is_device_memory(),
        "file": file,
    });
    output.show(text, fields)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_ids_parse_as_ids() {
        assert_eq!(target("a-7"), Target::Id(AllocationId::from_raw(7)));
        for name in ["llama", "team-a/llama", "a-b", "7", "a-"] {
            assert_eq!(target(name), Target::Name(name.to_owned()), "{name}");
        }
    }
}
