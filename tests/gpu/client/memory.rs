//! The memory that an actor has through the SDK.

use anyhow::{Result, bail, ensure};
use serde_json::{Value, json};
use vramd_client::{Access, Advice, Allocation, AllocationRequest, Bytes, Client, Pinned, Reason, Sealed};

use super::number;
use crate::{content, cuda::Gpu};

/// The bytes of one copy.
const CHUNK: usize = 32 << 20;

pub(super) enum Memory {
    Open(Allocation),
    Sealed(Sealed),
}

impl Memory {
    /// `SIZE [name=N] [persistent] [readers=A,B] [part=N] [device=D] [fixed]`
    pub(super) fn allocate(client: &Client, words: &[&str]) -> Result<Self> {
        let mut request = AllocationRequest::new(Bytes::new(number(words, 0)?));
        for word in &words[1..] {
            request = match word.split_once('=').unwrap_or((*word, "")) {
                ("name", name) => request.name(name),
                ("persistent", _) => request.persistent(),
                ("readers", readers) => readers.split(',').fold(request, AllocationRequest::reader),
                ("part", size) => request.part_size(Bytes::new(size.parse()?)),
                ("device", device) => request.device(device),
                ("fixed", _) => request.fixed(),
                _ => bail!("`{word}` says nothing about an allocation"),
            };
        }
        Ok(Self::Open(client.allocate(request)?))
    }

    pub(super) fn attach(client: &Client, name: &str) -> Result<Self> {
        Ok(Self::Sealed(client.attach(name)?))
    }

    pub(super) fn attach_fixed(client: &Client, name: &str) -> Result<Self> {
        Ok(Self::Open(client.attach_fixed(name)?))
    }

    pub(super) fn seal(self) -> Result<Self> {
        match self {
            Self::Open(allocation) => Ok(Self::Sealed(allocation.seal().map_err(|failed| failed.error)?)),
            Self::Sealed(_) => bail!("it is sealed already"),
        }
    }

    pub(super) fn free(self) -> Result<()> {
        match self {
            Self::Open(allocation) => allocation.free().map(drop)?,
            Self::Sealed(sealed) => sealed.free().map(drop)?,
        }
        Ok(())
    }

    pub(super) fn repin(&mut self) -> Result<()> {
        match self {
            Self::Open(allocation) => allocation.repin()?,
            Self::Sealed(sealed) => sealed.repin()?,
        }
        Ok(())
    }

    pub(super) fn unpin(&mut self) -> Result<()> {
        match self {
            Self::Open(allocation) => allocation.unpin()?,
            Self::Sealed(sealed) => sealed.unpin()?,
        }
        Ok(())
    }

    /// Advises access in place. Returns false if clients cannot map host memory.
    pub(super) fn advise(&self) -> Result<bool> {
        let outcome = match self {
            Self::Open(allocation) => allocation.advise(Advice::SetAccessedBy),
            Self::Sealed(sealed) => sealed.advise(Advice::SetAccessedBy),
        };
        match outcome {
            Err(error) if error.reason() == Some(Reason::TierUnsupported) => Ok(false),
            outcome => Ok(outcome.map(|()| true)?),
        }
    }

    pub(super) fn pin(&self, access: Access) -> Result<Pinned> {
        Ok(match self {
            Self::Open(allocation) => allocation.pin(access)?,
            Self::Sealed(sealed) => sealed.pin(access)?,
        })
    }

    pub(super) fn facts(&self) -> Value {
        let info = match self {
            Self::Open(allocation) => allocation.info(),
            Self::Sealed(sealed) => sealed.info(),
        };
        json!({
            "allocation": info.id.get(), "device": info.device, "digest": info.digest,
            "charged": info.charged.get(), "parts": info.parts.len(),
        })
    }

    /// Returns the device address.
    pub(super) fn address(&self) -> Result<u64> {
        let (of_gpu, address) = match self {
            Self::Open(allocation) => (allocation.is_device_memory(), allocation.as_device_ptr()),
            Self::Sealed(sealed) => (sealed.is_device_memory(), sealed.as_device_ptr()),
        };
        ensure!(of_gpu, "it is no memory of a GPU");
        Ok(address)
    }

    /// Returns the requested size in bytes.
    pub(super) fn bytes(&self) -> u64 {
        match self {
            Self::Open(allocation) => allocation.info().size.get(),
            Self::Sealed(sealed) => sealed.info().size.get(),
        }
    }

    /// Copies there and back by the SDK, across the border of the first two parts if there are two.
    pub(super) fn copies(&mut self, seed: u64) -> Result<Value> {
        let Self::Open(allocation) = self else { bail!("it is sealed") };
        let size = allocation.info().size.get();
        let border = allocation.info().parts.first().map_or(0, |part| part.size.get());
        let length = size.min(4 << 20);
        let offset = border.saturating_sub(length / 2).min(size - length);
        let there = content::bytes(seed, length);
        let mut back = vec![0; there.len()];
        allocation.copy_from_host(offset, &there)?;
        allocation.copy_to_host(offset, &mut back)?;
        Ok(json!({ "same": there == back }))
    }
}

/// Copies content from the host into the memory.
pub(super) fn write(gpu: &Gpu, address: u64, bytes: u64, seed: u64) -> Result<()> {
    let content = content::bytes(seed, bytes);
    let mut at = address;
    for chunk in content.chunks(CHUNK) {
        gpu.upload(at, chunk)?;
        at += chunk.len() as u64;
    }
    Ok(())
}

/// Copies all of it back and returns its digest in the daemon's form.
pub(super) fn digest(gpu: &Gpu, address: u64, bytes: u64) -> Result<String> {
    let mut hasher = blake3::Hasher::new();
    let mut chunk = vec![0; CHUNK];
    let (mut at, end) = (address, address + bytes);
    while at < end {
        let length = usize::try_from(end - at)?.min(CHUNK);
        gpu.download(at, &mut chunk[..length])?;
        hasher.update_rayon(&chunk[..length]);
        at += length as u64;
    }
    Ok(format!("blake3:{}", hasher.finalize()))
}
