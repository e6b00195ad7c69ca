//! `vramctl put`: copies a file into an allocation and seals it, or has the daemon load it.

use std::{
    fs::File,
    io::Read as _,
    path::{Path, PathBuf},
};

use clap::{Args, builder::NonEmptyStringValueParser};
use serde_json::json;
use vramd_client::{Allocation, AllocationRequest, Bytes, Client, ClientBuilder, Error, Sealed, Sentence};

use super::{
    digest::{self, CHUNK_BYTES, Digest},
    open_regular, stdin,
};
use crate::output::{Output, failure::Failure, progress, text::plain};

#[derive(Debug, Args)]
pub(crate) struct Put {
    /// File to put.
    file: PathBuf,
    /// Name of the allocation, without the tenant: that is the tenant of this process.
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    name: String,
    /// Tenant that may attach the allocation, or `*` for all. May be repeated.
    #[arg(long = "reader", value_name = "TENANT")]
    readers: Vec<String>,
    /// Index or UUID [default: the first device].
    #[arg(long)]
    device: Option<String>,
    /// Take the name from the sealed allocation that has it, and free that one.
    #[arg(long)]
    replace: bool,
    /// Size of the parts in bytes, a multiple of 2 MiB [default: the daemon's].
    #[arg(long, value_name = "BYTES", value_parser = vramd_types::Quantity::parse_bytes)]
    part_size: Option<Bytes>,
    /// Let the daemon read the file and use it as backing.
    ///
    /// The daemon must know that the file never changes. Otherwise it copies the file, as without this flag.
    #[arg(long)]
    in_place: bool,
    /// Keep the allocation only until standard input ends: it belongs to this session and ends with it.
    #[arg(long)]
    hold: bool,
}

pub(crate) fn run(put: &Put, client: ClientBuilder, output: &Output) -> Result<(), Failure> {
    let file = open_regular(&put.file)?;
    let client = client.name("vramctl put").connect()?;
    let sealed = match put.in_place {
        true => load(put, &client, output)?,
        false => copy(put, &client, file, output)?,
    };
    report(&sealed, put.in_place, output)?;
    if put.hold {
        stdin::wait_for_end()?;
        sealed.free()?;
        return Ok(());
    }
    Ok(sealed.detach()?)
}

/// Has the daemon load the file. No part is fetched to the device.
fn load(put: &Put, client: &Client, output: &Output) -> Result<Sealed, Failure> {
    let loading = progress::waiting("loading", output);
    let sealed = client.load(&put.file, 0, request(put, AllocationRequest::whole_file()).unpinned())?;
    loading.finish_and_clear();
    Ok(sealed)
}

fn copy(put: &Put, client: &Client, mut file: File, output: &Output) -> Result<Sealed, Failure> {
    let size = file.metadata().map_err(Failure::file(&put.file))?.len();
    let mut memory = client.allocate(request(put, AllocationRequest::new(Bytes::new(size))))?;
    let read = fill(&mut memory, &mut file, &put.file, output)?;

    let sealing = progress::waiting("sealing", output);
    let sealed = memory.seal()?;
    sealing.finish_and_clear();
    if sealed.digest() != read {
        let error = Error::DigestMismatch {
            expected: read,
            found: sealed.digest().to_owned(),
            said: Sentence::default(),
        };
        sealed.free()?;
        return Err(error.into());
    }
    Ok(sealed)
}

/// The request for the file's bytes, with what the command line says about them.
fn request(put: &Put, bytes: AllocationRequest) -> AllocationRequest {
    let mut request = bytes.name(&put.name).replace(put.replace);
    if !put.hold {
        request = request.persistent();
    }
    for reader in &put.readers {
        request = request.reader(reader);
    }
    if let Some(device) = &put.device {
        request = request.device(device);
    }
    if let Some(part_size) = put.part_size {
        request = request.part_size(part_size);
    }
    request
}

/// Copies the file into the allocation, and returns the digest of the bytes that it read.
fn fill(memory: &mut Allocation, file: &mut File, path: &Path, output: &Output) -> Result<String, Failure> {
    let size = memory.info().size.get();
    let progress = progress::bytes("reading", size, output);
    let mut digest = Digest::default();
    let mut buffer = vec![0; CHUNK_BYTES];
    let mut offset = 0;
    while offset < size {
        let chunk = digest::chunk(&mut buffer, size - offset);
        file.read_exact(chunk).map_err(Failure::file(path))?;
        digest.update(chunk);
        memory.copy_from_host(offset, chunk)?;
        offset += chunk.len() as u64;
        progress.set_position(offset);
    }
    progress.finish_and_clear();
    Ok(digest.finish())
}

fn report(sealed: &Sealed, in_place: bool, output: &Output) -> Result<(), Failure> {
    let info = sealed.info();
    let name = info.name.as_deref().unwrap_or_default();
    let place = match (&info.file, in_place) {
        (Some(file), _) => format!(" in {}", plain(file)),
        (None, true) => {
            let why = info.copied_because.as_deref().unwrap_or("the daemon did not say why");
            format!("\ncopied, not in place: {}", plain(why))
        }
        (None, false) => String::new(),
    };
    let text = || format!("sealed {} {name} {} bytes {}{place}", info.id, info.size.get(), sealed.digest());
    let fields = json!({
        "allocation_id": info.id.to_string(),
        "name": name,
        "device": info.device,
        "size_bytes": info.size.get(),
        "charged_bytes": info.charged.get(),
        "digest": sealed.digest(),
        "file": info.file,
        "copied_because": info.copied_because,
    });
    output.show(text, fields)
}
